// The rows of a step. See scheduler.h.
#include "engine/scheduler.h"

#include <algorithm>

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

// Prompts that were finished by the last step become prefixes for others.
void Scheduler::share_prompts() {
  if (!options_.prefix_cache) return;
  for (auto& s : running_) {
    if (s->shared || in_prompt(*s) || !s->request.cache_prefix) continue;
    s->shared = true;
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

// Oldest first. Rows whose logits only score a prompt are bounded by themselves, so such a prompt may take less than
// the chunk leaves.
void Scheduler::push_prompts(Batch& batch) {
  int budget = pacer_.prompt_rows(batch.decode_rows, options_.chunk), scores = options_.score_rows;
  for (auto& owned : running_) {
    Sequence& s = *owned;
    if (budget == 0) break;
    if (!in_prompt(s)) continue;
    reuse_prefix(s);
    BatchPart part{&s, batch.rows.size(), 0, Phase::kPrefill};
    for (; in_prompt(s) && budget > 0; --budget, ++part.rows) {
      if (scores_prompt(s)) {
        if (scores == 0) break;
        --scores;
      }
      push_row(s, Phase::kPrefill, batch);
    }
    if (part.rows > 0) batch.parts.push_back(part);
  }
  batch.prefill_rows = batch.rows.size() - batch.decode_rows;
}

// Before each of its chunks: what others have computed in the meantime is taken, too.
void Scheduler::reuse_prefix(Sequence& s) {
  const int before = s.counted ? s.computed : 0;
  PrefixReason reason = PrefixReason::kOff;
  if (uses_cache(s)) {
    reason = cache_.match(s.request.tenant, reusable(s), s.hold, s.blocks);
    if (s.hold.blocks * kBlock > s.computed) start_at_hold(s);
  } else if (options_.prefix_cache && s.scoring()) {
    reason = PrefixReason::kLogprobs;
  }
  if (s.stats.preemptions == 0) {
    s.stats.cached_tokens += s.computed - before;
    hits_ += s.computed - before;
  }
  if (s.counted) return;
  s.counted = true;
  ++reasons_[static_cast<size_t>(reason)];
  if (uses_cache(s)) queries_ += s.prompt_size();
  // Whose prompts are like whose is not for the person who asks.
  const bool others = reason == PrefixReason::kOtherTenant;
  s.stats.prefix = !others ? reason : s.computed > 0 ? PrefixReason::kDiverged : PrefixReason::kNoMatch;
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
