// Constraints that requests asked for, kept for those that ask for the same.
//
// Owns the tree of the vocabulary, made at the first use, and the last constraints with their masks, within 128 MiB:
// the least recently used goes first, and goes on living as long as requests hold it.
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
  static constexpr size_t kMaxBytes = size_t{128} << 20;

  // Both outlive the cache.
  ConstraintCache(const Tokenizer& tokenizer, const ModelConfig& config, size_t max_bytes = kMaxBytes)
      : tokenizer_(tokenizer), config_(config), max_bytes_(max_bytes) {}

  // Throws ApiError 400 with the path of what cannot be: invalid_value, or unsupported_value for what we lack.
  std::shared_ptr<Constraint> get(const StructureSpec& spec);
  size_t size() const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<Constraint> constraint;
  };

  const Tokenizer& tokenizer_;
  const ModelConfig& config_;
  const size_t max_bytes_;
  std::once_flag trie_made_;
  std::shared_ptr<const TokenTrie> trie_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
};

}  // namespace carpool
