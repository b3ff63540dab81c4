// Which rows run in the next step.
//
// Owns the sequences from admission to release and their KV blocks. Decode first: every running sequence that has a
// token to extend gets its row; what is left of the chunk goes to prompts, oldest first. Without preemption a sequence
// is admitted only when all blocks it can ever need are free, so nothing that runs can get stuck. With it, blocks are
// taken as decoding goes, and when none is left the newest sequence gives way: it waits again, keeps its tokens and
// computes them anew. The oldest always goes on, so all end. Does not compute. Read next: fair_queue.h, prefix_cache.h.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "engine/fair_queue.h"
#include "engine/pacer.h"
#include "engine/prefix_cache.h"
#include "engine/sequence.h"
#include "model/language_model.h"

namespace carpool {

struct SchedulerOptions {
  int max_batch = 64;        // sequences that run at once
  int chunk = 256;           // most prompt rows per step
  int score_rows = 32;       // most rows per step whose logits only score a prompt
  double step_target_s = 0;  // see pacer.h
  bool prefix_cache = false;
  bool preempt = false;
};

// Consecutive rows of one sequence.
struct BatchPart {
  Sequence* sequence = nullptr;
  int first_row = 0, rows = 0;
  Phase phase = Phase::kPrefill;
};

// The rows of a step and whose logits they bring.
struct Batch {
  Rows rows;
  std::vector<BatchPart> parts;     // of all rows, in order
  std::vector<Sequence*> owners;    // of rows.logit_rows
  std::vector<RequestId> admitted;  // for the first time
  int decode_rows = 0;
  int prefill_rows = 0;

  void clear();
};

class Scheduler {
 public:
  Scheduler(KvCache& kv, const SchedulerOptions& options);

  void add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }
  // Admits what fits, fills `batch` and advances `computed`; false when there is nothing to do.
  bool next(Batch& batch);
  // The rows of `batch` were computed in `seconds`; `rows` [T] says how they were routed. Call before any remove().
  void computed(const Batch& batch, std::span<const RowRouting> rows, double seconds);
  // Takes a sequence out, wherever it is, and frees its blocks; null when the id is unknown. With `keep_prefix` what it
  // computed goes to the prefix cache, if it may.
  std::unique_ptr<Sequence> remove(RequestId id, bool keep_prefix = true);

  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return waiting_.size(); }
  const std::vector<std::unique_ptr<Sequence>>& sequences() const { return running_; }  // that run, oldest first
  PrefixCache& prefix_cache() { return cache_; }
  const PrefixCache& prefix_cache() const { return cache_; }
  int64_t preemptions() const { return preemptions_; }
  const std::array<int64_t, kPrefixReasons>& prefix_reasons() const { return reasons_; }
  int64_t prefix_queries() const { return queries_; }
  int64_t prefix_hits() const { return hits_; }

 private:
  struct PromptShare {
    Sequence* sequence;
    int rows;
  };
  void share_prompts();
  void admit(Batch& batch);
  bool take_blocks(Sequence& s);
  // Makes sure that the i-th running sequence has a block for its next position. False when it had to give way itself.
  bool grow(size_t i);
  void preempt_newest();
  void push_decodes(Batch& batch);
  void push_prompts(Batch& batch);
  void push_row(Sequence& s, Phase phase, Batch& batch);
  bool follows_another(const Sequence& s) const;
  void share_rows(int budget);
  int most_rows(const Sequence& s) const;  // of its prompt in one step, were it alone
  bool uses_cache(const Sequence& s) const;
  void reuse_prefix(Sequence& s);
  void count_prefix(Sequence& s);
  void free_blocks(Sequence& s, bool keep_prefix);

  SchedulerOptions options_;
  PrefixCache cache_;
  FairQueue waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission
  std::vector<PromptShare> prompts_;                // under way in this step, oldest first
  Pacer pacer_;
  int64_t preemptions_ = 0, queries_ = 0, hits_ = 0;
  std::array<int64_t, kPrefixReasons> reasons_{};
};

}  // namespace carpool
