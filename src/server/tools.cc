// See tools.h.
#include "server/tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/parameters.h"

namespace carpool {
namespace {

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-.:/").find(c) != std::string_view::npos;
}

// Templates may ask for description and parameters without looking whether they are there.
json::object function_of(const Fields& fields, const char* schema_name) {
  json::object out;
  out["name"] = read_function_name(fields);
  out["description"] = fields.string("description").value_or("");
  const std::optional<Fields> schema = fields.object(schema_name);
  out["parameters"] = schema ? schema->raw() : json::object{{"type", "object"}, {"properties", json::object()}};
  if (const std::optional<bool> strict = fields.boolean("strict")) out["strict"] = *strict;
  return out;
}

void add(json::object function, const std::string& path, std::vector<ToolFunction>& functions, ToolWish& wish) {
  std::string name(function.at("name").as_string());
  if (find_function(functions, name)) throw invalid_value(path, fmt::format("{} is declared twice", path));
  functions.push_back({std::move(name), function.at("parameters").as_object()});
  json::object tool;
  tool["type"] = "function";
  tool["function"] = std::move(function);
  wish.tools.push_back(std::move(tool));
}

// `read` gives the function of one tool.
template <class F>
ToolWish read_list(const Fields& body, F read) {
  ToolWish wish;
  const json::array* list = body.array("tools", kMaxTools);
  if (!list || list->empty()) return wish;
  std::vector<ToolFunction> functions;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    add(read(Fields::of((*list)[i], path)), path, functions, wish);
  }
  wish.functions = std::make_shared<const std::vector<ToolFunction>>(std::move(functions));
  wish.choice = ToolWish::Choice::kAuto;
  return wish;
}

void choose_named(const std::string& name, const std::string& path, ToolWish& wish) {
  if (!wish.functions || !find_function(*wish.functions, name)) {
    throw invalid_value(path, fmt::format("{} is none of the request's tools", path));
  }
  wish.choice = ToolWish::Choice::kNamed;
  wish.named = name;
}

void choose_required(const std::string& path, ToolWish& wish) {
  if (!wish.functions) throw invalid_value(path, fmt::format("{} asks for a call, but there are no tools", path));
  wish.choice = ToolWish::Choice::kRequired;
}

}  // namespace

std::string read_function_name(const Fields& function) {
  function.required("name");
  std::string name = *function.string("name");
  const bool good =
      !name.empty() && name.size() <= kMaxFunctionName && std::all_of(name.begin(), name.end(), is_name_character);
  if (!good) {
    throw invalid_value(function.path("name"), fmt::format("{} must be 1 to {} letters, digits and characters of _-.:/",
                                                           function.path("name"), kMaxFunctionName));
  }
  return name;
}

ToolWish read_openai_tools(const Fields& body) {
  ToolWish wish = read_list(body, [](const Fields& tool) {
    tool.required("type");
    if (*tool.string("type") != "function") {
      throw unsupported(tool.path("type"),
                        fmt::format("{}: only tools of type function are supported", tool.path("type")));
    }
    tool.required("function");
    return function_of(*tool.object("function"), "parameters");
  });
  wish.parallel = body.boolean_or("parallel_tool_calls", true);
  const json::value* choice = body.find("tool_choice");
  if (!choice) return wish;
  if (choice->is_string()) {
    const json::string& word = choice->get_string();
    if (word == "none") {
      wish.choice = ToolWish::Choice::kNone;
    } else if (word == "required") {
      choose_required("tool_choice", wish);
    } else if (word != "auto") {
      throw invalid_value("tool_choice", "tool_choice must be none, auto, required, or name a function");
    }
    return wish;
  }
  const Fields named = Fields::of(*choice, "tool_choice");
  named.required("type");
  if (*named.string("type") != "function") {
    throw unsupported("tool_choice.type", "tool_choice.type other than function is not supported by this server");
  }
  named.required("function");
  const Fields function = *named.object("function");
  choose_named(read_function_name(function), function.path("name"), wish);
  return wish;
}

ToolWish read_anthropic_tools(const Fields& body) {
  ToolWish wish = read_list(body, [](const Fields& tool) {
    if (tool.string("type").value_or("custom") != "custom") {
      throw unsupported(tool.path("type"),
                        fmt::format("{}: only tools of type custom are supported", tool.path("type")));
    }
    tool.required("input_schema");
    return function_of(tool, "input_schema");
  });
  const std::optional<Fields> choice = body.object("tool_choice");
  if (!choice) return wish;
  choice->required("type");
  const std::string type = *choice->string("type");
  wish.parallel = !choice->boolean_or("disable_parallel_tool_use", false);
  if (type == "none") {
    wish.choice = ToolWish::Choice::kNone;
  } else if (type == "any") {
    choose_required("tool_choice.type", wish);
  } else if (type == "tool") {
    choose_named(read_function_name(*choice), "tool_choice.name", wish);
  } else if (type != "auto") {
    throw invalid_value("tool_choice.type", "tool_choice.type must be auto, any, tool or none");
  }
  return wish;
}

}  // namespace carpool
