// See constraint.h.
#include "grammar/constraint.h"

#include <algorithm>
#include <cmath>

namespace carpool {
namespace {

constexpr int kListShare = 64;             // masks with fewer than one in so many tokens are lists
constexpr size_t kMaxMaskBytes = 8 << 20;  // of one cache, before a new one is begun

}  // namespace

bool TokenMask::allows(int id) const {
  if (bits.empty()) return std::binary_search(ids.begin(), ids.end(), id);
  const auto at = static_cast<size_t>(id);
  return at / 64 < bits.size() && (bits[at / 64] >> (at % 64) & 1) != 0;
}

void TokenMask::apply(std::span<const float> logits, std::span<float> masked) const {
  if (bits.empty()) {
    std::fill(masked.begin(), masked.end(), -INFINITY);
    for (const int id : ids) masked[static_cast<size_t>(id)] = logits[static_cast<size_t>(id)];
    return;
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    masked[i] = (bits[i / 64] >> (i % 64) & 1) != 0 ? logits[i] : -INFINITY;
  }
}

struct Constraint::Cache {
  Cache(const Grammar& grammar, const MatcherLimits& limits) : matcher(grammar, limits) {}

  Matcher matcher;
  std::unordered_map<int, std::shared_ptr<const TokenMask>> masks;  // by shortened state; null where there is none
  size_t mask_bytes = 0;
  std::vector<int> path;  // states by depth, while a mask is found
};

Constraint::Constraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
                       const MatcherLimits& limits)
    : grammar_(std::move(grammar)),
      trie_(std::move(trie)),
      limits_(limits),
      spoken_(trie_->ids().empty() ? 0 : static_cast<size_t>(trie_->vocab())) {
  const auto& texts = grammar_->spoken_specials();
  for (const int id : trie_->ids()) {
    const auto holds = [&](const std::string& text) { return text.find(trie_->bytes(id)) != std::string::npos; };
    spoken_[static_cast<size_t>(id)] = !trie_->special(id) || std::any_of(texts.begin(), texts.end(), holds);
  }
  cache_ = std::make_shared<Cache>(*grammar_, limits_);
}

Constraint::~Constraint() = default;

size_t Constraint::bytes() const {
  const std::lock_guard lock(mutex_);
  return grammar_->bytes() + cache_->matcher.bytes() + cache_->mask_bytes + spoken_.size() / 8;
}

bool Constraint::ends(int id) const {
  if (id < 0 || id >= trie_->vocab()) return true;
  return trie_->bytes(id).empty() || !spoken_[static_cast<size_t>(id)];
}

ConstraintCursor::ConstraintCursor(std::shared_ptr<Constraint> constraint) : constraint_(std::move(constraint)) {
  const std::lock_guard lock(constraint_->mutex_);
  cache_ = constraint_->cache_;
  state_ = cache_->matcher.start();
}

// The mutex is held.
bool ConstraintCursor::follow() {
  if (state_ < 0) return false;
  std::shared_ptr<Constraint::Cache>& present = constraint_->cache_;
  if (present->matcher.full() || present->mask_bytes > kMaxMaskBytes) {
    present = std::make_shared<Constraint::Cache>(*constraint_->grammar_, constraint_->limits_);
  }
  if (cache_ != present) {
    present->matcher.start_work();
    state_ = present->matcher.import_state(cache_->matcher, state_);
    cache_ = present;
  }
  return state_ >= 0;
}

std::shared_ptr<const TokenMask> ConstraintCursor::mask() {
  const std::lock_guard lock(constraint_->mutex_);
  if (!follow()) return nullptr;
  Matcher& matcher = cache_->matcher;
  matcher.start_work();
  const TokenTrie& trie = *constraint_->trie_;
  const int start = matcher.shortened(state_, trie.longest());
  if (start < 0) return nullptr;
  if (const auto known = cache_->masks.find(start); known != cache_->masks.end()) return known->second;
  auto mask = std::make_shared<TokenMask>();
  mask->can_end = matcher.accepting(start);
  std::vector<int>& path = cache_->path;
  path.assign(1, start);
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  for (size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    path.resize(static_cast<size_t>(node.depth));
    const int next = matcher.step(path.back(), node.byte);
    if (next == Matcher::kTooMuch) return nullptr;
    if (next == Matcher::kDead) {
      i = static_cast<size_t>(node.skip);
      continue;
    }
    path.push_back(next);
    for (int t = 0; t < node.n_tokens; ++t) {
      const int id = trie.ids()[static_cast<size_t>(node.first_token + t)];
      if (constraint_->spoken_[static_cast<size_t>(id)]) mask->ids.push_back(id);
    }
    ++i;
  }
  mask->count = static_cast<int64_t>(mask->ids.size());
  if (mask->count * kListShare >= trie.vocab()) {
    mask->bits.assign((static_cast<size_t>(trie.vocab()) + 63) / 64, 0);
    for (const int id : mask->ids) mask->bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    mask->ids = {};
  } else {
    std::sort(mask->ids.begin(), mask->ids.end());
    mask->ids.shrink_to_fit();
  }
  cache_->mask_bytes += 128 + mask->ids.size() * sizeof(int) + mask->bits.size() * sizeof(uint64_t);
  const bool dead_end = mask->count == 0 && !mask->can_end;
  return cache_->masks[start] = dead_end ? nullptr : std::move(mask);
}

bool ConstraintCursor::accept(int token) {
  const std::lock_guard lock(constraint_->mutex_);
  const TokenTrie& trie = *constraint_->trie_;
  const bool known = token >= 0 && token < trie.vocab() && !trie.bytes(token).empty();
  if (!known || !constraint_->spoken_[static_cast<size_t>(token)] || !follow()) {
    state_ = Matcher::kDead;
    return false;
  }
  cache_->matcher.start_work();
  for (const char c : trie.bytes(token)) {
    state_ = cache_->matcher.step(state_, static_cast<unsigned char>(c));
    if (state_ < 0) return false;
  }
  return true;
}

bool ConstraintCursor::can_end() const {
  const std::lock_guard lock(constraint_->mutex_);
  return state_ >= 0 && cache_->matcher.accepting(state_);
}

bool ConstraintCursor::complete() const {
  const std::lock_guard lock(constraint_->mutex_);
  return state_ >= 0 && cache_->matcher.complete(state_);
}

}  // namespace carpool
