// Spelling a made-up vocabulary as a tokenizer.json would. See dummy_tokenizer.h.
#include "text/dummy_tokenizer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "text/byte_alphabet.h"

namespace carpool {

Tokenizer make_dummy_tokenizer(int vocab) {
  constexpr int kMost = 1 << 22;
  if (vocab <= kDummyEndToken || vocab > kMost) {
    throw Error(ErrorKind::kConfig,
                fmt::format("a made-up vocabulary has {} to {} tokens, not {}", kDummyEndToken + 1, kMost, vocab));
  }
  const ByteAlphabet alphabet;
  json::object ids;
  ids.reserve(static_cast<size_t>(vocab));
  for (int b = 0; b < 256; ++b) ids[alphabet.spelling(static_cast<unsigned char>(b))] = b;
  for (int id = kDummyEndToken + 1; id < vocab; ++id) ids[fmt::format("{}t{}", alphabet.spelling(' '), id)] = id;
  const json::object end{{"id", kDummyEndToken}, {"content", "<|end|>"}, {"special", true},    {"single_word", false},
                         {"lstrip", false},      {"rstrip", false},      {"normalized", false}};
  const json::object byte_level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json::object root{{"model", json::object{{"type", "BPE"}, {"vocab", ids}, {"merges", json::array{}}}},
                          {"pre_tokenizer", byte_level},
                          {"decoder", json::object{{"type", "ByteLevel"}}},
                          {"added_tokens", json::array{end}}};
  return Tokenizer::from_json(root, "the made-up tokenizer");
}

}  // namespace carpool
