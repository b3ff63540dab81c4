// See tokenizer_config.h.
#include "text/tokenizer_config.h"

#include <fmt/format.h>

#include "base/json.h"

namespace carpool {
namespace {

// A token is a string, or an object with its "content".
std::optional<std::string> load_token(const JsonObject& root, std::string_view key) {
  if (!root.has(key)) return std::nullopt;
  if (root.value(key).is_object()) return root.object(key).string("content");
  return root.string(key);
}

// A template is a string, or a list of {"name": ..., "template": ...}.
std::optional<std::string> load_template(const JsonObject& root) {
  constexpr std::string_view kKey = "chat_template";
  if (!root.has(kKey)) return std::nullopt;
  if (!root.value(kKey).is_array()) return root.string(kKey);
  const json::array& list = root.array(kKey);
  std::optional<std::string> found;
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonObject item(list[i], fmt::format("{}: \"{}\"[{}]", root.where(), kKey, i));
    std::string text = item.string("template");
    if (item.string("name") == "default") found = std::move(text);
  }
  return found;
}

}  // namespace

TokenizerConfig TokenizerConfig::load(const std::string& path) { return parse(read_text_file(path, 16 << 20), path); }

TokenizerConfig TokenizerConfig::parse(std::string_view text, const std::string& where) {
  const json::value value = parse_json(text, where);
  const JsonObject root(value, where);
  TokenizerConfig config;
  config.eos_token = load_token(root, "eos_token");
  config.bos_token = load_token(root, "bos_token");
  config.chat_template = load_template(root);
  return config;
}

}  // namespace carpool
