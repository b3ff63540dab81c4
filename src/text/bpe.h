// Byte-pair encoding of one word: repeatedly join the neighbouring pair that training joined first.
//
// Owns the vocabulary and the merge table. A heap of candidate joins over a linked list of symbols makes a word of
// n bytes cost n log n, so a prompt of a million equal letters is no attack. Cutting text into words is
// pre_tokenizer.h; added tokens never come here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "text/byte_alphabet.h"

namespace carpool {

inline constexpr int kMaxTokens = 1 << 22;

// Lets a map of strings be searched with a string_view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
template <class T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

class BpeModel {
 public:
  // Reads the "model" object of a tokenizer.json. Throws Error{kMalformed} with the key path: wrong types, ids
  // that are negative, equal or at least kMaxTokens, a byte without a token, a merge of or into unknown tokens.
  static BpeModel load(const JsonObject& model, const ByteAlphabet& alphabet);

  const StringMap<int>& vocab() const { return vocab_; }  // by the file's spelling

  // Buffers reused from word to word; one per thread.
  struct Scratch {
    struct Symbol {
      int id;
      int previous, next;  // positions, -1 at the ends
    };
    struct Join {
      uint64_t order;  // rank above position: the heap's key
      int id;          // what the pair becomes
    };
    std::vector<Symbol> symbols;
    std::vector<Join> heap;
  };

  // Appends the ids of `word` (raw bytes, not empty, below 2 GiB) to `out`.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int>& out) const;

 private:
  struct Merge {
    uint64_t pair = ~uint64_t{0};  // left id in the high half, right id in the low half; all ones: free slot
    uint32_t rank = 0;
    int id = 0;
  };

  void load_vocab(const JsonObject& model, const ByteAlphabet& alphabet);
  void load_merges(const JsonObject& model);
  Merge& slot(uint64_t pair);
  const Merge* find(int left, int right) const;
  void push_join(Scratch& scratch, int position) const;

  StringMap<int> vocab_;
  std::array<int, 256> byte_ids_{};
  std::vector<Merge> merges_;   // open addressing, a power of two at least twice the count
  StringMap<int> whole_words_;  // raw bytes -> id, filled only when the file says ignore_merges
};

}  // namespace carpool
