// The model's own rule: from router logits to scores, and from chosen experts to weights. Data, not code per model.
//
// Owns Scoring and its two functions. Sources: Qwen3-MoE and OLMoE (softmax with and without renormalisation), gpt-oss
// (softmax over the chosen), DeepSeek-V3 and GLM-4.5 to 5 (sigmoid, selection bias, groups, routed scaling).
// All arithmetic is float32.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "routing/types.h"

namespace carpool {

struct Scoring {
  enum class Kind { kSoftmax, kSoftmaxTopk, kSigmoid };  // softmax over all E; over the chosen; elementwise sigmoid
  enum class GroupScore { kMax, kTop2 };                 // DeepSeek-V2; DeepSeek-V3

  Kind kind = Kind::kSoftmax;
  bool renormalize = true;            // divide by the sum over the chosen (kSoftmaxTopk always sums to 1)
  std::vector<float> selection_bias;  // [E] or empty; added for ranking only
  int n_group = 1;
  int topk_group = 1;
  GroupScore group_score = GroupScore::kTop2;
  float routed_scaling_factor = 1.0f;

  // Throws Error{kMalformed} naming the violated relation: K in 1..E, n_group divides E, topk_group <= n_group,
  // groups of at least 2 for top-2 scores, K <= experts of the selected groups, bias size, finite scaling.
  void check(int n_experts, int top_k) const;
};

// logits [T, E] -> rank [T, E] (selection scores, -inf outside the allowed groups) and mix [T, E] (weight scores).
// A NaN logit gets rank -inf and mix 0 and does not disturb its row. Spans must not overlap.
void score(const Scoring& scoring, int n_experts, std::span<const float> logits, std::span<float> rank,
           std::span<float> mix);

// The weight of every slot of `chosen`, in its order: mix gathered, renormalised over the row in rank order, scaled.
// weights has chosen.size() entries. A row whose sum is 0 gets equal weights.
void finish_weights(const Scoring& scoring, int n_experts, std::span<const float> mix, const Selection& chosen,
                    std::span<float> weights);

}  // namespace carpool
