// UTF-8, one unit at a time: the one place that decides what a byte sequence means.
//
// Owns: classifying the next bytes as a character, as broken, or as cut short; replacing what is broken by
// U+FFFD (one for each maximal broken part, as Python's errors="replace" does); code points in and out.
// Used on prompt text before encoding and on token bytes after decoding. Normalization is in normalize.h.
#pragma once

#include <string>
#include <string_view>

namespace carpool {

enum class Utf8Kind {
  kValid,       // one character
  kInvalid,     // the longest prefix that no character can start with; becomes one U+FFFD
  kIncomplete,  // the text ends inside a character that more bytes could finish
};
struct Utf8Unit {
  Utf8Kind kind;
  size_t length;  // bytes, at least 1
};

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The unit at the front of `rest`, which must not be empty.
Utf8Unit next_utf8(std::string_view rest);

// Copies `text` with every broken part replaced by U+FFFD. The result is always valid UTF-8.
std::string sanitize_utf8(std::string_view text);
bool is_valid_utf8(std::string_view text);

// The code point at `pos` of valid UTF-8; moves `pos` behind it.
char32_t read_code_point(std::string_view text, size_t& pos);
// Appends one code point (not a surrogate, at most 0x10FFFF).
void append_code_point(char32_t c, std::string& out);

}  // namespace carpool
