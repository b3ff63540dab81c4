// Cuts a template into tokens, with Jinja's rules for the white space around tags.
//
// trim_blocks and lstrip_blocks are on, as in transformers: the line end after a block tag or comment goes, and so do
// the blanks before one that stands first on its line. "-" and "+" in tags override this. Grammar: parser.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace carpool::jinja {

enum class TokenKind {
  kText,
  kBlockBegin,
  kBlockEnd,
  kOutputBegin,
  kOutputEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  std::string text;  // of a string: its value
  int line;
};

// Throws Error{kMalformed} with the line.
std::vector<Token> tokenize(std::string_view source);

[[noreturn]] void fail_at(int line, const std::string& what);

}  // namespace carpool::jinja
