// See tagged_arguments.h.
#include "grammar/tagged_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "grammar/json_schema.h"
#include "grammar/schema_merge.h"
#include "text/parsers/argument_types.h"

namespace carpool {
namespace {

constexpr int kMaxMerges = 1000;
constexpr size_t kMaxForms = 32;  // of one function's arguments, by anyOf and oneOf

bool names(const json::value* list, std::string_view word) {
  if (!list || !list->is_array()) return false;
  const json::array& words = list->get_array();
  return std::any_of(words.begin(), words.end(),
                     [&](const json::value& w) { return w.is_string() && w.get_string() == word; });
}

// The closing tag without the line breaks that a format sets around it.
std::string_view closing_tag(const TaggedArguments& tags) {
  std::string_view tag = tags.value_close;
  while (tag.starts_with('\n')) tag.remove_prefix(1);
  while (tag.ends_with('\n')) tag.remove_suffix(1);
  return tag;
}

// Whether a reader finds this key again.
bool can_be_written(std::string_view key) {
  return !key.empty() && key.find_first_of("<>\"\r\n") == std::string_view::npos && key.front() != ' ' &&
         key.back() != ' ' && key.front() != '\t' && key.back() != '\t';
}

class Arguments {
 public:
  Arguments(GrammarBuilder& b, const json::value& schema, const TaggedArguments& tags, bool lenient,
            const std::string& path)
      : b_(b), schema_(schema), tags_(tags), lenient_(lenient), path_(path), close_(closing_tag(tags)) {}

  NodeId node() {
    const json::object* object = schema_.if_object();
    if (!object) return b_.empty();
    std::vector<json::object> forms;
    try {
      find_forms(*object, 0, forms);
    } catch (const GrammarError&) {
      if (!lenient_) throw;
      return anything();
    }
    std::vector<NodeId> options;
    for (const json::object& form : forms) options.push_back(members(form));
    return b_.alt(options);
  }

 private:
  [[noreturn]] void refuse(std::string_view key, const std::string& what) const {
    const std::string at = fmt::format("{}.{}", path_, escape(key, 60));
    throw GrammarError(at, true, fmt::format("{} {} for arguments between tags, as this model writes them", at, what));
  }

  // The objects that the schema is one of, without $ref, allOf, anyOf and oneOf at their top.
  void find_forms(const json::object& schema, int depth, std::vector<json::object>& forms) {
    if (depth > kMaxGrammarDepth || forms.size() >= kMaxForms) refuse("$ref", "has too many forms");
    for (const char* key : {"$ref", "allOf", "anyOf", "oneOf"}) {
      const json::value* value = schema.if_contains(key);
      if (!value) continue;
      json::object rest = schema;
      rest.erase(key);
      const bool one_of = key[0] == 'a' ? key[1] == 'n' : key[0] == 'o';
      std::vector<const json::value*> parts;
      if (key[0] == '$') {
        parts.push_back(target(*value));
      } else if (value->is_array()) {
        for (const json::value& each : value->get_array()) parts.push_back(&each);
      }
      if (parts.empty()) refuse(key, "must be a list that is not empty");
      for (const json::value* part : parts) {
        if (!part->is_object()) refuse(key, "must be of objects");
        json::object merged = merge_schemas(rest, part->get_object(), path_, merges_);
        if (one_of) {
          find_forms(merged, depth + 1, forms);
        } else {
          rest = std::move(merged);
        }
      }
      if (!one_of) find_forms(rest, depth + 1, forms);
      return;
    }
    forms.push_back(schema);
  }

  const json::value* target(const json::value& ref) const {
    const std::string_view text = ref.is_string() ? std::string_view(ref.get_string()) : "";
    json::error_code error;
    const json::value* found = text.starts_with("#/") ? schema_.find_pointer(text.substr(1), error) : nullptr;
    if (!found) refuse("$ref", "must point to an object in this schema");
    return found;
  }

  // What is strict is kept, or refused.
  void check(const json::object& form) const {
    for (const auto& [key, value] : form) {
      const bool kept = key == "properties" || key == "required" || key == "additionalProperties" ||
                        key == "unevaluatedProperties" || key == "type" || key == "nullable" || is_annotation(key);
      if (!kept) refuse(key, "is not supported");
    }
    if (const json::value* type = form.if_contains("type");
        type && *type != json::value("object") && !names(type, "object"))
      refuse("type", "must be object");
    const json::value* properties = form.if_contains("properties");
    const json::value* required = form.if_contains("required");
    if (!required) return;
    if (!required->is_array()) refuse("required", "must be a list");
    for (const json::value& name : required->get_array()) {
      const bool declared = properties && properties->is_object() && name.is_string() &&
                            properties->get_object().contains(name.get_string());
      if (!declared) refuse("required", "must name declared properties");
      if (!can_be_written(name.get_string())) refuse("required", "must name properties that stand between tags");
    }
  }

  NodeId members(const json::object& form) {
    if (!lenient_) check(form);
    const json::value* properties = form.if_contains("properties");
    if (!properties || !properties->is_object()) return b_.empty();
    std::vector<NodeId> members;
    for (const auto& [key, property] : properties->get_object()) {
      if (!can_be_written(key)) continue;
      const NodeId member = b_.seq({b_.special(tags_.key_open), b_.literal(key), b_.special(tags_.value_open),
                                    value(key, property), b_.special(tags_.value_close)});
      members.push_back(names(form.if_contains("required"), key) ? member : b_.optional(member));
    }
    return b_.seq(members);
  }

  NodeId value(std::string_view key, const json::value& property) {
    SchemaPlace place{&schema_, path_, {is_bare_text(argument_types(schema_.get_object(), key)), close_}};
    try {
      return json_schema_node(b_, property, fmt::format("{}.properties.{}", path_, escape(key, 60)), place);
    } catch (const GrammarError&) {
      if (!lenient_) throw;
    }
    return any_text();
  }

  NodeId any_text() { return b_.text_without(std::span(&close_, 1)); }

  // Any members with names of letters, digits, - and _.
  NodeId anything() {
    ByteSet word;
    for (int c = 'a'; c <= 'z'; ++c) word.set(static_cast<size_t>(c)).set(static_cast<size_t>(c - 'a' + 'A'));
    for (int c = '0'; c <= '9'; ++c) word.set(static_cast<size_t>(c));
    word.set('-').set('_');
    const NodeId key = b_.repeat(b_.bytes(word), 1, 64);
    return b_.repeat(b_.seq({b_.special(tags_.key_open), key, b_.special(tags_.value_open), any_text(),
                             b_.special(tags_.value_close)}),
                     0, kNoLimit);
  }

  GrammarBuilder& b_;
  const json::value& schema_;
  const TaggedArguments& tags_;
  const bool lenient_;
  const std::string& path_;
  const std::string close_;
  int merges_ = kMaxMerges;
};

}  // namespace

NodeId tagged_arguments_node(GrammarBuilder& b, const json::value& schema, const TaggedArguments& tags, bool lenient,
                             const std::string& path) {
  return Arguments(b, schema, tags, lenient, path).node();
}

}  // namespace carpool
