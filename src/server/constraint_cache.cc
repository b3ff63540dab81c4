// See constraint_cache.h.
#include "server/constraint_cache.h"

#include "server/api_error.h"

namespace carpool {

std::shared_ptr<Constraint> ConstraintCache::get(const StructureSpec& spec) {
  const std::string key = spec.key();
  {
    const std::lock_guard lock(mutex_);
    if (std::shared_ptr<Constraint> known = find(key)) return known;
  }
  std::shared_ptr<const Grammar> grammar;
  try {
    grammar = make_grammar(spec);
  } catch (const GrammarError& error) {
    throw error.unsupported() ? unsupported(error.path(), error.what()) : invalid_value(error.path(), error.what());
  }
  std::call_once(trie_made_,
                 [this] { trie_ = std::make_shared<const TokenTrie>(tokenizer_, config_.vocab, config_.eos_ids); });
  auto made = std::make_shared<Constraint>(std::move(grammar), trie_);
  const size_t bytes = made->bytes() + 2 * key.size();
  const std::lock_guard lock(mutex_);
  if (std::shared_ptr<Constraint> known = find(key)) return known;
  if (count_live() + bytes > max_live_bytes_) forget_beyond(0);  // what nobody holds goes
  if (count_live() + bytes > max_live_bytes_) {
    constexpr int kRetry = 5;
    throw unavailable("overloaded",
                      "the structures of the requests that run and wait take all the memory that is for them", kRetry);
  }
  live_[key] = made;
  entries_.push_front({key, made});
  by_key_[key] = entries_.begin();
  forget_beyond(max_bytes_);
  return made;
}

std::shared_ptr<Constraint> ConstraintCache::find(const std::string& key) {
  if (const auto known = by_key_.find(key); known != by_key_.end()) {
    entries_.splice(entries_.begin(), entries_, known->second);
    return known->second->constraint;
  }
  const auto held = live_.find(key);
  return held == live_.end() ? nullptr : held->second.lock();
}

// The last one stays whatever its size.
void ConstraintCache::forget_beyond(size_t max_bytes) {
  size_t bytes = 0;
  for (auto at = entries_.begin(); at != entries_.end();) {
    bytes += at->key.size() * 2 + at->constraint->bytes();
    if (bytes <= max_bytes || (max_bytes > 0 && at == entries_.begin())) {
      ++at;
    } else {
      by_key_.erase(at->key);
      at = entries_.erase(at);
    }
  }
}

size_t ConstraintCache::count_live() const {
  std::erase_if(live_, [](const auto& each) { return each.second.expired(); });
  size_t bytes = 0;
  for (const auto& [key, each] : live_) {
    if (const std::shared_ptr<Constraint> held = each.lock()) bytes += key.size() * 2 + held->bytes();
  }
  return bytes;
}

size_t ConstraintCache::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return count_live();
}

size_t ConstraintCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace carpool
