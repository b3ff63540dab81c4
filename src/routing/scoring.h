// The model's own rule: from router logits to scores, and from chosen experts to weights. Data, not code per model.
//
// Owns Scoring and its two functions. Sources: Qwen3-MoE and OLMoE (softmax with and without renormalisation), gpt-oss
// (softmax over the chosen), DeepSeek-V3 and GLM-4.5 to 5 (sigmoid, selection bias, groups, routed scaling).
// Arithmetic is float32; exponentials and a softmax's sum are double, rounded, so that other code gets the same bits.
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
  bool renormalize = true;                 // divide by the sum over the chosen (kSoftmaxTopk always sums to 1)
  bool unit_weights = false;               // a chosen expert counts whole: scores rank, and weigh nothing
  std::vector<float> selection_bias = {};  // [E] or empty; added for ranking only
  int n_group = 1;
  int topk_group = 1;
  GroupScore group_score = GroupScore::kTop2;
  float routed_scaling_factor = 1.0f;

  // Throws Error{kMalformed} naming the violated relation: K in 1..E, n_group divides E, topk_group <= n_group,
  // groups of at least 2 for top-2 scores, K <= experts of the selected groups, bias size, finite scaling, unit weights
  // that nothing divides.
  void check(int n_experts, int top_k) const;
};

// logits [T, E] -> rank [T, E] (selection scores, -inf outside the allowed groups) and mix [T, E] (weight scores).
//   mix   kSoftmax, kSoftmaxTopk: softmax over all E (renormalised over the chosen it is the softmax over the chosen);
//         kSigmoid: sigmoid, never derived from a biased score.
//   rank  kSoftmax: probability + bias; without a bias the logit itself, which orders the same and does not collapse
//         where probabilities round to one value; kSoftmaxTopk: logit + bias; kSigmoid: sigmoid + bias.
// Groups are scored by the model's selection scores (probability, logit or sigmoid, bias included); experts that cannot
// be chosen do not count, equal groups resolve to the lower id. A NaN or -inf logit gets rank -inf and mix 0 and does
// not disturb its row; +inf logits share all the softmax mass equally. Spans must not overlap. No allocation.
void score(const Scoring& scoring, int n_experts, std::span<const float> logits, std::span<float> rank,
           std::span<float> mix);

// The weight of every slot of `chosen`, in its order: mix gathered, divided by its sum over the row (taken in the row's
// order, so best first) where the model renormalises, then scaled. weights has chosen.size() entries, none of them NaN.
// Where it renormalises, a row whose sum is 0 gets equal weights. A row with a divisor of its own (Selection::end_row)
// is divided by that and by nothing else; slots and sums of its own (push, end_row) stand in for what is gathered and
// summed here.
//
// Unit weights: the experts are parts of a sum, a dense block cut into pieces, and all of them together are that block.
// Every slot weighs 1, one that stands for others what it counts (RouterInput::slot_weight), and no divisor, the row's
// own included, is applied: half of the parts divided by half of the scores would be a sum that the model never has.
void finish_weights(const Scoring& scoring, int n_experts, std::span<const float> mix, const Selection& chosen,
                    std::span<float> weights);

}  // namespace carpool
