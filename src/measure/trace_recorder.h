// Routing traces of runs: what ran is written down token by token, and can be run again.
//
// Owns TraceRecorder, which watches steps (StepObserver) and writes carpool's own format (trace.h), with the tokens,
// the weights and a checksum of the logits of each row, and on request all scores of the router; and force_trace, which
// runs the recorded sequences, each alone, with the recorded experts and weights in place of the policy, and compares
// the logits bit for bit: a request that shared its experts with others is reproduced without them. A trace holds its
// text, as token ids: treat it like the prompts.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/output_file.h"
#include "measure/trace.h"
#include "model/model.h"

namespace carpool {

struct TraceFacts {
  std::string model, model_hash;  // as it was called; model_identity.h
  std::string policy;             // spec
  std::string routers;            // model/routing_tables.h, router_hash; "" of what has none
};

class TraceRecorder final : public StepObserver {
 public:
  enum class Writing {
    kWhole,  // the file appears, readable by its owner and group as usual, when finish() is called, or not at all
    kAppend  // lines go to the file, which must be new and is its owner's alone, step by step: for what has no end
  };
  // Error{kCannotCreate}.
  TraceRecorder(const std::string& path, Writing writing, const ModelConfig& config, const TraceFacts& facts,
                bool scores);
  ~TraceRecorder() override;

  void routed(const RoutedLayer& layer) override;
  void row(int row, uint64_t sequence, int position, int token, std::span<const float> logits) override;

  // Ends the file; throws what went wrong since the start, if anything did: steps themselves are never disturbed.
  void finish();
  int64_t tokens() const { return tokens_; }

 private:
  // One MoE layer of the step under way.
  struct Layer {
    std::vector<int> offsets, experts;  // [T + 1], slots
    std::vector<float> weights;         // slots
    std::vector<float> rank, mix;       // [T, E] or empty
  };
  void write(const std::string& text);

  std::string path_;
  bool scores_;
  Trace shape_;  // no sequences: what a line needs to know
  std::vector<Layer> layers_;
  std::unique_ptr<OutputFile> file_;
  int fd_ = -1;
  std::string pending_;  // of kAppend, until the next step begins
  int64_t tokens_ = 0;
  std::optional<Error> failure_;
};

struct ForcedReplay {
  int64_t sequences = 0, tokens = 0;
  int64_t compared = 0, equal = 0;  // rows whose logits were recorded; of them those with the same bits now
  std::string first_difference;     // "sequence 3 position 17", or ""
};

// Error{kConfig} when the trace was recorded from another model or lacks tokens or weights, or does not fit the
// context; kMalformed for token ids beyond the vocabulary. `chunk` rows of a sequence run in one step.
ForcedReplay force_trace(Model& model, const std::string& hash, const Trace& trace, int chunk,
                         const std::function<void(double)>& progress = {});

}  // namespace carpool
