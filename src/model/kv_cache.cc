#include "model/kv_cache.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

namespace carpool {

namespace {

constexpr size_t kAlign = 64;

}  // namespace

void KvCache::Free::operator()(std::byte* p) const { std::free(p); }

size_t KvCache::bytes_for(const ModelConfig& config, int64_t tokens, KvFormat format) {
  const size_t block = KvBlock(format, config.head_dim).bytes * static_cast<size_t>(config.kv_heads);
  const auto layer = checked_mul(static_cast<uint64_t>(blocks_for(tokens)), block);
  const auto bytes = layer ? checked_mul(*layer, static_cast<uint64_t>(config.layers)) : std::nullopt;
  return bytes ? *bytes : SIZE_MAX;
}

KvCache::KvCache(const ModelConfig& config, int64_t tokens, KvFormat format)
    : block_(format, config.head_dim), kv_heads_(config.kv_heads) {
  require_memory(bytes_for(config, tokens, format), fmt::format("a key-value cache of {} tokens", tokens));
  if (blocks_for(tokens) > std::numeric_limits<int>::max()) {
    throw Error(ErrorKind::kUsage, fmt::format("a key-value cache of {} tokens has more than 2^31 blocks", tokens));
  }
  blocks_ = static_cast<int>(blocks_for(tokens));
  const size_t layer_bytes = static_cast<size_t>(blocks_) * static_cast<size_t>(kv_heads_) * block_.bytes;
  for (int l = 0; l < config.layers; ++l) {
    // Zeros that the system makes up page by page when they are first written; one line more to align the first block.
    layers_.emplace_back(static_cast<std::byte*>(std::calloc(layer_bytes + kAlign, 1)));
    if (!layers_.back()) {
      throw Error(ErrorKind::kNoMemory, fmt::format("a key-value cache of {} tokens: the system refuses {} bytes",
                                                    tokens, layer_bytes + kAlign));
    }
  }
  for (int b = blocks_ - 1; b >= 0; --b) free_.push_back(b);
}

size_t KvCache::bytes() const {
  return layers_.size() * static_cast<size_t>(blocks_) * static_cast<size_t>(kv_heads_) * block_.bytes;
}

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

KvLayer KvCache::layer(int l) {
  std::byte* start = layers_[static_cast<size_t>(l)].get();
  const auto past = reinterpret_cast<uintptr_t>(start) % kAlign;
  return {start + (past == 0 ? 0 : kAlign - past), block_, kv_heads_};
}

}  // namespace carpool
