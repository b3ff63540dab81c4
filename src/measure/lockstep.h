// Independent documents decoded in step, under several policies side by side, as OEA's paper evaluates routing.
//
// Owns the loop: the t-th tokens of B documents form the batch of step t, all rows in decode phase from the first token
// on, no prompt pass, the text itself as what comes next (arXiv 2511.02237, cross-entropy study). Plain routing runs
// beside every policy on the same tokens, step by step, so that logits are compared position by position and step times
// alternate A B C A B C within milliseconds. Does not own what the numbers mean: policy_score.h and quality.h.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/model.h"
#include "routing/policy.h"

namespace carpool {

// Token ids of independent documents, all of the same length.
using Documents = std::vector<std::vector<int>>;

struct LockstepOptions {
  int batch = 16;  // documents in step
  // Ways in which documents come together in batches: 0 is their own order, any other number the seed of a shuffle.
  // Each is a pass over all documents; what a document scores is the mean over them.
  std::vector<uint64_t> seeds = {0};
  std::function<void(double share)> progress;
  // Sees the steps of the last policy, or of topk when there is none; sequences are documents, counted from 1.
  StepObserver* observer = nullptr;
};

struct StepSample {
  float ms = 0;        // of the forward pass
  float distinct = 0;  // experts per MoE layer
};

// What one policy did.
struct LockstepRun {
  std::vector<double> loss;       // [documents] mean nats per prediction
  std::vector<double> kl;         // [documents] mean KL(topk || policy) per prediction, nats
  std::vector<double> agree;      // [documents] share of predictions whose most likely token is topk's
  std::vector<float> token_kl;    // of every prediction of every pass, in the order of computation
  std::vector<StepSample> steps;  // of every pass, in order
  RoutingCounters routing;
  int64_t predictions = 0;  // per pass
};

// log of the softmax's denominator, in double.
double log_sum_exp(std::span<const float> logits);

// KL(p || q) in nats of the distributions behind two rows of logits, given their log_sum_exp.
double divergence(std::span<const float> p, double p_log_sum, std::span<const float> q, double q_log_sum);

// Index of the largest value, the first of equal ones.
int argmax(std::span<const float> row);

// Error{kUsage} when documents of `tokens` tokens have more positions than the model.
void check_fits(int tokens, const ModelConfig& config);

// Run 0 is topk, then one per policy. Error{kUsage} when the documents do not fill whole batches, so that all batch
// sizes score the same text, do not fit the context, or are more than can be kept; kMalformed when logits are not
// finite. One thread at a time, as Model.
std::vector<LockstepRun> decode_in_step(Model& model, const std::vector<const Policy*>& policies,
                                        const Documents& documents, const LockstepOptions& options);

}  // namespace carpool
