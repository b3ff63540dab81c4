// The vocabulary of routing: what a policy is given and what it answers.
//
// Owns RouterInput (one MoE layer's scores for the rows of one step), Selection (which experts each row
// uses, and why a row stayed plain) and Scratch. Plain host data; no policy and no model is known here.
// Symbols: T rows of the step, E experts of the layer, K experts per token. Read next: policy.h, scoring.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace carpool {

enum class Phase : uint8_t { kPad, kPrefill, kDecode };

// What a policy may know of a row: nothing of its text.
struct TokenInfo {
  Phase phase = Phase::kDecode;
  bool isolated = false;  // plain routing for this row; it neither lends experts nor borrows
  int group = 0;          // scope: unions and guards are taken per group
  int policy = 0;         // which of several policies decides for the row; see policy_set.h
};

struct RouterInput {
  std::span<const float> rank_scores;    // [T, E] higher is better, selection bias included, -inf = not allowed
  std::span<const float> weight_scores;  // [T, E] unbiased: what weights and mass thresholds are made of
  std::span<const TokenInfo> tokens;     // [T]
  int n_experts = 0;                     // E
  int top_k = 0;                         // K
  int layer = 0;
  bool unit_weights = false;  // the model weighs every expert 1 (Scoring::unit_weights); scores still say who is best

  // What a slot of `expert` counts in row t, for policies that let slots stand for others: never negative, 0 for NaN.
  float slot_weight(int t, int expert) const {
    if (unit_weights) return 1;
    const float w = weight_row(t)[static_cast<size_t>(expert)];
    return w > 0 ? w : 0.0f;
  }
  int rows() const { return static_cast<int>(tokens.size()); }
  std::span<const float> rank_row(int t) const {
    return rank_scores.subspan(static_cast<size_t>(t) * n_experts, n_experts);
  }
  std::span<const float> weight_row(int t) const {
    return weight_scores.subspan(static_cast<size_t>(t) * n_experts, n_experts);
  }
};

// Why a row got the model's own choice although a batch-aware policy was asked for.
enum class PlainReason : uint8_t {
  kApplied,   // it did not: the policy decided
  kPolicy,    // the policy is plain routing, or is switched off (k0 = 0)
  kIsolated,  // the row asked for it
  kPhase,     // prefill or padding
  kMinBatch,  // fewer eligible rows in the group than min_batch
  kMaxRows,   // more rows in the step than max_rows
  kUnion,     // the union guard: fewer experts in the union than K
  kBudget,    // the budget guard: plain routing loads no more experts than the policy may
};
inline constexpr int kPlainReasons = 8;
// "applied", "policy", "isolated", "phase", "min_batch", "max_rows", "union", "budget"
const char* name(PlainReason reason);

// Which experts each row uses: compressed rows, best first. Rows may have different counts; pads have none.
class Selection {
 public:
  static constexpr float kOwnMix = -1;

  // Empties the selection for `rows` rows in order; rows are then written first to last. No allocation once
  // the largest batch has been seen.
  void start(int rows, int max_per_row);
  // `mix` >= 0: what the slot counts in the row in place of its expert's weight score, where it stands for others.
  void push(int expert, float mix = kOwnMix) {
    experts_.push_back(expert);
    mixes_.push_back(mix);
  }
  // `divisor` > 0: the row's weight scores are divided by it instead of what the model's rule divides them by. `sum` >
  // 0: where that rule divides by the sum over the row's slots, it takes this one.
  void end_row(PlainReason reason, float divisor = 0, float sum = 0) {
    offsets_.push_back(static_cast<int>(experts_.size()));
    reasons_.push_back(reason);
    divisors_.push_back(divisor);
    sums_.push_back(sum);
  }

  int rows() const { return static_cast<int>(reasons_.size()); }
  int size() const { return static_cast<int>(experts_.size()); }  // slots of all rows together
  int begin(int row) const { return offsets_[static_cast<size_t>(row)]; }
  int end(int row) const { return offsets_[static_cast<size_t>(row) + 1]; }
  std::span<const int> row(int t) const {
    return std::span(experts_).subspan(static_cast<size_t>(begin(t)), static_cast<size_t>(end(t) - begin(t)));
  }
  std::span<const int> experts() const { return experts_; }  // all slots, row after row
  PlainReason reason(int row) const { return reasons_[static_cast<size_t>(row)]; }
  float divisor(int row) const { return divisors_[static_cast<size_t>(row)]; }
  float sum(int row) const { return sums_[static_cast<size_t>(row)]; }
  float mix(int slot) const { return mixes_[static_cast<size_t>(slot)]; }

 private:
  std::vector<int> experts_;
  std::vector<float> mixes_;
  std::vector<int> offsets_;
  std::vector<PlainReason> reasons_;
  std::vector<float> divisors_, sums_;
};

// Memory that policies and counters reuse from step to step; grows to the largest batch and stays. What each member
// means is up to the helper that fills it (rank.h, scope.h).
struct Scratch {
  std::vector<int> order;              // [E]: the rank order under work (rank.h)
  std::vector<int> groups;             // [G] distinct groups of the step, ascending (scope.h)
  std::vector<int> group_of_row;       // [T] index into groups; -1 for pads
  std::vector<int> group_rows;         // [G] rows of the group that the policy may re-route
  std::vector<int> group_k0;           // [G] the size of base sets, where a policy finds it for itself (oea.cc)
  std::vector<PlainReason> verdict;    // [G] why the whole group stays plain, or kApplied
  std::vector<uint64_t> sets;          // [G, words] expert sets, one bit per expert
  std::vector<int64_t> votes;          // [G, E] what the rows of a group say for an expert (pool.h)
  std::vector<int> candidates;         // [E] experts in the order of their votes (pool.h)
  std::vector<float> shares;           // [E] what the slots of one row add to an expert, below 0 without (merged_row.h)
  std::vector<int> merged;             // the experts of that row (merged_row.h)
  std::vector<float> biased;           // [E] one row's scores with a policy's own bonus (cache_prior.cc)
  std::vector<int64_t> parties;        // distinct (policy, group) pairs of the step, ascending (counters.cc)
  std::vector<TokenInfo> tokens;       // [T] the rows as one of several policies sees them (policy_set.cc)
  std::vector<Selection> parts;        // [policies] what each of several policies chose (policy_set.cc)
  std::vector<TokenInfo> band_tokens;  // [T] the rows with the policies of their groups' sizes (bands.cc)
  std::vector<Scratch> nested;         // of the policies within one that is made of others (bands.cc)
};

}  // namespace carpool
