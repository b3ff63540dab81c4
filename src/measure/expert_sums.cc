#include "measure/expert_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/memory.h"
#include "routing/rank.h"

namespace carpool {
namespace {

constexpr double kRidge = 1e-3;

// In double and eight lanes, whose order of sums is the same in every build.
double dot(const float* a, const float* b, int n) {
  std::array<double, 8> lanes{};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j)
      lanes[static_cast<size_t>(j)] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  }
  for (; i < n; ++i) lanes[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

void fill_similarity(ExpertSums& sums, LayerTables& tables) {
  const auto E = static_cast<size_t>(sums.n_experts());
  const std::span<const double> gram = sums.gram();
  std::vector<double> distance(E * E);
  for (size_t s = 0; s < E; ++s) {
    for (size_t t = 0; t < E; ++t) {
      const double d = gram[s * E + s] + gram[t * E + t] - 2 * gram[s * E + t];
      distance[s * E + t] = s == t ? 0 : std::sqrt(std::max(0.0, d));
    }
  }
  const double most = *std::max_element(distance.begin(), distance.end());
  for (const double d : distance) tables.similarity.push_back(most > 0 ? static_cast<float>(1 - d / most) : 1.0f);
}

void fill_folds(ExpertSums& sums, LayerTables& tables) {
  const auto E = static_cast<size_t>(sums.n_experts());
  for (size_t s = 0; s < E; ++s) {
    const bool met = sums.energy()[s * E + s] > 0;  // else no token of the text went there
    const double own = met ? sums.energy()[s * E + s] : sums.gram()[s * E + s];
    for (size_t t = 0; t < E; ++t) {
      const double product = met ? sums.cross()[s * E + t] : sums.gram()[s * E + t];
      const double energy = met ? sums.energy()[s * E + t] : sums.gram()[t * E + t];
      double scale = energy + kRidge * own > 0 ? std::max(0.0, product / (energy + kRidge * own)) : 0;
      double loss = own > 0 ? std::max(0.0, 1 - 2 * scale * product / own + scale * scale * energy / own) : 0;
      if (s == t) {
        scale = 1;
        loss = 0;
      }
      tables.fold_scale.push_back(static_cast<float>(scale));
      tables.fold_loss.push_back(static_cast<float>(loss));
    }
  }
}

}  // namespace

ExpertSums::ExpertSums(int n_experts)
    : experts_(static_cast<size_t>(n_experts)), values_(3 * experts_ * experts_ + 4 * experts_ + 2) {}

LayerTables tables_of_sums(ExpertSums& sums, int resident, const std::string& where) {
  const auto finite = [](double v) { return std::isfinite(v) && std::abs(v) < 1e37; };  // so that float32 holds it
  const std::span<const double> values = sums.values();
  const double tokens = sums.totals()[0];
  if (!std::all_of(values.begin(), values.end(), finite)) {
    throw Error(ErrorKind::kMalformed, fmt::format("{}: some expert's outputs are not finite or far too large", where));
  }
  if (!(tokens > 0)) throw Error(ErrorKind::kMalformed, fmt::format("{}: no tokens", where));
  LayerTables tables;
  fill_similarity(sums, tables);
  fill_folds(sums, tables);
  const auto E = static_cast<size_t>(sums.n_experts());
  for (size_t e = 0; e < E; ++e) {
    const double slots = sums.slots()[e];
    tables.norm.push_back(static_cast<float>(slots > 0 ? sums.norms()[e] / slots : sums.all_norms()[e] / tokens));
    tables.contribution.push_back(static_cast<float>(sums.contributions()[e] / tokens));
  }
  std::vector<size_t> order(E);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sums.slots()[a] > sums.slots()[b]; });
  tables.resident.assign(E, 0);
  for (size_t i = 0; i < std::min(E, static_cast<size_t>(resident)); ++i) tables.resident[order[i]] = 1;
  tables.rank_range = static_cast<float>(sums.totals()[1] / tokens);
  return tables;
}

ExpertGatherer::ExpertGatherer(Model& model, std::vector<ExpertSums>& sums) : model_(model), sums_(sums) {
  const ModelConfig& c = model.config();
  CARPOOL_CHECK(std::ssize(sums) == c.moe_layers());
  const auto E = static_cast<size_t>(c.n_experts);
  const size_t floats = E * kRows * static_cast<size_t>(c.width);
  require_memory(floats * sizeof(float) + E * E * sizeof(double), "the outputs of all experts");
  outputs_.resize(floats);
  products_.resize(E * E);
}

void ExpertGatherer::routed(const RoutedLayer& v) {
  const int D = model_.config().width, E = v.in.n_experts, rows = v.normed.rows;
  CARPOOL_CHECK(rows <= kRows);
  for (int e = 0; e < E; ++e) {
    model_.expert_output(v.in.layer, e, v.normed, {outputs_.data() + int64_t{e} * kRows * D, rows, D, D});
  }
  ExpertSums& sums = sums_[static_cast<size_t>(v.m)];
  for (int t = 0; t < rows; ++t) {
    if (v.in.tokens[static_cast<size_t>(t)].phase != Phase::kPad) add_row(v, t, sums);
  }
}

void ExpertGatherer::add_row(const RoutedLayer& v, int t, ExpertSums& sums) {
  const int D = model_.config().width, E = v.in.n_experts;
  const auto n = static_cast<size_t>(E);
  const auto output = [&](int e) { return outputs_.data() + (int64_t{e} * kRows + t) * D; };
  model_.ops().parallel(E, [&](int s, int) {
    for (int u = 0; u <= s; ++u) {
      const double p = dot(output(s), output(u), D);
      products_[static_cast<size_t>(s) * n + static_cast<size_t>(u)] = p;
      products_[static_cast<size_t>(u) * n + static_cast<size_t>(s)] = p;
    }
  });
  const auto square = [&](size_t e) { return products_[e * n + e]; };
  for (size_t i = 0; i < n * n; ++i) sums.gram()[i] += products_[i];
  for (size_t e = 0; e < n; ++e) sums.all_norms()[e] += std::sqrt(square(e));
  for (int slot = v.chosen.begin(t); slot < v.chosen.end(t); ++slot) {
    const auto s = static_cast<size_t>(v.chosen.experts()[static_cast<size_t>(slot)]);
    const auto w = static_cast<double>(v.weights[static_cast<size_t>(slot)]);
    for (size_t u = 0; u < n; ++u) {
      sums.cross()[s * n + u] += w * w * products_[s * n + u];
      sums.energy()[s * n + u] += w * w * square(u);
    }
    sums.slots()[s] += 1;
    sums.norms()[s] += std::sqrt(square(s));
    sums.contributions()[s] += w * std::sqrt(square(s));
  }
  float least = std::numeric_limits<float>::infinity(), most = -least;
  for (const float score : v.in.rank_row(t)) {
    if (!std::isfinite(score)) continue;
    least = std::min(least, score);
    most = std::max(most, score);
  }
  sums.totals()[0] += 1;
  if (most >= least) sums.totals()[1] += static_cast<double>(most) - static_cast<double>(least);
}

}  // namespace carpool
