// See token_trie.h.
#include "grammar/token_trie.h"

#include <algorithm>

namespace carpool {

TokenTrie::TokenTrie(const Tokenizer& tokenizer, int vocab, std::span<const int> end_ids)
    : tokens_(static_cast<size_t>(vocab)), special_(static_cast<size_t>(vocab)) {
  const int n = std::min(vocab, tokenizer.vocab_size());
  for (int id = 0; id < n; ++id) {
    if (std::find(end_ids.begin(), end_ids.end(), id) != end_ids.end()) continue;
    tokens_[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
    special_[static_cast<size_t>(id)] = tokenizer.is_special(id);
  }
  build();
}

TokenTrie::TokenTrie(std::vector<std::string> tokens) : tokens_(std::move(tokens)), special_(tokens_.size()) {
  build();
}

void TokenTrie::build() {
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].empty()) ids_.push_back(static_cast<int>(id));
    longest_ = std::max(longest_, static_cast<int>(tokens_[id].size()));
  }
  std::sort(ids_.begin(), ids_.end(), [this](int a, int b) {
    const int order = bytes(a).compare(bytes(b));
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<int32_t> path;  // the nodes from the root to where we are
  const std::string* last = nullptr;
  const auto leave_to = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      nodes_[static_cast<size_t>(path.back())].skip = static_cast<int32_t>(nodes_.size());
    }
  };
  for (size_t i = 0; i < ids_.size(); ++i) {
    const std::string& text = bytes(ids_[i]);
    size_t common = 0;
    while (last && common < last->size() && common < text.size() && (*last)[common] == text[common]) ++common;
    leave_to(common);
    for (size_t d = common; d < text.size(); ++d) {
      path.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back(
          {static_cast<int32_t>(d + 1), 0, static_cast<int32_t>(i), 0, static_cast<unsigned char>(text[d])});
    }
    Node& end = nodes_[static_cast<size_t>(path.back())];
    if (end.n_tokens++ == 0) end.first_token = static_cast<int32_t>(i);
    last = &text;
  }
  leave_to(0);
}

}  // namespace carpool
