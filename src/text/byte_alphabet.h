// The byte-level alphabet: how tokenizer.json spells arbitrary bytes as printable characters.
//
// Bytes that are printable Latin-1 characters stand for themselves; the 68 others, in byte order, get the code
// points 0x100, 0x101 and so on (a space is U+0120). Published with GPT-2 (github.com/openai/gpt-2) and used by
// every byte-level BPE since. Inside carpool tokens are raw bytes; only files are spelled in this alphabet.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace carpool {

class ByteAlphabet {
 public:
  ByteAlphabet();
  // The character (as UTF-8) that stands for `byte`.
  const std::string& spelling(unsigned char byte) const { return spellings_[byte]; }
  // The bytes a token of the file stands for; nothing when one of its characters is outside the alphabet.
  std::optional<std::string> bytes_of(std::string_view spelled) const;

 private:
  static constexpr char32_t kEnd = 0x100 + 68;  // one above the largest code point in use
  std::array<std::string, 256> spellings_;
  std::array<int, kEnd> byte_of_;  // code point -> byte, -1 where unused
};

}  // namespace carpool
