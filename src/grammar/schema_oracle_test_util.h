// A validator of JSON Schema for tests: the definitions of the standard, word by word, for the keywords that the tests
// use. It shares nothing with what it judges.
#pragma once

#include <algorithm>
#include <cmath>
#include <regex>
#include <string>

#include "base/json.h"

namespace carpool {

inline bool oracle_type(const json::value& v, std::string_view type) {
  if (type == "integer") return v.is_number() && std::floor(v.to_number<double>()) == v.to_number<double>();
  if (type == "number") return v.is_number();
  if (type == "string") return v.is_string();
  if (type == "boolean") return v.is_bool();
  if (type == "null") return v.is_null();
  if (type == "array") return v.is_array();
  return type == "object" && v.is_object();
}

inline bool oracle_equal(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  return a == b;
}

inline int64_t oracle_length(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

inline bool oracle_accepts(const json::value& schema, const json::value& v, const json::value& root);

inline bool oracle_keyword(std::string_view key, const json::value& arg, const json::object& schema,
                           const json::value& v, const json::value& root) {
  const auto accepts = [&](const json::value& s, const json::value& x) { return oracle_accepts(s, x, root); };
  const auto number = [&] { return arg.to_number<double>(); };
  if (key == "type") {
    if (v.is_null() && schema.contains("nullable")) return true;
    if (arg.is_string()) return oracle_type(v, arg.get_string());
    return std::any_of(arg.get_array().begin(), arg.get_array().end(),
                       [&](const json::value& t) { return oracle_type(v, t.get_string()); });
  }
  if (key == "const") return oracle_equal(arg, v);
  if (key == "enum") {
    return std::any_of(arg.get_array().begin(), arg.get_array().end(),
                       [&](const json::value& x) { return oracle_equal(x, v); });
  }
  if (key == "$ref") {
    json::error_code ec;
    const std::string_view pointer = arg.get_string();
    return accepts(pointer == "#" ? root : *root.find_pointer(pointer.substr(1), ec), v);
  }
  if (key == "anyOf" || key == "oneOf" || key == "allOf") {
    const auto n = std::count_if(arg.get_array().begin(), arg.get_array().end(),
                                 [&](const json::value& s) { return accepts(s, v); });
    return key == "anyOf" ? n > 0 : key == "oneOf" ? n == 1 : n == static_cast<long>(arg.get_array().size());
  }
  if (v.is_number()) {
    const double x = v.to_number<double>();
    if (key == "minimum") return x >= number();
    if (key == "maximum") return x <= number();
    if (key == "exclusiveMinimum") return x > number();
    if (key == "exclusiveMaximum") return x < number();
  }
  if (v.is_string()) {
    if (key == "minLength") return oracle_length(v.get_string()) >= number();
    if (key == "maxLength") return oracle_length(v.get_string()) <= number();
    if (key == "pattern") {
      return std::regex_search(std::string(v.get_string()), std::regex(std::string(arg.get_string())));
    }
  }
  if (v.is_array()) {
    const json::array& list = v.get_array();
    if (key == "minItems") return static_cast<double>(list.size()) >= number();
    if (key == "maxItems") return static_cast<double>(list.size()) <= number();
    const json::value* prefix = schema.if_contains("prefixItems");
    const size_t n = prefix ? prefix->get_array().size() : 0;
    for (size_t i = 0; i < list.size(); ++i) {
      if (key == "prefixItems" && i < n && !accepts(arg.get_array()[i], list[i])) return false;
      if (key == "items" && i >= n && !accepts(arg, list[i])) return false;
    }
  }
  if (v.is_object()) {
    const json::object& members = v.get_object();
    if (key == "minProperties") return static_cast<double>(members.size()) >= number();
    if (key == "maxProperties") return static_cast<double>(members.size()) <= number();
    if (key == "required") {
      return std::all_of(arg.get_array().begin(), arg.get_array().end(),
                         [&](const json::value& name) { return members.contains(name.get_string()); });
    }
    const json::value* declared = schema.if_contains("properties");
    for (const auto& [name, value] : members) {
      const json::value* own = declared ? declared->get_object().if_contains(name) : nullptr;
      if (key == "properties" && own && !accepts(*own, value)) return false;
      if (key == "additionalProperties" && !own && !accepts(arg, value)) return false;
    }
  }
  return true;
}

inline bool oracle_accepts(const json::value& schema, const json::value& v, const json::value& root) {
  if (schema.is_bool()) return schema.get_bool();
  return std::all_of(schema.get_object().begin(), schema.get_object().end(), [&](const auto& member) {
    return oracle_keyword(member.key(), member.value(), schema.get_object(), v, root);
  });
}

}  // namespace carpool
