// Byte-pair encoding of one word: repeatedly join the neighbouring pair that training joined first.
//
// A word starts as its bytes (byte-level vocabularies) or as its characters, of which one that is no token becomes its
// bytes, or else the unknown token, or nothing. Owns the vocabulary and
// the merge table. A heap of candidate joins over a linked list of symbols makes a word of n bytes cost n log n, so a
// prompt of a million equal letters is no attack. Cutting text into words is pre_tokenizer.h; added tokens never come
// here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/string_map.h"

namespace carpool {

inline constexpr int kMaxTokens = 1 << 22;

class BpeModel {
 public:
  // Reads the "model" object of a tokenizer.json. Throws Error{kMalformed} with the key path: wrong types, ids
  // that are negative, equal or at least kMaxTokens, a byte without a token, a merge of or into unknown tokens.
  // In place of "merges" there may be "ranks", by id and null for none, which is carpool's own: see rank_merges.h.
  static BpeModel load(const JsonObject& model, bool byte_level);

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
    uint64_t lookups = 0;  // of pairs in the merge table, all words together: the measure of the work
  };

  // Appends the ids of `word` (raw bytes or text, not empty, below 2 GiB) to `out`.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int>& out) const;

 private:
  struct Merge {
    uint64_t pair = ~uint64_t{0};  // left id in the high half, right id in the low half; all ones: free slot
    uint32_t rank = 0;
    int id = 0;
  };

  void load_vocab(const JsonObject& model);
  void load_bytes(const JsonObject& model);
  void load_characters(const JsonObject& model);
  void load_merges(const JsonObject& model);
  void load_ranks(const JsonObject& model);
  Merge& slot(uint64_t pair);
  const Merge* find(int left, int right) const;
  void push_join(Scratch& scratch, int position) const;
  void start(std::string_view word, std::vector<Scratch::Symbol>& symbols) const;
  void join_all(Scratch& scratch) const;

  StringMap<int> vocab_;
  bool byte_level_ = true;
  std::array<int, 256> byte_ids_{};   // -1 for a byte that has no token and disappears
  bool byte_fallback_ = false;        // of characters: those that are no token become bytes
  bool fuse_unknown_ = false;         // of characters: a run of unknown ones becomes one unknown token
  int unknown_ = -1;                  // of characters; -1: unknown ones disappear
  std::array<int, 128> ascii_ids_{};  // of characters; -1 where there is none
  std::vector<Merge> merges_;         // open addressing, a power of two at least twice the count
  StringMap<int> whole_words_;        // raw bytes or text -> id, filled only when the file says ignore_merges
};

}  // namespace carpool
