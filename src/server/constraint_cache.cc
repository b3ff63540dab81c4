// See constraint_cache.h.
#include "server/constraint_cache.h"

#include "server/api_error.h"

namespace carpool {

std::shared_ptr<Constraint> ConstraintCache::get(const StructureSpec& spec) {
  const std::string key = spec.key();
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = by_key_.find(key); known != by_key_.end()) {
      entries_.splice(entries_.begin(), entries_, known->second);
      return known->second->constraint;
    }
  }
  std::shared_ptr<const Grammar> grammar;
  try {
    grammar = make_grammar(spec);
  } catch (const GrammarError& error) {
    throw error.unsupported() ? unsupported(error.path(), error.what()) : invalid_value(error.path(), error.what());
  }
  std::call_once(trie_made_,
                 [this] { trie_ = std::make_shared<const TokenTrie>(tokenizer_, config_.vocab, config_.eos_ids); });
  const auto made = std::make_shared<Constraint>(std::move(grammar), trie_);
  const std::lock_guard lock(mutex_);
  if (const auto known = by_key_.find(key); known != by_key_.end()) return known->second->constraint;
  entries_.push_front({key, made});
  by_key_[key] = entries_.begin();
  size_t bytes = 0;
  for (auto at = entries_.begin(); at != entries_.end();) {
    bytes += at->key.size() * 2 + at->constraint->bytes();
    if (bytes <= max_bytes_ || at == entries_.begin()) {
      ++at;
    } else {
      by_key_.erase(at->key);
      at = entries_.erase(at);
    }
  }
  return made;
}

size_t ConstraintCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace carpool
