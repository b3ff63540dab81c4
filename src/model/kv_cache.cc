#include "model/kv_cache.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

namespace carpool {

size_t KvCache::bytes_for(const ModelConfig& config, int64_t tokens) {
  const auto floats = checked_mul(static_cast<uint64_t>(blocks_for(tokens)) * kBlockTokens,
                                  2 * static_cast<uint64_t>(config.kv_width()));
  const auto bytes = floats ? checked_mul(*floats, static_cast<uint64_t>(config.layers) * sizeof(float)) : std::nullopt;
  return bytes ? *bytes : SIZE_MAX;
}

KvCache::KvCache(const ModelConfig& config, int64_t tokens)
    : blocks_(blocks_for(tokens)),
      layer_floats_(static_cast<size_t>(blocks_) * kBlockTokens * static_cast<size_t>(config.kv_width())) {
  require_memory(bytes_for(config, tokens), fmt::format("a key-value cache of {} tokens", tokens));
  keys_.resize(static_cast<size_t>(config.layers));
  values_.resize(static_cast<size_t>(config.layers));
  for (auto& k : keys_) k.resize(layer_floats_);
  for (auto& v : values_) v.resize(layer_floats_);
  for (int b = blocks_ - 1; b >= 0; --b) free_.push_back(b);
}

bool KvCache::take(int n, std::vector<int>& table) {
  if (n > free_blocks()) return false;
  for (int i = 0; i < n; ++i) {
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
