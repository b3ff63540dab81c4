// The rows of a step. See scheduler.h.
#include "engine/scheduler.h"

#include <algorithm>
#include <map>

namespace carpool {
namespace {

constexpr int kBlock = KvCache::kBlockTokens;

// What of a sequence may be looked up: at least one token is left to compute, for its logits.
std::span<const int> reusable(const Sequence& s) { return std::span(s.tokens).first(s.tokens.size() - 1); }

bool in_prompt(const Sequence& s) { return s.computed < s.prompt_end; }

// True when the next row's logits say how likely the prompt's token after it was, and nobody has asked them yet.
bool scores_prompt(const Sequence& s) {
  const int next = s.computed + 1;
  return s.scoring() && next >= static_cast<int>(s.prompt_scores->size()) && next < s.prompt_size();
}

// Ready for its first row, with the positions that the prefix cache had.
void start_at_hold(Sequence& s) { s.computed = s.plain = s.hold.blocks * kBlock; }

}  // namespace

void Batch::clear() {
  rows.clear();
  parts.clear();
  owners.clear();
  admitted.clear();
  decode_rows = prefill_rows = 0;
}

Scheduler::Scheduler(KvCache& kv, const SchedulerOptions& options)
    : options_(options), cache_(kv), pacer_(options.step_target_s) {}

bool Scheduler::next(Batch& batch) {
  batch.clear();
  share_prompts();
  const int64_t before = preemptions_;
  push_decodes(batch);
  if (preemptions_ == before) admit(batch);  // who gave way in this step does not come back in it
  push_prompts(batch);
  return batch.rows.size() > 0;
}

// What the last step computed of prompts becomes a prefix for others.
void Scheduler::share_prompts() {
  if (!options_.prefix_cache) return;
  for (auto& s : running_) {
    if (s->shared || !s->request.cache_prefix) continue;
    s->shared = !in_prompt(*s);
    const auto plain = static_cast<size_t>(std::min(s->plain, s->computed));
    cache_.insert(s->request.tenant, std::span(s->tokens).first(plain), s->hold, s->blocks);
  }
}

void Scheduler::push_decodes(Batch& batch) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& s = *running_[i];
    if (in_prompt(s)) continue;
    if (!grow(i)) break;
    batch.parts.push_back({&s, batch.rows.size(), 1, Phase::kDecode});
    push_row(s, Phase::kDecode, batch);
    waiting_.serve(s.request.tenant, 0, 1);
  }
  batch.decode_rows = batch.rows.size();
}

bool Scheduler::grow(size_t i) {
  Sequence& s = *running_[i];
  if (s.computed < static_cast<int>(s.blocks.size()) * kBlock) return true;
  while (!cache_.take(1, s.blocks)) {
    const bool itself = i + 1 == running_.size();
    preempt_newest();
    if (itself) return false;
  }
  return true;
}

void Scheduler::preempt_newest() {
  std::unique_ptr<Sequence> s = std::move(running_.back());
  running_.pop_back();
  free_blocks(*s, /*keep_prefix=*/true);
  ++s->stats.preemptions;
  ++preemptions_;
  waiting_.push_front(std::move(s));
}

void Scheduler::admit(Batch& batch) {
  while (running() < options_.max_batch) {
    Sequence* next = waiting_.front();
    if (!next || !take_blocks(*next)) return;
    Sequence& s = *next;
    running_.push_back(waiting_.pop());
    start_at_hold(s);
    s.prompt_end = s.wanted();
    if (s.admitted) continue;
    s.admitted = true;
    batch.admitted.push_back(s.id);
    waiting_.serve(s.request.tenant, s.prompt_end - s.computed, 0);
  }
}

// With preemption as many blocks must stay free as there are sequences running: the next one of each. So nobody is
// admitted who would at once make somebody give way.
bool Scheduler::take_blocks(Sequence& s) {
  const int64_t spare = options_.preempt ? running() : 0;
  if (cache_.available() <= spare) return false;
  if (uses_cache(s)) cache_.match(s.request.tenant, reusable(s), s.hold, s.blocks);
  const int64_t need = KvCache::blocks_for(options_.preempt ? s.wanted() : s.most_positions()) - s.hold.blocks;
  if (need + spare <= cache_.available() && cache_.take(need, s.blocks)) return true;
  cache_.release(s.hold, s.blocks);
  return false;
}

bool Scheduler::uses_cache(const Sequence& s) const {
  return options_.prefix_cache && s.request.cache_prefix && !s.scoring();
}

// Rows whose logits only score a prompt are bounded by themselves, so such a prompt may take less than its share.
void Scheduler::push_prompts(Batch& batch) {
  prompts_.clear();
  for (auto& s : running_) {
    if (!in_prompt(*s)) continue;
    reuse_prefix(*s);
    if (!follows_another(*s)) prompts_.push_back({s.get(), 0});
  }
  share_rows(pacer_.prompt_rows(batch.decode_rows, options_.chunk));
  int scores = options_.score_rows;
  for (const auto& [s, share] : prompts_) {
    BatchPart part{s, batch.rows.size(), 0, Phase::kPrefill};
    for (; part.rows < share; ++part.rows) {
      if (scores_prompt(*s)) {
        if (scores == 0) break;
        --scores;
      }
      push_row(*s, Phase::kPrefill, batch);
    }
    if (part.rows == 0) continue;
    batch.parts.push_back(part);
    count_prefix(*s);
  }
  batch.prefill_rows = batch.rows.size() - batch.decode_rows;
}

// True when an older prompt of this step computes the very block that `s` would begin with: it waits for it instead.
bool Scheduler::follows_another(const Sequence& s) const {
  const int first = s.hold.blocks * kBlock, end = first + kBlock;
  if (!uses_cache(s) || s.computed > first || end >= s.size()) return false;
  return std::any_of(prompts_.begin(), prompts_.end(), [&](const PromptShare& p) {
    const Sequence& o = *p.sequence;
    return o.request.tenant == s.request.tenant && o.hold.node == s.hold.node && o.request.cache_prefix &&
           o.prompt_end >= end &&
           std::equal(s.tokens.begin() + first, s.tokens.begin() + end, o.tokens.begin() + first);
  });
}

// Tenants get the same; inside a tenant, and with what is left over, the oldest comes first. So a very long prompt of
// one tenant does not keep another's waiting.
void Scheduler::share_rows(int budget) {
  std::map<int, int> tenants;
  for (const PromptShare& p : prompts_) tenants[p.sequence->request.tenant] = 0;
  const int each = tenants.empty() ? 0 : budget / static_cast<int>(tenants.size());
  for (PromptShare& p : prompts_) {
    int& used = tenants[p.sequence->request.tenant];
    p.rows = std::min(most_rows(*p.sequence), each - used);
    used += p.rows;
    budget -= p.rows;
  }
  for (PromptShare& p : prompts_) {
    const int more = std::min(most_rows(*p.sequence) - p.rows, budget);
    p.rows += more;
    budget -= more;
  }
}

int Scheduler::most_rows(const Sequence& s) const {
  const int left = s.prompt_end - s.computed;
  if (!s.scoring()) return left;
  const int unscored = std::max(static_cast<int>(s.prompt_scores->size()) - 1 - s.computed, 0);
  return std::min(left, unscored + options_.score_rows);
}

// Before each of its chunks: what others have computed in the meantime is taken, too.
void Scheduler::reuse_prefix(Sequence& s) {
  const int before = s.computed;
  PrefixReason reason = PrefixReason::kOff;
  if (uses_cache(s)) {
    reason = cache_.match(s.request.tenant, reusable(s), s.hold, s.blocks);
    if (s.hold.blocks * kBlock > s.computed) start_at_hold(s);
  } else if (options_.prefix_cache && s.request.cache_prefix) {
    reason = PrefixReason::kLogprobs;
  }
  if (!s.counted) s.prefix = reason;
  if (!s.counted || s.stats.preemptions > 0) return;
  s.stats.cached_tokens += s.computed - before;
  hits_ += s.computed - before;
}

// With its first row.
void Scheduler::count_prefix(Sequence& s) {
  if (s.counted) return;
  s.counted = true;
  ++reasons_[static_cast<size_t>(s.prefix)];
  const int found = s.hold.blocks * kBlock;
  if (uses_cache(s)) queries_ += s.prompt_size();
  hits_ += found;
  s.stats.cached_tokens = found;
  // Whose prompts are like whose is not for the person who asks.
  const bool others = s.prefix == PrefixReason::kOtherTenant;
  s.stats.prefix = !others ? s.prefix : found > 0 ? PrefixReason::kDiverged : PrefixReason::kNoMatch;
}

void Scheduler::push_row(Sequence& s, Phase phase, Batch& batch) {
  const bool scores = scores_prompt(s);
  const int position = s.computed++;
  const bool wants_logits = scores || s.computed == s.size();
  const TokenInfo info{phase, s.request.isolated, s.request.group, s.request.policy};
  batch.rows.push(s.tokens[static_cast<size_t>(position)], position, s.blocks.data(), info, wants_logits);
  if (wants_logits) batch.owners.push_back(&s);
}

void Scheduler::computed(const Batch& batch, std::span<const RowRouting> rows, double seconds) {
  pacer_.observe(batch.decode_rows, batch.prefill_rows, seconds);
  for (const BatchPart& part : batch.parts) {
    for (int r = part.first_row; r < part.first_row + part.rows; ++r) {
      const bool routed = rows[static_cast<size_t>(r)].reasons[static_cast<size_t>(PlainReason::kApplied)] > 0;
      if (!routed && part.sequence->plain == batch.rows.positions[static_cast<size_t>(r)]) ++part.sequence->plain;
    }
  }
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id, bool keep_prefix) {
  const auto found = std::find_if(running_.begin(), running_.end(), [id](const auto& s) { return s->id == id; });
  if (found == running_.end()) return waiting_.remove(id);
  std::unique_ptr<Sequence> out = std::move(*found);
  running_.erase(found);
  free_blocks(*out, keep_prefix);
  return out;
}

// What a cancelled or preempted sequence has computed so far is kept, too: who asks again does not start anew.
void Scheduler::free_blocks(Sequence& s, bool keep_prefix) {
  if (keep_prefix && options_.prefix_cache && s.request.cache_prefix) {
    const auto plain = static_cast<size_t>(std::min(s.plain, s.computed));
    cache_.insert(s.request.tenant, std::span(s.tokens).first(plain), s.hold, s.blocks);
  }
  cache_.release(s.hold, s.blocks);
  s.computed = s.plain = s.prompt_end = 0;
  s.shared = false;
}

}  // namespace carpool
