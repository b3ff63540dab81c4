// See tagged_arguments.h.
#include "grammar/tagged_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "grammar/json_schema.h"

namespace carpool {
namespace {

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

bool is_string(const json::object& schema) {
  const json::value* type = schema.if_contains("type");
  return type && type->is_string() && type->get_string() == "string";
}

// Of a string: one of the words of an enum, or any text before the closing tag.
NodeId text_node(GrammarBuilder& b, const json::object& schema, std::string_view close) {
  std::vector<std::string> words;
  if (const json::value* list = schema.if_contains("enum"); list && list->is_array()) {
    for (const json::value& word : list->get_array()) {
      if (word.is_string() && word.get_string().find(close) == std::string::npos) words.emplace_back(word.get_string());
    }
  }
  return words.empty() ? b.text_without(std::vector<std::string>{std::string(close)}) : b.one_of(std::move(words));
}

NodeId value_node(GrammarBuilder& b, const json::value& schema, std::string_view close, bool lenient,
                  const std::string& path) {
  if (const json::object* object = schema.if_object(); object && is_string(*object))
    return text_node(b, *object, close);
  try {
    return json_schema_node(b, schema, path);
  } catch (const GrammarError&) {
    if (!lenient) throw;
  }
  return b.text_without(std::vector<std::string>{std::string(close)});
}

}  // namespace

NodeId tagged_arguments_node(GrammarBuilder& b, const json::value& schema, const TaggedArguments& tags, bool lenient,
                             const std::string& path) {
  const json::object* object = schema.if_object();
  const json::value* properties = object ? object->if_contains("properties") : nullptr;
  if (!properties || !properties->is_object()) return b.empty();
  std::vector<NodeId> members;
  for (const auto& [key, property] : properties->get_object()) {
    const std::string where = fmt::format("{}.properties.{}", path, std::string_view(key));
    const NodeId value = value_node(b, property, closing_tag(tags), lenient, where);
    const NodeId member = b.seq(
        {b.special(tags.key_open), b.literal(key), b.special(tags.value_open), value, b.special(tags.value_close)});
    members.push_back(names(object->if_contains("required"), key) ? member : b.optional(member));
  }
  return members.empty() ? b.empty() : b.seq(members);
}

}  // namespace carpool
