// See json_schema.h. Each $ref becomes a rule, made when everything before it is done, so that recursion of schemas is
// recursion of rules and the depth of this code is that of the text.
#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <optional>

#include "grammar/json_format.h"
#include "grammar/json_number.h"
#include "grammar/json_text.h"
#include "grammar/regex.h"
#include "grammar/schema_merge.h"

namespace carpool {
namespace {

constexpr int kMaxMerges = 1000, kMaxSchemas = 20000;
constexpr size_t kMaxPath = 200;
constexpr std::array<std::string_view, 29> kKeywords = {"type",
                                                        "properties",
                                                        "required",
                                                        "additionalProperties",
                                                        "items",
                                                        "prefixItems",
                                                        "additionalItems",
                                                        "minItems",
                                                        "maxItems",
                                                        "enum",
                                                        "const",
                                                        "anyOf",
                                                        "oneOf",
                                                        "allOf",
                                                        "$ref",
                                                        "minLength",
                                                        "maxLength",
                                                        "pattern",
                                                        "format",
                                                        "minimum",
                                                        "maximum",
                                                        "exclusiveMinimum",
                                                        "exclusiveMaximum",
                                                        "multipleOf",
                                                        "nullable",
                                                        "minProperties",
                                                        "maxProperties",
                                                        "uniqueItems",
                                                        "unevaluatedProperties"};
// By the type they speak of.
constexpr std::array<std::string_view, 6> kOfObjects = {"properties",    "required",      "additionalProperties",
                                                        "minProperties", "maxProperties", "unevaluatedProperties"};
constexpr std::array<std::string_view, 6> kOfArrays = {"items",    "prefixItems", "additionalItems",
                                                       "minItems", "maxItems",    "uniqueItems"};
constexpr std::array<std::string_view, 4> kOfStrings = {"minLength", "maxLength", "pattern", "format"};
constexpr std::array<std::string_view, 5> kOfNumbers = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                        "multipleOf"};
constexpr std::array<std::string_view, 7> kTypes = {"string", "number",  "integer", "object",
                                                    "array",  "boolean", "null"};

template <size_t N>
bool listed(const std::array<std::string_view, N>& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

template <size_t N>
bool any_of_keys(const json::object& schema, const std::array<std::string_view, N>& list) {
  return std::any_of(list.begin(), list.end(), [&](std::string_view key) { return schema.contains(key); });
}

std::string below(const std::string& path, std::string_view key) {
  if (path.size() > kMaxPath) return path;
  return path.empty() ? escape(key, 60) : fmt::format("{}.{}", path, escape(key, 60));
}

bool has_type(const json::value& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (!value.is_number()) return false;
  return type == "number" || !value.is_double() || value.get_double() == std::trunc(value.get_double());
}

class Compiler {
 public:
  Compiler(GrammarBuilder& builder, const json::value& root, const std::string& path, const StringStyle& strings)
      : b_(builder), json_(builder, strings), strings_(strings), root_(root), root_path_(path) {}

  NodeId compile_all(const json::value& schema, const std::string& path) {
    const NodeId out = compile(schema, path, 0);
    while (!pending_.empty()) {
      const Pending p = pending_.front();
      pending_.pop_front();
      b_.define(p.rule, compile(*p.schema, p.path, 0));
    }
    return out;
  }

 private:
  struct Pending {
    int rule;
    const json::value* schema;
    std::string path;
  };

  [[noreturn]] static void fail(const std::string& path, const std::string& what) {
    throw GrammarError(path, false, fmt::format("{} {}", path, what));
  }
  [[noreturn]] static void refuse(const std::string& path, const std::string& what) {
    throw GrammarError(path, true, fmt::format("{} {}", path, what));
  }

  NodeId compile(const json::value& schema, const std::string& path, int depth) {
    if (depth > kMaxGrammarDepth) fail(path, fmt::format("is nested deeper than {} levels", kMaxGrammarDepth));
    if (++schemas_ > kMaxSchemas) fail(root_path_, fmt::format("needs more than {} schemas", kMaxSchemas));
    if (schema.is_bool()) return schema.get_bool() ? any() : b_.fail();
    if (!schema.is_object()) fail(path, "must be an object, true or false");
    const json::object& s = schema.get_object();
    for (const auto& [key, value] : s) {
      if (listed(kKeywords, key) || is_annotation(key)) continue;
      refuse(below(path, key), "is not a supported keyword of JSON Schema here; remove it, or see docs/server.md");
    }
    if (const json::value* nullable = s.if_contains("nullable")) {
      if (!nullable->is_bool()) fail(below(path, "nullable"), "must be true or false");
      json::object rest = s;
      rest.erase("nullable");
      const NodeId value = compile(rest, path, depth + 1);
      return nullable->get_bool() && !strings_.bare ? b_.alt({value, b_.literal("null")}) : value;
    }
    if (s.contains("$ref")) return reference(s, path, depth);
    if (s.contains("allOf")) return all_of(s, path, depth);
    if (s.contains("enum") || s.contains("const")) return constants(s, path);
    if (s.contains("anyOf") || s.contains("oneOf")) return any_of(s, path, depth);
    return typed(s, path, depth);
  }

  NodeId any() { return strings_.bare ? json_.string(0, kNoLimit) : json_.any_value(kFreeDepth); }

  // `s` without `key` and without annotations.
  static json::object rest_of(const json::object& s, std::string_view key) {
    json::object out;
    for (const auto& [name, value] : s) {
      if (name != key && !is_annotation(name)) out[name] = value;
    }
    return out;
  }

  const json::value& target(const json::value& ref, const std::string& path) const {
    const std::string at = below(path, "$ref");
    if (!ref.is_string()) fail(at, "must be a string");
    const std::string_view text = ref.get_string();
    if (!text.starts_with('#') || (text.size() > 1 && text[1] != '/')) {
      refuse(at, "must point into this schema: \"#\" or \"#/$defs/NAME\"");
    }
    json::error_code ec;
    const json::value* found = text == "#" ? &root_ : root_.find_pointer(text.substr(1), ec);
    if (!found) fail(at, "points to nothing in this schema");
    return *found;
  }

  NodeId reference(const json::object& s, const std::string& path, int depth) {
    const json::value& to = target(s.at("$ref"), path);
    const json::object rest = rest_of(s, "$ref");
    if (rest.empty()) return rule_of(to, std::string(s.at("$ref").get_string()));
    if (to.is_bool()) return to.get_bool() ? compile(rest, path, depth + 1) : b_.fail();
    if (!to.is_object()) fail(below(path, "$ref"), "points to what is no schema");
    return compile(merge_schemas(to.get_object(), rest, path, merges_), path, depth + 1);
  }

  NodeId rule_of(const json::value& schema, const std::string& pointer) {
    const auto [at, is_new] = rules_.try_emplace(&schema, 0);
    if (is_new) {
      at->second = b_.new_rule();
      pending_.push_back({at->second, &schema, fmt::format("{}{}", root_path_, escape(pointer, 80))});
    }
    return b_.rule(at->second);
  }

  const json::array& list_of(const json::object& s, const char* key, const std::string& path) {
    const json::value& value = s.at(key);
    if (!value.is_array() || value.get_array().empty()) fail(below(path, key), "must be a list that is not empty");
    return value.get_array();
  }

  NodeId all_of(const json::object& s, const std::string& path, int depth) {
    const json::array& list = list_of(s, "allOf", path);
    json::object merged = rest_of(s, "allOf");
    if (list.size() == 1 && merged.empty()) return compile(list[0], path + ".allOf[0]", depth + 1);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string at = fmt::format("{}.allOf[{}]", path, i);
      if (list[i].is_bool()) {
        if (!list[i].get_bool()) return b_.fail();
        continue;
      }
      if (!list[i].is_object()) fail(at, "must be an object, true or false");
      for (const auto& [key, value] : list[i].get_object()) {
        if (!listed(kKeywords, key) && !is_annotation(key)) refuse(below(at, key), "is not a supported keyword here");
      }
      merged = merge_schemas(merged, list[i].get_object(), at, merges_);
    }
    return compile(merged, path, depth + 1);
  }

  NodeId any_of(const json::object& s, const std::string& path, int depth) {
    if (s.contains("anyOf") && s.contains("oneOf")) refuse(path, "has both anyOf and oneOf, which is not supported");
    const char* key = s.contains("anyOf") ? "anyOf" : "oneOf";
    const json::array& list = list_of(s, key, path);
    const json::object rest = rest_of(s, key);
    std::vector<NodeId> options;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string at = fmt::format("{}.{}[{}]", path, key, i);
      if (rest.empty() || !list[i].is_object()) {
        const bool never = list[i].is_bool() && !list[i].get_bool();
        if (list[i].is_bool() && !never && !rest.empty()) {
          options.push_back(compile(rest, at, depth + 1));
        } else {
          options.push_back(compile(list[i], at, depth + 1));
        }
      } else {
        options.push_back(compile(merge_schemas(rest, list[i].get_object(), at, merges_), at, depth + 1));
      }
    }
    return b_.alt(options);
  }

  std::vector<std::string> types_of(const json::object& s, const std::string& path) {
    std::vector<std::string> out;
    const json::value* type = s.if_contains("type");
    if (!type) return out;
    const json::array list = type->is_array() ? type->get_array() : json::array{*type};
    for (const json::value& name : list) {
      if (!name.is_string() || !listed(kTypes, std::string_view(name.get_string()))) {
        fail(below(path, "type"), "must be string, number, integer, object, array, boolean, null, or a list of these");
      }
      out.emplace_back(name.get_string());
    }
    return out;
  }

  NodeId constants(const json::object& s, const std::string& path) {
    const std::vector<std::string> types = types_of(s, path);
    for (const auto& [key, value] : s) {
      if (key != "enum" && key != "const" && key != "type" && !is_annotation(key)) {
        refuse(below(path, key), "together with enum or const is not supported");
      }
    }
    const json::value* one = s.if_contains("const");
    const json::value* many = s.if_contains("enum");
    if (many && !many->is_array()) fail(below(path, "enum"), "must be a list");
    const auto allowed = [&](const json::value& value) {
      const auto fits = [&](const std::string& type) { return has_type(value, type); };
      return s.contains("type") == false || std::any_of(types.begin(), types.end(), fits);
    };
    std::vector<std::string> texts;
    const auto add = [&](const json::value& value) {
      if (!strings_.bare) {
        texts.push_back(json_.spelled(value));
      } else if (value.is_string() && value.get_string().find(strings_.without) == std::string::npos) {
        texts.emplace_back(value.get_string());
      }
    };
    if (many) {
      for (const json::value& value : many->get_array()) {
        if (allowed(value) && (!one || *one == value)) add(value);
      }
    } else if (allowed(*one)) {
      add(*one);
    }
    return b_.one_of(std::move(texts));
  }

  NodeId typed(const json::object& s, const std::string& path, int depth) {
    std::vector<std::string> types = types_of(s, path);
    if (!s.contains("type")) {
      if (any_of_keys(s, kOfObjects)) types.emplace_back("object");
      if (any_of_keys(s, kOfArrays)) types.emplace_back("array");
      if (any_of_keys(s, kOfStrings)) types.emplace_back("string");
      if (any_of_keys(s, kOfNumbers)) types.emplace_back("number");
      if (types.empty()) return any();
    }
    if (strings_.bare) std::erase_if(types, [](const std::string& type) { return type != "string"; });
    std::vector<NodeId> options;
    for (const std::string& type : types) {
      if (type == "null") {
        options.push_back(b_.literal("null"));
      } else if (type == "boolean") {
        options.push_back(b_.one_of({"true", "false"}));
      } else if (type == "string") {
        options.push_back(string(s, path));
      } else if (type == "object") {
        options.push_back(object(s, path, depth));
      } else if (type == "array") {
        options.push_back(array(s, path, depth));
      } else {
        options.push_back(number(s, path, type == "integer"));
      }
    }
    return b_.alt(options);
  }

  // A count of at least 0; what is larger than kMaxRepetitions is refused.
  std::optional<int> count(const json::object& s, const char* key, const std::string& path) {
    const json::value* value = s.if_contains(key);
    if (!value) return std::nullopt;
    json::error_code ec;
    const auto n = value->is_number() ? value->to_number<int64_t>(ec) : -1;
    if (ec || n < 0 || n > kMaxRepetitions) {
      fail(below(path, key), fmt::format("must be an integer from 0 to {}", kMaxRepetitions));
    }
    return static_cast<int>(n);
  }

  NodeId string(const json::object& s, const std::string& path) {
    const int min = count(s, "minLength", path).value_or(0), max = count(s, "maxLength", path).value_or(kNoLimit);
    const json::value *pattern = s.if_contains("pattern"), *format = s.if_contains("format");
    if (pattern && format) refuse(below(path, "pattern"), "together with format is not supported");
    if (max != kNoLimit && max < min) return b_.fail();
    const NodeId quote = strings_.bare ? b_.empty() : b_.literal("\"");
    if (pattern) {
      const std::string at = below(path, "pattern");
      if (!pattern->is_string()) fail(at, "must be a string");
      return b_.seq({quote, regex_in_string(b_, pattern->get_string(), {min, max}, strings_.spelling(), at), quote});
    }
    if (!format) return json_.string(min, max);
    const std::string at = below(path, "format");
    if (!format->is_string()) fail(at, "must be a string");
    const std::optional<NodeId> body = format_node(b_, format->get_string());
    if (!body) refuse(at, fmt::format("must be one of {}; or leave it out", kFormats));
    if (min > 1 || (max != kNoLimit && max < 350)) refuse(at, "together with minLength or maxLength is not supported");
    return b_.seq({quote, *body, quote});
  }

  std::optional<Decimal> bound(const json::object& s, const char* key, const std::string& path) {
    const json::value* value = s.if_contains(key);
    if (!value) return std::nullopt;
    if (!value->is_number()) fail(below(path, key), "must be a number");
    std::optional<Decimal> out = read_decimal(json_text(*value));
    if (!out) refuse(below(path, key), "has more than 30 digits on one side of its point, which is not supported");
    return out;
  }

  NodeId number(const json::object& s, const std::string& path, bool integer) {
    if (const json::value* step = s.if_contains("multipleOf")) {
      if (!integer || !step->is_number() || step->to_number<double>() != 1) {
        refuse(below(path, "multipleOf"), "other than 1 for integers is not supported");
      }
    }
    NumberRange range;
    range.min = bound(s, "minimum", path);
    range.max = bound(s, "maximum", path);
    const auto value = [&](const char* key) { return s.at(key).to_number<double>(); };
    if (const auto open = bound(s, "exclusiveMinimum", path);
        open && (!range.min || value("exclusiveMinimum") >= value("minimum"))) {
      range.min = open;
      range.open_min = true;
    }
    if (const auto open = bound(s, "exclusiveMaximum", path);
        open && (!range.max || value("exclusiveMaximum") <= value("maximum"))) {
      range.max = open;
      range.open_max = true;
    }
    return integer ? integer_node(b_, range) : number_node(b_, range);
  }

  NodeId array(const json::object& s, const std::string& path, int depth) {
    if (const json::value* unique = s.if_contains("uniqueItems"); unique && *unique != json::value(false)) {
      refuse(below(path, "uniqueItems"), "is not supported");
    }
    const int min = count(s, "minItems", path).value_or(0), max = count(s, "maxItems", path).value_or(kNoLimit);
    if (max != kNoLimit && max < min) return b_.fail();
    const json::value *items = s.if_contains("items"), *first = s.if_contains("prefixItems");
    std::string first_path = below(path, "prefixItems"), rest_path = below(path, "items");
    if (items && items->is_array() && !first) {  // as it was spelled until 2019
      first = items;
      first_path = rest_path;
      items = s.if_contains("additionalItems");
      rest_path = below(path, "additionalItems");
    }
    std::vector<NodeId> prefix;
    if (first) {
      if (!first->is_array()) fail(first_path, "must be a list");
      for (const json::value& item : first->get_array()) {
        prefix.push_back(compile(item, fmt::format("{}[{}]", first_path, prefix.size()), depth + 1));
      }
    }
    const int n = static_cast<int>(prefix.size());
    NodeId rest = b_.fail();  // where nothing is said of further items they are left out, unless they are asked for
    if (items) {
      rest = compile(*items, rest_path, depth + 1);
    } else if (n == 0 || min > n) {
      rest = json_.any_value(kFreeDepth);
    }
    if (n == 0) return json_.enclosed_list("[", rest, min, max, "]");
    const NodeId end = b_.literal("]"), comma = b_.seq({b_.literal(","), json_.space()});
    const NodeId more = max != kNoLimit && max <= n
                            ? b_.empty()
                            : b_.repeat(b_.seq({comma, rest}), std::max(min - n, 0), max == kNoLimit ? max : max - n);
    NodeId tail = max != kNoLimit && max < n ? b_.fail() : b_.seq({more, json_.space(), end});  // after all of prefix
    for (int i = n - 1; i > 0; --i) {                                                           // after i of them
      const NodeId stop = i >= min && (max == kNoLimit || i <= max) ? b_.seq({json_.space(), end}) : b_.fail();
      const NodeId go_on =
          max == kNoLimit || i < max ? b_.seq({comma, prefix[static_cast<size_t>(i)], tail}) : b_.fail();
      tail = b_.alt({stop, go_on});
    }
    const NodeId some = max == 0 ? b_.fail() : b_.seq({prefix[0], tail});
    return b_.seq({b_.literal("["), json_.space(), b_.alt({min == 0 ? end : b_.fail(), some})});
  }

  struct Member {
    std::string name;
    NodeId value = 0;
    bool required = false;
  };

  std::vector<Member> members_of(const json::object& s, const std::string& path, int depth) {
    std::vector<Member> members;
    std::map<std::string, size_t, std::less<>> index;
    if (const json::value* properties = s.if_contains("properties")) {
      const std::string at = below(path, "properties");
      if (!properties->is_object()) fail(at, "must be an object");
      for (const auto& [key, value] : properties->get_object()) {
        index[std::string(key)] = members.size();
        members.push_back({std::string(key), compile(value, below(at, key), depth + 1), false});
      }
    }
    const json::value* required = s.if_contains("required");
    if (!required) return members;
    const std::string at = below(path, "required");
    if (!required->is_array()) fail(at, "must be a list");
    for (const json::value& name : required->get_array()) {
      if (!name.is_string()) fail(at, "must be a list of strings");
      const auto [found, is_new] = index.try_emplace(std::string(name.get_string()), members.size());
      if (is_new) {  // nothing is said of its value but what holds for all further members
        const json::value* further = additional(s);
        members.push_back({found->first, compile(further ? *further : json::value(true), at, depth + 1), false});
      }
      members[found->second].required = true;
    }
    return members;
  }

  static const json::value* additional(const json::object& s) {
    const json::value* out = s.if_contains("additionalProperties");
    return out ? out : s.if_contains("unevaluatedProperties");
  }

  NodeId object(const json::object& s, const std::string& path, int depth) {
    const std::vector<Member> members = members_of(s, path, depth);
    const int min = count(s, "minProperties", path).value_or(0);
    const int max = count(s, "maxProperties", path).value_or(kNoLimit);
    const json::value* further = additional(s);
    NodeId extra = b_.fail();
    if (further ? *further != json::value(false) : members.empty() && !s.contains("properties")) {
      std::vector<std::string> names;
      for (const Member& m : members) names.push_back(m.name);
      const NodeId value =
          further ? compile(*further, below(path, "additionalProperties"), depth + 1) : json_.any_value(kFreeDepth - 1);
      extra = b_.seq({json_.other_name(names), value});
    }
    if (members.empty()) {
      if (min > 1) refuse(below(path, "minProperties"), "above 1 is not supported, for names may repeat");
      return json_.enclosed_list("{", extra, min, max, "}");
    }
    const auto needed = std::count_if(members.begin(), members.end(), [](const Member& m) { return m.required; });
    if (min > needed) refuse(below(path, "minProperties"), "above the number of required members is not supported");
    if (max != kNoLimit && (extra != b_.fail() || static_cast<size_t>(max) < members.size())) {
      refuse(below(path, "maxProperties"), "below the number of declared members is not supported");
    }
    return ordered(members, extra);
  }

  // The members in their order, optional ones or not, then any number of further ones.
  NodeId ordered(const std::vector<Member>& members, NodeId extra) {
    const NodeId end = b_.literal("}"), comma = b_.seq({b_.literal(","), json_.space()});
    const NodeId more = b_.repeat(b_.seq({comma, extra}), 0, kNoLimit);
    // What may follow when those before were written (`rest`), and when none was (`first`).
    NodeId rest = b_.seq({more, json_.space(), end});
    NodeId first = b_.alt({end, b_.seq({extra, rest})});
    for (auto m = members.rbegin(); m != members.rend(); ++m) {
      const NodeId pair = b_.seq({json_.name(m->name), m->value, rest});
      const NodeId next = b_.seq({comma, pair});
      first = m->required ? pair : b_.alt({pair, first});
      rest = m->required ? next : b_.alt({next, rest});
    }
    return b_.seq({b_.literal("{"), json_.space(), first});
  }

  GrammarBuilder& b_;
  JsonNodes json_;
  const StringStyle strings_;
  const json::value& root_;
  const std::string root_path_;
  std::map<const json::value*, int> rules_;
  std::deque<Pending> pending_;
  int merges_ = kMaxMerges, schemas_ = 0;
};

// Errors that know no place happened somewhere in `path`.
template <class F>
auto at_path(const std::string& path, F make) {
  try {
    return make();
  } catch (const GrammarError& error) {
    if (!error.path().empty()) throw;
    throw GrammarError(path, error.unsupported(), fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace

NodeId json_schema_node(GrammarBuilder& builder, const json::value& schema, const std::string& path) {
  return json_schema_node(builder, schema, path, {});
}

NodeId json_schema_node(GrammarBuilder& builder, const json::value& schema, const std::string& path,
                        const SchemaPlace& place) {
  if (json::serialize(schema).size() > kMaxGrammarBytes) {
    throw GrammarError(path, false, fmt::format("{} has more than {} bytes", path, kMaxGrammarBytes));
  }
  const json::value& root = place.root ? *place.root : schema;
  const std::string& root_path = place.root ? place.root_path : path;
  return at_path(path, [&] { return Compiler(builder, root, root_path, place.strings).compile_all(schema, path); });
}

NodeId json_value_node(GrammarBuilder& builder) { return JsonNodes(builder).any_value(kFreeDepth); }
NodeId json_object_node(GrammarBuilder& builder) { return JsonNodes(builder).any_object(kFreeDepth); }
NodeId json_space_node(GrammarBuilder& builder) { return JsonNodes(builder).space(); }

}  // namespace carpool
