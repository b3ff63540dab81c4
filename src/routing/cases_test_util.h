// Router inputs for tests: one owned input, small random cases of every awkward kind, and random OEA specs.
//
// Every case is a function of its seed. Sizes are mostly small (where ties and empty unions are likely) with a tail to
// 256 experts and 40 rows. Used by tests only.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "routing/types.h"

namespace carpool::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int n_experts = 0;
  int top_k = 0;
  std::vector<float> rank;    // [T, E]
  std::vector<float> weight;  // [T, E]
  std::vector<TokenInfo> tokens;

  RouterInput input() const {
    return {.rank_scores = rank, .weight_scores = weight, .tokens = tokens, .n_experts = n_experts, .top_k = top_k};
  }
  int rows() const { return static_cast<int>(tokens.size()); }

  void add_row(const std::vector<float>& rank_row, const std::vector<float>& weight_row, TokenInfo token = {}) {
    rank.insert(rank.end(), rank_row.begin(), rank_row.end());
    weight.insert(weight.end(), weight_row.begin(), weight_row.end());
    tokens.push_back(token);
  }
  void add_row_of(const Case& other, int t) {
    const auto from = static_cast<long>(t) * n_experts;
    add_row({other.rank.begin() + from, other.rank.begin() + from + n_experts},
            {other.weight.begin() + from, other.weight.begin() + from + n_experts},
            other.tokens[static_cast<size_t>(t)]);
  }
  Case without_rows() const { return {n_experts, top_k, {}, {}, {}}; }
};

using Rng = std::mt19937_64;
inline int below(Rng& rng, int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); }
inline bool chance(Rng& rng, int percent) { return below(rng, 100) < percent; }

// One row of rank scores and positive weights that sum to about 1 (or do not, as under sigmoid).
struct RowStyle {
  bool quantised = false;    // few distinct scores: ties everywhere
  bool specials = false;     // NaN, infinities, negative zero
  bool independent = false;  // weights that do not follow the rank scores, as under a selection bias
};
inline void random_row(Rng& rng, const RowStyle& style, int n_experts, std::vector<float>& rank,
                       std::vector<float>& weight) {
  rank.resize(static_cast<size_t>(n_experts));
  weight.resize(static_cast<size_t>(n_experts));
  float sum = 0;
  for (size_t e = 0; e < rank.size(); ++e) {
    const float u = static_cast<float>(below(rng, 1 << 20)) / (1 << 18);  // 0 to 4
    rank[e] = style.quantised ? std::floor(u) : u;
    weight[e] = style.independent ? static_cast<float>(below(rng, 8)) : std::exp(rank[e]);
    if (style.specials && chance(rng, 25)) {
      const float values[] = {kNan, -kInf, kInf, -0.0f, 0.0f, -kNan};
      rank[e] = values[below(rng, 6)];
      if (!(rank[e] > -kInf)) weight[e] = 0;
    }
    sum += weight[e];
  }
  if (!style.independent && sum > 0) {
    for (float& w : weight) w /= sum;
  }
}

inline Case random_case(Rng& rng) {
  static const int kExperts[] = {4, 4, 4, 5, 6, 8, 8, 8, 12, 16, 17, 32, 60, 64, 65, 128, 256};
  Case c;
  c.n_experts = kExperts[below(rng, chance(rng, 85) ? 11 : 17)];
  c.top_k = 1 + below(rng, std::min(c.n_experts, chance(rng, 97) ? 8 : 64));
  const int rows = chance(rng, 95) ? below(rng, 9) : below(rng, 41);
  const int groups = chance(rng, 50) ? 1 : 3;
  const int odd = chance(rng, 40) ? 0 : 30;  // percent of rows that are not ordinary decode rows
  const RowStyle style{chance(rng, 50), chance(rng, 25), chance(rng, 25)};
  const bool alike = chance(rng, 30);  // rows repeat, so that unions stay small
  std::vector<float> rank, weight;
  for (int t = 0; t < rows; ++t) {
    if (t == 0 || !alike || chance(rng, 40)) random_row(rng, style, c.n_experts, rank, weight);
    TokenInfo token;
    token.group = below(rng, groups) * 7 - 7;
    if (chance(rng, odd)) token.phase = static_cast<Phase>(below(rng, 3));
    token.isolated = chance(rng, odd / 2);
    c.add_row(rank, weight, token);
  }
  return c;
}

// Any OEA spec that check() accepts for the case.
inline std::string random_oea_spec(Rng& rng, const Case& c) {
  const int k0 = below(rng, c.top_k + 1);
  std::string spec = "oea:k0=" + std::to_string(k0);
  const auto add = [&](const std::string& key, const std::string& value) { spec += "," + key + "=" + value; };
  const auto from_k0 = [&](int high) { return std::to_string(std::max(1, k0 + below(rng, high - k0 + 1))); };
  const char* shares[] = {"0.2", "0.35", "0.5", "0.75", "0.9", "1", "2"};
  if (chance(rng, 30)) add("p", shares[below(rng, 7)]);
  if (chance(rng, 30)) add("k_max", from_k0(chance(rng, 50) ? c.top_k : c.n_experts));
  if (chance(rng, 30)) add("max_p", from_k0(c.n_experts));
  if (chance(rng, 60)) add("min_batch", std::to_string(1 + below(rng, 4)));
  if (chance(rng, 15)) add("max_rows", std::to_string(1 + below(rng, 8)));
  if (chance(rng, 25)) add("underfill", "keep");
  if (chance(rng, 25)) add("lend", "prefill");
  if (chance(rng, 50)) add("guard", "off");
  return spec;
}

}  // namespace carpool::test
