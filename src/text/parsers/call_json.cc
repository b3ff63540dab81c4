// See call_json.h.
#include "text/parsers/call_json.h"

#include <algorithm>
#include <array>

#include "text/parsers/tags.h"

namespace carpool {
namespace {

constexpr int kMaxSchemaDepth = 8;  // of anyOf within anyOf
constexpr size_t kMaxMembers = 4096;

std::optional<json::value> parsed(std::string_view text) {
  try {
    return parse_json(text, "arguments");
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

// Behind the value that begins at `at` in valid JSON.
size_t skip_value(std::string_view text, size_t at) {
  int depth = 0;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      if (c == '"') quoted = false;
      if (!quoted && depth == 0) return at + 1;
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}' || c == ']')) return at;
    if (c == '"') quoted = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return at + 1;
  }
  return text.size();
}

// The types that a schema allows, as bits.
enum Type : unsigned {
  kString = 1,
  kInteger = 2,
  kNumber = 4,
  kBoolean = 8,
  kNull = 16,
  kObject = 32,
  kArray = 64,
  kAny = 127
};

unsigned type_of_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, unsigned>, 7> kNames = {{{"string", kString},
                                                                            {"integer", kInteger},
                                                                            {"number", kInteger | kNumber},
                                                                            {"boolean", kBoolean},
                                                                            {"null", kNull},
                                                                            {"object", kObject},
                                                                            {"array", kArray}}};
  for (const auto& [known, type] : kNames) {
    if (name == known) return type;
  }
  return kAny;
}

unsigned type_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::string:
      return kString;
    case json::kind::bool_:
      return kBoolean;
    case json::kind::null:
      return kNull;
    case json::kind::object:
      return kObject;
    case json::kind::array:
      return kArray;
    case json::kind::double_:
      return kNumber;
    default:
      return kInteger | kNumber;
  }
}

unsigned types_of(const json::value& schema, int depth) {
  const json::object* object = schema.if_object();
  if (!object || depth > kMaxSchemaDepth) return kAny;
  unsigned types = 0;
  if (const json::value* type = object->if_contains("type")) {
    if (type->is_string()) return type_of_name(type->get_string());
    if (const json::array* list = type->if_array()) {
      for (const json::value& each : *list)
        types |= each.is_string() ? type_of_name(each.get_string()) : unsigned{kAny};
      return types ? types : unsigned{kAny};
    }
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const json::value* list = object->if_contains(key);
    if (!list || !list->is_array()) continue;
    for (const json::value& each : list->get_array()) types |= types_of(each, depth + 1);
    return types ? types : unsigned{kAny};
  }
  if (const json::value* list = object->if_contains("enum"); list && list->is_array()) {
    for (const json::value& each : list->get_array()) types |= type_of(each);
  }
  if (const json::value* constant = object->if_contains("const")) types |= type_of(*constant);
  return types ? types : unsigned{kAny};
}

// Python's spelling of a value as JSON's: quotes, names of constants, round brackets.
std::string from_python(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      out += '"';
      for (++at; at < text.size() && text[at] != c; ++at) {
        if (text[at] == '\\' && at + 1 < text.size()) {
          if (text[++at] != '\'') out += '\\';
        } else if (text[at] == '"') {
          out += '\\';
        }
        out += text[at];
      }
      out += '"';
      ++at;
      continue;
    }
    constexpr std::pair<std::string_view, std::string_view> kWords[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}, {"(", "["}, {")", "]"}};
    const auto word = std::find_if(std::begin(kWords), std::end(kWords),
                                   [&](const auto& pair) { return text.substr(at).starts_with(pair.first); });
    if (word != std::end(kWords)) {
      out += word->second;
      at += word->first.size();
    } else {
      out += c;
      ++at;
    }
  }
  return out;
}

std::string quoted(std::string_view text) { return json::serialize(json::string(text)); }

}  // namespace

std::optional<std::string_view> take_object(std::string_view& text) {
  const std::string_view from = trimmed_left(text);
  if (!from.starts_with('{')) return std::nullopt;
  const std::string_view object = from.substr(0, skip_value(from, 0));
  if (!parsed(object)) return std::nullopt;
  text = from.substr(object.size());
  return object;
}

std::vector<JsonMember> members_of(std::string_view object) {
  std::vector<JsonMember> members;
  size_t at = 1;
  while (members.size() < kMaxMembers) {
    at = object.find_first_not_of(" \t\r\n,", at);
    if (at == std::string_view::npos || object[at] != '"') break;
    const size_t key_end = skip_value(object, at);
    const json::value key = json::parse(object.substr(at, key_end - at));
    at = object.find_first_not_of(kBlanks, object.find(':', key_end) + 1);
    const size_t end = skip_value(object, at);
    members.push_back({std::string(key.get_string()), trimmed(object.substr(at, end - at))});
    at = end;
  }
  return members;
}

std::optional<std::string> arguments_of(std::string_view text) {
  text = trimmed(text);
  if (text.empty() || text == "null") return "{}";
  if (const std::optional<json::value> value = text.starts_with('"') ? parsed(text) : std::nullopt) {
    return arguments_of(std::string(value->get_string()));
  }
  const std::optional<std::string_view> object = take_object(text);
  return object ? std::optional(std::string(*object)) : std::nullopt;
}

const json::value* schema_of(const ToolFunction* function, std::string_view parameter) {
  if (!function) return nullptr;
  const json::value* properties = function->parameters.if_contains("properties");
  return properties && properties->is_object() ? properties->get_object().if_contains(parameter) : nullptr;
}

std::string typed_argument(std::string_view text, const json::value* schema) {
  const unsigned types = schema ? types_of(*schema, 0) : unsigned{kAny};
  if (types == kString) return quoted(text);
  const std::string_view inner = trimmed(text);
  const auto fits = [&](const std::optional<json::value>& value) {
    return value && (type_of(*value) & types) != 0 && !(value->is_string() && types != kAny);
  };
  const std::optional<json::value> value = parsed(inner);
  if (fits(value)) return std::string(inner);
  if (value && value->is_string() && !(types & kString)) {  // a number in quotes
    const std::string within(value->get_string());
    if (fits(parsed(within))) return within;
  }
  const std::string python = from_python(inner);
  if (fits(parsed(python))) return python;
  // Nothing that the schema allows: what it is, if it is anything but text that may be a string.
  if (!(types & kString) && value) return std::string(inner);
  return quoted(text);
}

void ArgumentsWriter::set(std::string_view key, std::string json) {
  for (auto& [known, value] : members_) {
    if (known != key) continue;
    value = std::move(json);
    return;
  }
  members_.emplace_back(key, std::move(json));
}

std::string ArgumentsWriter::text() const {
  std::string out = "{";
  for (const auto& [key, value] : members_) {
    if (out.size() > 1) out += ", ";
    out += quoted(key) + ": " + value;
  }
  return out + "}";
}

}  // namespace carpool
