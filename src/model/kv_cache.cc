#include "model/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

namespace carpool {

namespace {

constexpr size_t kAlign = 64;

KvBlock block_of(const ModelConfig& c, KvFormat format) {
  return KvBlock(format, c.head_dim, c.value_dim, c.latent.has_value());
}

KvBlock indexer_block_of(const ModelConfig& c, KvFormat format) {
  return c.sparse() ? KvBlock(format, c.indexer->head_dim, 0) : KvBlock();
}

// Bytes of one block id: 16 positions of all layers.
size_t block_bytes(const ModelConfig& c, KvFormat format) {
  size_t bytes = block_of(c, format).bytes * static_cast<size_t>(c.kv_heads) * static_cast<size_t>(c.layers);
  if (!c.sparse()) return bytes;
  const auto own = std::count(c.indexer->own.begin(), c.indexer->own.end(), true);
  return bytes + indexer_block_of(c, format).bytes * static_cast<size_t>(own);
}

}  // namespace

void KvCache::Free::operator()(std::byte* p) const { std::free(p); }

size_t KvCache::bytes_for(const ModelConfig& config, int64_t tokens, KvFormat format) {
  const auto bytes = checked_mul(static_cast<uint64_t>(blocks_for(tokens)), block_bytes(config, format));
  return bytes ? *bytes : SIZE_MAX;
}

KvCache::Memory KvCache::allocate(size_t stride, int64_t tokens) const {
  // Zeros that the system makes up page by page when they are first written; one line more to align the first block.
  const size_t bytes = static_cast<size_t>(blocks_) * stride + kAlign;
  Memory memory(static_cast<std::byte*>(std::calloc(bytes, 1)));
  if (!memory) {
    throw Error(ErrorKind::kNoMemory,
                fmt::format("a key-value cache of {} tokens: the system refuses {} bytes", tokens, bytes));
  }
  return memory;
}

KvCache::KvCache(const ModelConfig& config, int64_t tokens, KvFormat format)
    : block_(block_of(config, format)),
      indexer_block_(indexer_block_of(config, format)),
      kv_heads_(config.kv_heads),
      block_bytes_(block_bytes(config, format)) {
  require_memory(bytes_for(config, tokens, format), fmt::format("a key-value cache of {} tokens", tokens));
  if (blocks_for(tokens) > std::numeric_limits<int>::max()) {
    throw Error(ErrorKind::kUsage, fmt::format("a key-value cache of {} tokens has more than 2^31 blocks", tokens));
  }
  blocks_ = static_cast<int>(blocks_for(tokens));
  for (int l = 0; l < config.layers; ++l) {
    layers_.push_back(allocate(block_.bytes * static_cast<size_t>(kv_heads_), tokens));
    if (!config.sparse()) continue;
    const bool own = config.indexer->own[static_cast<size_t>(l)];
    indexers_.push_back(own ? allocate(indexer_block_.bytes, tokens) : Memory());
  }
  for (int b = blocks_ - 1; b >= 0; --b) free_.push_back(b);
}

size_t KvCache::bytes() const { return static_cast<size_t>(blocks_) * block_bytes_; }

bool KvCache::take(int64_t n, std::vector<int>& table) {
  if (n > free_blocks()) return false;
  for (int64_t i = 0; i < n; ++i) {
    table.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void KvCache::give_back(std::vector<int>& table) {
  free_.insert(free_.end(), table.rbegin(), table.rend());
  table.clear();
}

KvLayer KvCache::view(const Memory& memory, const KvBlock& block, int kv_heads) {
  std::byte* start = memory.get();
  const auto past = reinterpret_cast<uintptr_t>(start) % kAlign;
  return {start + (past == 0 ? 0 : kAlign - past), block, kv_heads};
}

}  // namespace carpool
