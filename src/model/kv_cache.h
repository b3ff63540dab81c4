// The paged key-value cache: a bounded pool of blocks of positions, for all layers.
//
// Owns the memory and the free list. A sequence holds a list of block ids; position p of it lives in block p / 16 at
// offset p % 16. Elements are float32, or bfloat16 and int8 with scales, which round (tensor/kv_block.h). Memory is
// taken from the system when a block is first written. Does not own who gets blocks when: that is the scheduler's
// decision.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/ops.h"
#include "model/config.h"
#include "tensor/kv_block.h"

namespace carpool {

// What --kv-cache-dtype auto means: exact, unless the weights are rounded much more coarsely than bfloat16 rounds.
inline KvFormat default_kv_format(bool block_quantized_weights) {
  return block_quantized_weights ? KvFormat::kBF16 : KvFormat::kF32;
}

class KvCache {
 public:
  static constexpr int kBlockTokens = kKvPositions;

  // Room for `tokens` positions (rounded up to blocks). Error{kNoMemory} with both numbers when it cannot fit.
  KvCache(const ModelConfig& config, int64_t tokens, KvFormat format = KvFormat::kF32);

  // Blocks that `tokens` >= 0 positions need.
  static int64_t blocks_for(int64_t tokens) { return tokens / kBlockTokens + (tokens % kBlockTokens != 0 ? 1 : 0); }
  // Bytes of a pool of `tokens` positions; SIZE_MAX when that is no number.
  static size_t bytes_for(const ModelConfig& config, int64_t tokens, KvFormat format = KvFormat::kF32);

  int free_blocks() const { return static_cast<int>(free_.size()); }
  int total_blocks() const { return blocks_; }
  KvFormat format() const { return block_.format; }
  size_t bytes() const;  // of the whole pool
  // Appends `n` free blocks to `table`; false, and nothing taken, when fewer are free.
  bool take(int64_t n, std::vector<int>& table);
  // Returns the blocks of `table` to the pool and empties it.
  void give_back(std::vector<int>& table);

  KvLayer layer(int l) { return view(layers_[static_cast<size_t>(l)], block_, kv_heads_); }
  // The keys of the indexer of layer l, which has one of its own.
  KvLayer indexer(int l) { return view(indexers_[static_cast<size_t>(l)], indexer_block_, 1); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static KvLayer view(const Memory& memory, const KvBlock& block, int kv_heads);
  // Blocks of one layer for `stride` bytes from block to block.
  Memory allocate(size_t stride, int64_t tokens) const;

  KvBlock block_, indexer_block_;
  int kv_heads_ = 0;
  int blocks_ = 0;
  size_t block_bytes_ = 0;        // of all layers together
  std::vector<Memory> layers_;    // [L]
  std::vector<Memory> indexers_;  // [L], null where a layer has none, empty without any
  std::vector<int> free_;         // used as a stack
};

}  // namespace carpool
