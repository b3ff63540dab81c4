// Which tokens may come next, so that the text stays within a grammar.
//
// Owns Constraint, a grammar joined with a vocabulary, which requests share, and ConstraintCursor, where one text
// stands. A token may come when all its bytes may; the model's end tokens where the text may end. It fails closed:
// where a limit of work is passed, or no token of the vocabulary can go on, there is no mask, and the request must end.
// Masks are found by walking the vocabulary's tree beside the grammar and kept per state. Read next: matcher.h,
// token_trie.h.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "grammar/token_trie.h"

namespace carpool {

// The tokens that may come next, as a list where they are few, else as bits.
struct TokenMask {
  bool can_end = false;        // the text may end here
  int64_t count = 0;           // of tokens that may come
  std::vector<int> ids;        // ascending, when `bits` is empty
  std::vector<uint64_t> bits;  // by id

  bool allows(int id) const;
  // masked [V] = logits [V] where the token may come, else -Inf. End tokens are the caller's affair.
  void apply(std::span<const float> logits, std::span<float> masked) const;
};

// Thread-safe.
class Constraint {
 public:
  Constraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
             const MatcherLimits& limits = {});
  ~Constraint();

  size_t bytes() const;  // of memory, about
  const TokenTrie& trie() const { return *trie_; }
  // True for tokens that stand for no text of the grammar: chosen as end tokens or stop ids, they end the text.
  bool ends(int id) const;

 private:
  friend class ConstraintCursor;
  struct Cache;

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  const MatcherLimits limits_;
  std::vector<bool> spoken_;  // by id: special tokens that may be written
  mutable std::mutex mutex_;
  std::shared_ptr<Cache> cache_;  // a new one when it is full; cursors follow at their next step
};

// One text. A copy goes on from the same place. Not thread-safe itself.
class ConstraintCursor {
 public:
  explicit ConstraintCursor(std::shared_ptr<Constraint> constraint);

  // What may come next; null when that cannot be said within the limits, or nothing can come and the text cannot end.
  // Valid as long as the caller holds it.
  std::shared_ptr<const TokenMask> mask();
  // The text goes on with `token`. False, and from then on no mask, when it must not.
  bool accept(int token);
  bool can_end() const;
  // The text is whole: nothing can come any more.
  bool complete() const;

 private:
  bool follow();  // into the constraint's present cache

  std::shared_ptr<Constraint> constraint_;
  std::shared_ptr<Constraint::Cache> cache_;
  int state_ = Matcher::kTooMuch;
};

}  // namespace carpool
