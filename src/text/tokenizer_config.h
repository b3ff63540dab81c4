// The parts of tokenizer_config.json that serving needs: which tokens begin and end a text, and the template.
//
// Tokens are given as strings, to be looked up in the Tokenizer by the caller. Everything else in the file
// concerns Python classes and is ignored.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace carpool {

struct TokenizerConfig {
  std::optional<std::string> eos_token, bos_token;
  std::optional<std::string> chat_template;  // of several named ones, "default"

  // Throws Error: kMissing when there is no such file, kMalformed with the key path for a wrong type.
  static TokenizerConfig load(const std::string& path);
  static TokenizerConfig parse(std::string_view text, const std::string& where);
};

}  // namespace carpool
