// A vocabulary as a tree of the bytes of its tokens, in the order in which a walk visits it.
//
// Owns which tokens may take part in structured text: those with bytes, without the model's end tokens; special ones
// only where a grammar speaks them. One per model, made once (a second for the largest vocabularies), then safe to
// share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace carpool {

class TokenTrie {
 public:
  // `vocab`: rows of the model's output, ids beyond it are left out. `end_ids`: of the model.
  TokenTrie(const Tokenizer& tokenizer, int vocab, std::span<const int> end_ids);
  // For tests: the bytes of each id, "" for none.
  explicit TokenTrie(std::vector<std::string> tokens);

  // Nodes in depth-first order, so that the subtree of node i is [i, skip).
  struct Node {
    int32_t depth;  // bytes from the root, 1 for its children
    int32_t skip;
    int32_t first_token, n_tokens;  // in ids(): the tokens that end here
    unsigned char byte;
  };
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int> ids() const { return ids_; }
  int vocab() const { return static_cast<int>(tokens_.size()); }
  int longest() const { return longest_; }  // bytes of a token
  const std::string& bytes(int id) const { return tokens_[static_cast<size_t>(id)]; }
  bool special(int id) const { return special_[static_cast<size_t>(id)]; }

 private:
  void build();

  std::vector<std::string> tokens_;  // "" for those that take no part
  std::vector<bool> special_;
  std::vector<Node> nodes_;
  std::vector<int> ids_;  // by their bytes
  int longest_ = 0;
};

}  // namespace carpool
