// A model that tells when requests are mixed up: its next token depends on everything that lies in its memory.
//
// Owns CanaryModel. The state of a position is a hash of its token, its place, the state before it and one state of
// every earlier block, and lives only in the key-value blocks of the sequence. The next token follows from the state,
// so one wrong block, position, row or stale value changes the rest of the text, and expected() knows the right one.
// One made-up MoE layer with scores from the state lets policies and counters work; it has no say in the text.
// Its tokens are letters, digits and spaces of the tokenizer in text/dummy_tokenizer.h; it never ends by itself.
#pragma once

#include <span>
#include <vector>

#include "model/language_model.h"

namespace carpool {

struct CanaryOptions {
  int context = 4096;  // positions
  int step_us = 0;     // every step sleeps so long, for tests that need steps to take time
};

class CanaryModel final : public LanguageModel {
 public:
  explicit CanaryModel(const CanaryOptions& options = {});

  const ModelConfig& config() const override { return config_; }
  KvFormat kv_format() const override { return KvFormat::kF32; }
  uint64_t step_bytes(int rows, int logit_rows) const override;
  void reserve(int rows, int logit_rows) override;
  Matrix forward(const Rows& rows, KvCache& kv, const Policy& policy, const StepRecord& record) override;

  // The `n` tokens that follow `prompt` (not empty) under greedy choice, and all but surely at temperatures up to 1.
  static std::vector<int> expected(std::span<const int> prompt, int n);

 private:
  void route(const Rows& rows, const Policy& policy, const StepRecord& record);

  ModelConfig config_;
  int step_us_ = 0;
  std::vector<uint64_t> states_;  // [T] of this step
  std::vector<float> scores_;     // [T, E]
  std::vector<float> logits_;     // [logit_rows, V]
  Selection chosen_, plain_;
  Scratch scratch_;
};

}  // namespace carpool
