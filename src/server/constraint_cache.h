// Constraints that requests asked for, kept for those that ask for the same.
//
// Owns the tree of the vocabulary, made at the first use, and the last constraints with their masks, within 128 MiB:
// the least recently used goes first, and goes on living as long as requests hold it. Those that live, kept here or
// held by requests that run or wait, are counted: beyond 512 MiB a new one is refused until some of them have ended.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "grammar/constraint.h"
#include "grammar/structure.h"
#include "model/config.h"

namespace carpool {

// Thread-safe; calls are for worker threads.
class ConstraintCache {
 public:
  static constexpr size_t kMaxBytes = size_t{128} << 20, kMaxLiveBytes = size_t{512} << 20;

  // Both outlive the cache.
  ConstraintCache(const Tokenizer& tokenizer, const ModelConfig& config, size_t max_bytes = kMaxBytes,
                  size_t max_live_bytes = kMaxLiveBytes)
      : tokenizer_(tokenizer), config_(config), max_bytes_(max_bytes), max_live_bytes_(max_live_bytes) {}

  // Throws ApiError 400 with the path of what cannot be: invalid_value, or unsupported_value for what we lack; 503
  // overloaded where those that live leave no room for it.
  std::shared_ptr<Constraint> get(const StructureSpec& spec);
  size_t size() const;        // of those that are kept
  size_t live_bytes() const;  // of all that live

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<Constraint> constraint;
  };

  // The mutex is held by callers of these.
  std::shared_ptr<Constraint> find(const std::string& key);
  size_t count_live() const;
  void forget_beyond(size_t max_bytes);

  const Tokenizer& tokenizer_;
  const ModelConfig& config_;
  const size_t max_bytes_, max_live_bytes_;
  std::once_flag trie_made_;
  std::shared_ptr<const TokenTrie> trie_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
  mutable std::unordered_map<std::string, std::weak_ptr<Constraint>> live_;  // kept or held, by key
};

}  // namespace carpool
