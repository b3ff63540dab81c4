// See structure_fields.h.
#include "server/structure_fields.h"

#include <fmt/format.h>

namespace carpool {
namespace {

using Kind = StructureSpec::Kind;

constexpr JsonLimits kSchemaLimits{.max_bytes = size_t{1} << 20, .max_depth = 64};
constexpr size_t kMaxChoices = 4096;

StructureSpec spec_of(Kind kind, std::string path) {
  StructureSpec spec;
  spec.kind = kind;
  spec.path = std::move(path);
  return spec;
}

StructureSpec schema_at(const json::value& value, const std::string& path) {
  StructureSpec spec = spec_of(Kind::kJsonSchema, path);
  if (!value.is_string()) {
    spec.schema = value;
    return spec;
  }
  try {
    spec.schema = parse_json(std::string_view(value.get_string()), path, kSchemaLimits);
  } catch (const JsonError& error) {
    throw invalid_value(path, fmt::format("{} is not valid JSON, see its byte {}", path, error.offset()));
  }
  return spec;
}

bool empty(const json::value& value) {
  return (value.is_string() && value.get_string().empty()) || (value.is_array() && value.get_array().empty()) ||
         (value.is_bool() && !value.get_bool());
}

// The wishes of one request, of which there may be one.
class Wishes {
 public:
  void add(StructureSpec spec) {
    if (found_) {
      throw invalid_value(spec.path, fmt::format("{} and {} exclude each other", found_->path, spec.path));
    }
    found_ = std::move(spec);
  }
  void schema(const Fields& fields, const char* name) {
    if (const json::value* value = asked(fields, name)) add(schema_at(*value, fields.path(name)));
  }
  void regex(const Fields& fields, const char* name) {
    if (!asked(fields, name)) return;
    StructureSpec spec = spec_of(Kind::kRegex, fields.path(name));
    spec.regex = *fields.string(name);
    add(std::move(spec));
  }
  void choice(const Fields& fields, const char* name) {
    if (!asked(fields, name)) return;
    StructureSpec spec = spec_of(Kind::kChoice, fields.path(name));
    for (const json::value& item : *fields.array(name, kMaxChoices)) {
      if (!item.is_string()) throw invalid_value(spec.path, fmt::format("{} must be a list of strings", spec.path));
      spec.choices.emplace_back(item.get_string());
    }
    add(std::move(spec));
  }
  void object(const Fields& fields, const char* name) {
    if (fields.boolean_or(name, false)) add(spec_of(Kind::kJsonObject, fields.path(name)));
  }
  // {"type": "json_schema", ...} and its siblings; `schema_name` is where the schema is.
  void format(const Fields& fields, const char* name) {
    const std::optional<Fields> format = fields.object(name);
    if (!format) return;
    const std::string type = format->string("type").value_or("text");
    if (type == "text") return;
    if (type == "json_object") {  // llama.cpp takes a schema here
      if (format->has("schema")) return schema(*format, "schema");
      return add(spec_of(Kind::kJsonObject, fields.path(name)));
    }
    if (type != "json_schema") {
      throw unsupported(format->path("type"), fmt::format("{} other than text, json_object and json_schema is not "
                                                          "supported by this server",
                                                          format->path("type")));
    }
    const std::optional<Fields> inner = format->object("json_schema");
    const Fields& holder = inner ? *inner : *format;
    if (!inner && !format->has("schema")) format->required("json_schema");
    holder.boolean("strict");  // schemas always hold strictly
    holder.string("name");
    add(schema_at(holder.required("schema"), holder.path("schema")));
  }
  std::optional<StructureSpec> take() { return std::move(found_); }

 private:
  static const json::value* asked(const Fields& fields, const char* name) {
    const json::value* value = fields.find(name);
    return value && !empty(*value) ? value : nullptr;
  }

  std::optional<StructureSpec> found_;
};

void read_structured_outputs(const Fields& body, Wishes& wishes) {
  const std::optional<Fields> fields = body.object("structured_outputs");
  if (!fields) return;
  wishes.schema(*fields, "json");
  wishes.regex(*fields, "regex");
  wishes.choice(*fields, "choice");
  wishes.object(*fields, "json_object");
  for (const auto& [key, value] : fields->raw()) {
    if (key == "json" || key == "regex" || key == "choice" || key == "json_object" || value.is_null() || empty(value)) {
      continue;
    }
    const std::string path = fields->path(escape(key, 40));
    throw unsupported(path, fmt::format("{} is not supported by this server", path));
  }
}

}  // namespace

std::optional<StructureSpec> read_structure(const Fields& body) {
  Wishes wishes;
  wishes.format(body, "response_format");
  for (const char* name : {"json_schema", "guided_json"}) wishes.schema(body, name);
  for (const char* name : {"regex", "guided_regex"}) wishes.regex(body, name);
  for (const char* name : {"choice", "guided_choice"}) wishes.choice(body, name);
  wishes.object(body, "guided_json_object");
  read_structured_outputs(body, wishes);
  return wishes.take();
}

std::optional<StructureSpec> read_native_structure(const Fields& sampling_params) {
  Wishes wishes;
  wishes.schema(sampling_params, "json_schema");
  wishes.regex(sampling_params, "regex");
  return wishes.take();
}

std::optional<StructureSpec> read_messages_structure(const Fields& body) {
  Wishes wishes;
  wishes.format(body, "output_format");
  if (const std::optional<Fields> config = body.object("output_config")) wishes.format(*config, "format");
  return wishes.take();
}

}  // namespace carpool
