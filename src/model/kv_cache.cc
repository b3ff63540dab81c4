#include "model/kv_cache.h"

#include <fmt/format.h>

#include <limits>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

namespace carpool {

size_t KvCache::bytes_for(const ModelConfig& config, int64_t tokens) {
  const auto blocks = static_cast<uint64_t>(blocks_for(tokens));
  const auto floats = checked_mul(blocks, 2 * kBlockTokens * static_cast<uint64_t>(config.kv_width()));
  const auto bytes = floats ? checked_mul(*floats, static_cast<uint64_t>(config.layers) * sizeof(float)) : std::nullopt;
  return bytes ? *bytes : SIZE_MAX;
}

KvCache::KvCache(const ModelConfig& config, int64_t tokens) {
  require_memory(bytes_for(config, tokens), fmt::format("a key-value cache of {} tokens", tokens));
  if (blocks_for(tokens) > std::numeric_limits<int>::max()) {
    throw Error(ErrorKind::kUsage, fmt::format("a key-value cache of {} tokens has more than 2^31 blocks", tokens));
  }
  blocks_ = static_cast<int>(blocks_for(tokens));
  const size_t layer_floats = static_cast<size_t>(blocks_) * kBlockTokens * static_cast<size_t>(config.kv_width());
  keys_.resize(static_cast<size_t>(config.layers));
  values_.resize(static_cast<size_t>(config.layers));
  for (auto& k : keys_) k.resize(layer_floats);
  for (auto& v : values_) v.resize(layer_floats);
  for (int b = blocks_ - 1; b >= 0; --b) free_.push_back(b);
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
  return {keys_[static_cast<size_t>(l)].data(), values_[static_cast<size_t>(l)].data(), kBlockTokens};
}

}  // namespace carpool
