// See schema_merge.h. One rule per keyword.
#include "grammar/schema_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "grammar/grammar.h"

namespace carpool {
namespace {

template <size_t N>
bool listed(const std::array<std::string_view, N>& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

constexpr std::array<std::string_view, 20> kAnnotations = {
    "title",       "description",   "default",         "examples",         "example",      "$schema",   "$id",
    "id",          "$comment",      "$anchor",         "deprecated",       "readOnly",     "writeOnly", "$defs",
    "definitions", "discriminator", "contentEncoding", "contentMediaType", "externalDocs", "xml"};
constexpr std::array<std::string_view, 6> kLower = {"minimum",  "exclusiveMinimum", "minLength",
                                                    "minItems", "minProperties",    "minContains"};
constexpr std::array<std::string_view, 6> kUpper = {"maximum",  "exclusiveMaximum", "maxLength",
                                                    "maxItems", "maxProperties",    "maxContains"};

class Merger {
 public:
  Merger(const std::string& path, int& budget) : path_(path), budget_(budget) {}

  json::value values(const json::value& a, const json::value& b) {
    if (a.is_bool()) return a.get_bool() ? b : a;
    if (b.is_bool()) return b.get_bool() ? a : b;
    if (!a.is_object() || !b.is_object()) throw GrammarError(path_, false, "a schema must be an object, true or false");
    return objects(a.get_object(), b.get_object());
  }

  json::object objects(const json::object& a, const json::object& b) {
    if (--budget_ < 0) throw GrammarError(path_, false, "allOf and its kin need too many schemas to be merged");
    json::object out = a;
    for (const auto& [key, value] : b) {
      if (key == "properties" || key == "additionalProperties") continue;  // together, below
      json::value* mine = out.if_contains(key);
      if (key == "nullable" || (mine && a.contains("nullable"))) refuse("nullable");
      if (!mine) {
        out[key] = value;
      } else if (!is_annotation(key) && *mine != value) {
        *mine = keyword(key, *mine, value, out);
      }
    }
    members(a, b, out);
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string_view key) const {
    throw GrammarError(path_, true,
                       fmt::format("{} of schemas that must hold together is not supported", escape(key, 40)));
  }

  static json::array as_list(const json::value& value) {
    return value.is_array() ? value.get_array() : json::array{value};
  }

  json::value keyword(std::string_view key, const json::value& a, const json::value& b, json::object& out) {
    if (key == "type") return types(as_list(a), as_list(b));
    if (key == "required" || key == "allOf") {
      json::array both = as_list(a);
      for (const json::value& item : as_list(b)) {
        if (std::find(both.begin(), both.end(), item) == both.end()) both.push_back(item);
      }
      return both;
    }
    if (listed(kLower, key) || listed(kUpper, key)) {
      if (!a.is_number() || !b.is_number()) refuse(key);
      const bool a_larger = a.to_number<double>() > b.to_number<double>();
      return a_larger == listed(kLower, key) ? a : b;
    }
    if (key == "enum") {
      json::array both;
      const json::array other = as_list(b);
      for (const json::value& item : as_list(a)) {
        if (std::find(other.begin(), other.end(), item) != other.end()) both.push_back(item);
      }
      return both;
    }
    if (key == "uniqueItems") return true;
    if (key == "items") return values(a, b);
    if (key == "$ref") {
      out["allOf"] = with_item(out, json::object{{"$ref", b}});
      return out.at("$ref");
    }
    refuse(key);
  }

  static json::array with_item(const json::object& out, json::object item) {
    const json::value* all = out.if_contains("allOf");
    json::array list = all ? as_list(*all) : json::array();
    list.push_back(std::move(item));
    return list;
  }

  static json::array types(const json::array& a, const json::array& b) {
    const auto has = [](const json::array& list, std::string_view type) {
      return std::find(list.begin(), list.end(), json::value(type)) != list.end();
    };
    json::array out;
    for (const json::value& type : a) {
      if (!type.is_string()) continue;
      const std::string_view name = type.get_string();
      if (has(b, name) || (name == "integer" && has(b, "number"))) out.push_back(type);
      if (name == "number" && !has(b, "number") && has(b, "integer")) out.push_back("integer");
    }
    return out;
  }

  // What one side says of further members holds for those that only the other declares.
  void members(const json::object& a, const json::object& b, json::object& out) {
    const json::value *pa = a.if_contains("properties"), *pb = b.if_contains("properties");
    const json::value *xa = a.if_contains("additionalProperties"), *xb = b.if_contains("additionalProperties");
    if (!pb && !xb) return;
    for (const json::value* p : {pa, pb}) {
      if (p && !p->is_object()) throw GrammarError(path_, false, "properties must be an object");
    }
    json::object both = pa ? pa->get_object() : json::object();
    const json::object mine = both;
    const json::object theirs = pb ? pb->get_object() : json::object();
    if (xb) {
      for (auto& [key, value] : both) {
        if (!theirs.contains(key)) value = values(value, *xb);
      }
    }
    for (const auto& [key, value] : theirs) {
      if (mine.contains(key)) {
        both[key] = values(mine.at(key), value);
      } else {
        both[key] = xa ? values(*xa, value) : value;
      }
    }
    if (pa || pb) out["properties"] = std::move(both);
    if (xa || xb) out["additionalProperties"] = !xa ? *xb : !xb ? *xa : values(*xa, *xb);
  }

  const std::string& path_;
  int& budget_;
};

}  // namespace

bool is_annotation(std::string_view keyword) { return keyword.starts_with("x-") || listed(kAnnotations, keyword); }

json::object merge_schemas(const json::object& a, const json::object& b, const std::string& path, int& budget) {
  return Merger(path, budget).objects(a, b);
}

}  // namespace carpool
