// Which rows run in the next step.
//
// Owns the sequences from admission to release and their KV blocks. Decode first: every running sequence that has
// a token to extend gets its row; what is left of the chunk goes to prompts, oldest first. A sequence is
// admitted only when all blocks it can ever need are free, so nothing that runs can get stuck. Does not compute.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "engine/text_stream.h"
#include "model/model.h"

namespace carpool {

// A request on its way through the engine.
struct Sequence {
  RequestId id = 0;
  Request request;
  std::vector<int> tokens;  // prompt, then what was generated
  int computed = 0;         // positions whose keys and values are stored
  std::vector<int> blocks;
  TextStream text;

  int generated() const { return static_cast<int>(tokens.size() - request.prompt.size()); }
  int most_positions() const { return static_cast<int>(request.prompt.size()) + request.max_tokens; }
};

// The rows of a step and whose logits they bring.
struct Batch {
  Rows rows;
  std::vector<Sequence*> owners;  // of rows.logit_rows
  int decode_rows = 0;
  int prefill_rows = 0;
};

class Scheduler {
 public:
  Scheduler(KvCache& kv, int max_batch, int chunk) : kv_(kv), max_batch_(max_batch), chunk_(chunk) {}

  void add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }
  // Admits what fits, fills `batch` and advances `computed`; false when there is nothing to do.
  bool next(Batch& batch);
  // Takes a sequence out, wherever it is, and frees its blocks; null when the id is unknown.
  std::unique_ptr<Sequence> remove(RequestId id);

  int running() const { return static_cast<int>(running_.size()); }
  int waiting() const { return static_cast<int>(waiting_.size()); }

 private:
  void admit();
  void push_rows(Sequence& s, int count, Phase phase, Batch& batch);

  KvCache& kv_;
  int max_batch_, chunk_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission
};

}  // namespace carpool
