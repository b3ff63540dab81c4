#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace carpool {

void Scheduler::admit() {
  while (!waiting_.empty() && running() < max_batch_) {
    Sequence& next = *waiting_.front();
    // The last token is never fed back, so its position needs no room.
    if (!kv_.take(KvCache::blocks_for(next.most_positions() - 1), next.blocks)) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Scheduler::push_rows(Sequence& s, int count, Phase phase, Batch& batch) {
  for (int i = 0; i < count; ++i) {
    const int position = s.computed++;
    const bool last = s.computed == static_cast<int>(s.tokens.size());
    batch.rows.push(s.tokens[static_cast<size_t>(position)], position, s.blocks.data(),
                    {phase, s.request.isolated, s.request.group}, last);
    if (last) batch.owners.push_back(&s);
  }
  (phase == Phase::kDecode ? batch.decode_rows : batch.prefill_rows) += count;
}

bool Scheduler::next(Batch& batch) {
  admit();
  batch.rows.clear();
  batch.owners.clear();
  batch.decode_rows = batch.prefill_rows = 0;
  for (auto& s : running_) {
    if (s->generated() > 0) push_rows(*s, 1, Phase::kDecode, batch);
  }
  int budget = chunk_;
  for (auto& s : running_) {
    const int left = static_cast<int>(s->tokens.size()) - s->computed;
    if (budget == 0 || left == 0) continue;
    const int take = std::min(left, budget);
    push_rows(*s, take, Phase::kPrefill, batch);
    budget -= take;
  }
  return batch.rows.size() > 0;
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  const auto is_it = [id](const auto& s) { return s->id == id; };
  std::unique_ptr<Sequence> out;
  if (auto r = std::find_if(running_.begin(), running_.end(), is_it); r != running_.end()) {
    out = std::move(*r);
    running_.erase(r);
    kv_.give_back(out->blocks);
  } else if (auto w = std::find_if(waiting_.begin(), waiting_.end(), is_it); w != waiting_.end()) {
    out = std::move(*w);
    waiting_.erase(w);
  }
  return out;
}

}  // namespace carpool
