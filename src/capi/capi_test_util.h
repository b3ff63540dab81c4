// Random batches for the C API, and what the engine makes of them: score, select, finish_weights as moe_block calls
// them. Used by tests only.
#pragma once

#include <carpool/routing.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "routing/cases_test_util.h"
#include "routing/policy.h"
#include "routing/scoring.h"

namespace carpool::capi_test {

using test::below;
using test::chance;
using test::Rng;

// What a caller of the C API has.
struct Input {
  carpool_routing_model model;
  std::string policy;
  std::vector<float> logits;  // [T, E] exact in `type`
  int32_t type = CARPOOL_ROUTING_F32;
  std::vector<float> bias;  // [E] or empty
  std::vector<uint8_t> flags;
  std::vector<int32_t> groups;
  int layer = 0;

  int rows() const { return static_cast<int>(flags.size()); }
};

inline uint16_t to_bf16(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

// One logit: few distinct ones where ties are wanted, special values now and then.
inline float random_logit(Rng& rng, bool ties, bool specials) {
  if (specials && chance(rng, 10)) {
    const float values[] = {test::kNan, -test::kInf, test::kInf, -0.0f, 0.0f, -100.0f};
    return values[below(rng, 6)];
  }
  if (ties) return static_cast<float>(below(rng, 5)) - 2;
  return static_cast<float>(below(rng, 1 << 20)) / (1 << 17) - 4;
}

inline carpool_routing_model random_model(Rng& rng) {
  static const int kExperts[] = {4, 6, 8, 16, 64, 256};
  carpool_routing_model m;
  carpool_routing_model_init(&m, sizeof m);
  m.n_experts = kExperts[below(rng, chance(rng, 85) ? 4 : 6)];
  m.scoring = below(rng, 3);
  m.renormalize = below(rng, 2);
  if (chance(rng, 40)) {
    m.n_group = 2;
    m.topk_group = 1 + below(rng, 2);
    m.group_score = below(rng, 2);
  }
  m.top_k = 1 + below(rng, std::min(8, m.topk_group * (m.n_experts / m.n_group)));
  if (chance(rng, 50)) m.routed_scaling_factor = 2.5f;
  m.n_shared = below(rng, 3);
  m.shared_weight = chance(rng, 50) ? 0.4f : 1.0f;
  m.filler = below(rng, 2);
  return m;
}

// One of the example specs of all policies that fits the layer.
inline std::string random_example(Rng& rng, int n_experts, int top_k) {
  const std::vector<PolicyInfo>& list = policy_list();
  while (true) {
    const std::vector<std::string>& examples =
        list[static_cast<size_t>(below(rng, static_cast<int>(list.size())))].examples;
    const std::string& spec = examples[static_cast<size_t>(below(rng, static_cast<int>(examples.size())))];
    try {
      make_policy(spec)->check(n_experts, top_k);
      return spec;
    } catch (const Error&) {  // does not fit
    }
  }
}

inline Input random_input(Rng& rng) {
  Input in;
  in.model = random_model(rng);
  const int E = in.model.n_experts;
  test::Case shape;
  shape.n_experts = E;
  shape.top_k = in.model.top_k;
  in.policy = test::random_oea_spec(rng, shape);
  if (chance(rng, 40)) in.policy = random_example(rng, E, in.model.top_k);
  in.layer = below(rng, 3);
  if (chance(rng, 60)) {  // the magnitudes of GLM-5.1 and 5.2, where adding the bias leaves few digits
    const float center[] = {0.0f, 7.0f, 34.5f};
    const float at = center[below(rng, 3)];
    for (int e = 0; e < E; ++e) in.bias.push_back(at + static_cast<float>(below(rng, 256)) / 1024 - 0.125f);
  }
  const int T = below(rng, 9);
  const bool ties = chance(rng, 40), specials = chance(rng, 20), odd = chance(rng, 50);
  in.type = below(rng, 3);
  for (int i = 0; i < T * E; ++i) {
    float x = random_logit(rng, ties, specials);
    if (in.type != CARPOOL_ROUTING_F32) x = std::round(x * 64) / 64;  // nine bits, exact in either type
    if (in.type == CARPOOL_ROUTING_BF16) x = std::bit_cast<float>(static_cast<uint32_t>(to_bf16(x)) << 16);
    in.logits.push_back(x);
  }
  for (int t = 0; t < T; ++t) {
    in.flags.push_back(odd && chance(rng, 50) ? static_cast<uint8_t>(below(rng, 8)) : uint8_t{0});
    in.groups.push_back(odd ? below(rng, 2) * 5 : 0);
  }
  return in;
}

struct Output {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<uint8_t> reasons;
};

// What must come out, filler and shared columns included, in `columns` columns.
inline Output engine_output(const Input& in, int columns) {
  const carpool_routing_model& m = in.model;
  Scoring scoring{.kind = m.scoring == CARPOOL_ROUTING_SOFTMAX        ? Scoring::Kind::kSoftmax
                          : m.scoring == CARPOOL_ROUTING_SOFTMAX_TOPK ? Scoring::Kind::kSoftmaxTopk
                                                                      : Scoring::Kind::kSigmoid,
                  .renormalize = m.renormalize != 0,
                  .selection_bias = in.bias,
                  .n_group = m.n_group,
                  .topk_group = m.topk_group,
                  .group_score = m.group_score == CARPOOL_ROUTING_GROUP_TOP2 ? Scoring::GroupScore::kTop2
                                                                             : Scoring::GroupScore::kMax,
                  .routed_scaling_factor = m.routed_scaling_factor};
  std::vector<float> rank(in.logits.size()), mix(in.logits.size());
  score(scoring, m.n_experts, in.logits, rank, mix);
  std::vector<TokenInfo> tokens;
  for (int t = 0; t < in.rows(); ++t) {
    const uint8_t f = in.flags[static_cast<size_t>(t)];
    const Phase phase = (f & CARPOOL_ROUTING_ROW_PAD)       ? Phase::kPad
                        : (f & CARPOOL_ROUTING_ROW_PREFILL) ? Phase::kPrefill
                                                            : Phase::kDecode;
    tokens.push_back({phase, (f & CARPOOL_ROUTING_ROW_ISOLATED) != 0, in.groups[static_cast<size_t>(t)]});
  }
  Scratch scratch;
  Selection chosen;
  make_policy(in.policy)->select({rank, mix, tokens, m.n_experts, m.top_k, in.layer}, scratch, chosen);
  std::vector<float> weights(static_cast<size_t>(chosen.size()));
  finish_weights(scoring, m.n_experts, mix, chosen, weights);

  Output out;
  const bool repeat = m.filler == CARPOOL_ROUTING_FILL_REPEAT;
  for (int t = 0; t < in.rows(); ++t) {
    const std::span<const int> row = chosen.row(t);
    const bool pad = tokens[static_cast<size_t>(t)].phase == Phase::kPad;
    const int of_batch = chosen.size() > 0 ? chosen.experts()[0] : 0;
    for (int c = 0; c < columns - m.n_shared; ++c) {
      const bool used = c < static_cast<int>(row.size());
      const int dead = !repeat ? -1 : row.empty() ? of_batch : row[0];
      out.ids.push_back(used ? row[static_cast<size_t>(c)] : dead);
      out.weights.push_back(used ? weights[static_cast<size_t>(chosen.begin(t) + c)] : 0.0f);
    }
    for (int s = 0; s < m.n_shared; ++s) {
      out.ids.push_back(pad && !repeat ? -1 : m.n_experts + s);
      out.weights.push_back(pad ? 0.0f : m.shared_weight);
    }
    out.reasons.push_back(static_cast<uint8_t>(chosen.reason(t)));
  }
  return out;
}

}  // namespace carpool::capi_test
