#include "server/prompt.h"

#include <fmt/format.h>

#include "server/fields.h"
#include "server/parameters.h"

namespace carpool {
namespace {

void check_count(const json::array& list, const std::string& path) {
  if (list.empty()) throw invalid_value(path, fmt::format("{} is an empty list", path));
  if (list.size() > kMaxPrompts) throw too_many_items(path, list.size(), kMaxPrompts);
}

Prompt of_text(const json::value& value, const std::string& path) {
  if (!value.is_string()) throw invalid_value(path, fmt::format("{} must be a string", path));
  return {true, std::string(value.get_string()), {}};
}

Prompt of_ids(const json::value& value, const std::string& path, int vocab) {
  if (!value.is_array()) throw invalid_value(path, fmt::format("{} must be a list of token ids", path));
  if (value.get_array().empty()) throw invalid_value(path, fmt::format("{} has no tokens", path));
  return {false, "", read_token_ids(value.get_array(), path, vocab)};
}

template <typename F>
Prompts each(const json::array& list, const std::string& path, F read) {
  check_count(list, path);
  Prompts prompts{{}, true};
  for (const json::value& value : list) {
    prompts.items.push_back(read(value, fmt::format("{}[{}]", path, prompts.items.size())));
  }
  return prompts;
}

}  // namespace

Prompts read_texts(const json::value& value, const std::string& path) {
  if (!value.is_array()) return {{of_text(value, path)}, false};
  return each(value.get_array(), path, of_text);
}

Prompts read_id_lists(const json::value& value, const std::string& path, int vocab) {
  const json::array* list = value.if_array();
  if (!list || list->empty() || !list->front().is_array()) return {{of_ids(value, path, vocab)}, false};
  return each(*list, path, [&](const json::value& v, const std::string& p) { return of_ids(v, p, vocab); });
}

Prompts read_prompts(const json::value& value, const std::string& path, int vocab) {
  const json::array* list = value.if_array();
  if (value.is_string() || (list && !list->empty() && list->front().is_string())) return read_texts(value, path);
  if (!list) {
    throw invalid_value(path, fmt::format("{} must be a string, a list of strings, or lists of token ids", path));
  }
  return read_id_lists(value, path, vocab);
}

void encode(const Tokenizer& tokenizer, bool add_special, const std::string& path, Prompt& prompt) {
  if (prompt.is_text) {
    try {
      prompt.ids = tokenizer.encode(prompt.text, add_special, /*parse_special=*/false);
    } catch (const Error&) {  // its sentence may quote the text
      throw invalid_value(path, fmt::format("{} cannot be encoded: the tokenizer's expression takes too long", path));
    }
  }
  if (prompt.ids.empty()) throw invalid_value(path, fmt::format("{} has no tokens", path));
}

}  // namespace carpool
