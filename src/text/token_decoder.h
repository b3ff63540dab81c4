// The decoder of a tokenizer.json: which bytes a token of the vocabulary stands for, and what a text sheds at its
// start.
//
// Two kinds. Byte-level vocabularies spell bytes (byte_alphabet.h). Character vocabularies (SentencePiece) spell text
// with U+2581 for a space and <0x0A> for single bytes, and begin texts with a space of their own, which decoding a
// whole text takes away again. Everything else is refused by its key path.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/byte_alphabet.h"

namespace carpool {

// The byte that a token spelled <0x00> to <0xFF> stands for, or -1.
int spelled_byte(std::string_view token);
// <0x0A> for 10.
std::string byte_spelling(unsigned char byte);

class TokenDecoder {
 public:
  // `root` is the object that holds "decoder"; `byte_level` says of which kind its vocabulary is.
  static TokenDecoder load(const JsonObject& root, bool byte_level);

  std::string token_bytes(std::string_view token) const;  // of a token of the vocabulary
  std::string added_bytes(std::string_view token) const;  // of an added token
  // What is left of a whole decoded text.
  std::string_view strip(std::string_view text) const;

 private:
  void load_characters(const JsonObject& decoder);

  bool byte_level_ = true, byte_fallback_ = false;
  ByteAlphabet alphabet_;
  std::vector<std::pair<std::string, std::string>> replacements_;
  std::string strip_;      // a character that a text may begin with in vain
  int64_t strip_max_ = 0;  // how often
};

}  // namespace carpool
