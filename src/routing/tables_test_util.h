// Random routing tables for tests, a function of their seed. Used by tests only.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "routing/cases_test_util.h"
#include "routing/policy.h"

namespace carpool::test {

// Tables of one layer, number 0, for layers of E experts and K per token. Half of them have few distinct values, so
// that ties are likely.
inline std::shared_ptr<const RoutingTables> random_tables(int n_experts, int top_k, uint64_t seed) {
  Rng rng(seed * 7919 + 13);
  auto tables = std::make_shared<RoutingTables>();
  tables->n_experts = n_experts;
  tables->top_k = top_k;
  LayerTables& t = tables->layers.emplace_back();
  const int steps = chance(rng, 50) ? 4 : 1 << 16;
  const auto E = static_cast<size_t>(n_experts);
  const auto fill = [&](std::vector<float>& values, size_t n, float most) {
    values.resize(n);
    for (float& v : values) v = most * static_cast<float>(below(rng, steps + 1)) / static_cast<float>(steps);
  };
  fill(t.similarity, E * E, 1);
  fill(t.fold_scale, E * E, 1.5f);
  fill(t.fold_loss, E * E, 1);
  fill(t.norm, E, 8);
  fill(t.contribution, E, 2);
  for (size_t i = 0; i < E; ++i) {
    t.similarity[i * E + i] = t.fold_scale[i * E + i] = 1;
    t.fold_loss[i * E + i] = 0;
    for (size_t j = 0; j < i; ++j) t.similarity[i * E + j] = t.similarity[j * E + i];
    t.resident.push_back(chance(rng, 30) ? 1 : 0);
  }
  t.rank_range = 4;
  t.k0 = 1 + below(rng, top_k);
  tables->check("random tables");
  return tables;
}

// Gives a policy that needs tables random ones for the layers of a case.
inline void prepare(Policy& policy, int n_experts, int top_k, uint64_t seed) {
  if (!policy.tables_file().empty()) policy.use_tables(random_tables(n_experts, top_k, seed));
}

}  // namespace carpool::test
