// The paged key-value cache: a bounded pool of blocks of positions, for all layers.
//
// Owns the memory and the free list. A sequence holds a list of block ids; position p of it lives in block p / B at
// offset p % B. Does not own who gets blocks when: that is the scheduler's decision. Float32.
#pragma once

#include <vector>

#include "backend/ops.h"
#include "model/config.h"

namespace carpool {

class KvCache {
 public:
  static constexpr int kBlockTokens = 16;

  // Room for `tokens` positions (rounded up to blocks). Error{kNoMemory} with both numbers when it cannot fit.
  KvCache(const ModelConfig& config, int64_t tokens);

  // Blocks that `tokens` >= 0 positions need.
  static int64_t blocks_for(int64_t tokens) { return tokens / kBlockTokens + (tokens % kBlockTokens != 0 ? 1 : 0); }
  static size_t bytes_for(const ModelConfig& config, int64_t tokens);

  int free_blocks() const { return static_cast<int>(free_.size()); }
  int total_blocks() const { return blocks_; }
  // Appends `n` free blocks to `table`; false, and nothing taken, when fewer are free.
  bool take(int64_t n, std::vector<int>& table);
  // Returns the blocks of `table` to the pool and empties it.
  void give_back(std::vector<int>& table);

  KvLayer layer(int l);

 private:
  int blocks_ = 0;
  std::vector<std::vector<float>> keys_, values_;  // [L]
  std::vector<int> free_;                          // used as a stack
};

}  // namespace carpool
