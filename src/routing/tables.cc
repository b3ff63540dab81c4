// The checks of routing tables. See tables.h.
#include "routing/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace carpool {
namespace {

constexpr float kMost = std::numeric_limits<float>::max();
constexpr TableKind kKinds[] = {TableKind::kSimilarity, TableKind::kFold, TableKind::kResident, TableKind::kK0};

[[noreturn]] void bad(const std::string& sentence) { throw Error(ErrorKind::kMalformed, sentence); }

struct Bounds {
  const char* name;
  size_t size;
  float low, high;
};

// Comparisons with NaN are false, so it is outside of any bounds.
void check_values(const std::string& where, size_t layer, const std::vector<float>& values, const Bounds& b) {
  if (values.empty()) return;
  if (values.size() != b.size) {
    bad(fmt::format("{}: layer {}: {} has {} entries, not {}", where, layer, b.name, values.size(), b.size));
  }
  const auto inside = [&](float v) { return v >= b.low && v <= b.high; };
  const auto wrong = std::find_if_not(values.begin(), values.end(), inside);
  if (wrong == values.end()) return;
  const std::string upper = b.high == kMost ? "and finite" : fmt::format("and at most {}", b.high);
  bad(fmt::format("{}: layer {}: entry {} of {} is {}, it must be at least {} {}", where, layer, wrong - values.begin(),
                  b.name, *wrong, b.low, upper));
}

}  // namespace

std::string_view table_name(TableKind kind) {
  switch (kind) {
    case TableKind::kSimilarity:
      return "similarity";
    case TableKind::kFold:
      return "fold";
    case TableKind::kResident:
      return "resident";
    case TableKind::kK0:
      return "k0";
    case TableKind::kNone:
      break;
  }
  return "";
}

bool LayerTables::has(TableKind kind) const {
  switch (kind) {
    case TableKind::kSimilarity:
      return !similarity.empty();
    case TableKind::kFold:
      return !fold_scale.empty() && !fold_loss.empty() && !norm.empty() && !contribution.empty();
    case TableKind::kResident:
      return !resident.empty();
    case TableKind::kK0:
      return k0 > 0;
    case TableKind::kNone:
      break;
  }
  return true;
}

bool LayerTables::empty() const {
  return std::none_of(std::begin(kKinds), std::end(kKinds), [&](TableKind kind) { return has(kind); });
}

const LayerTables* RoutingTables::layer(int l) const {
  if (l < 0 || static_cast<size_t>(l) >= layers.size()) return nullptr;
  const LayerTables& tables = layers[static_cast<size_t>(l)];
  return tables.empty() ? nullptr : &tables;
}

bool RoutingTables::has(TableKind kind) const {
  bool any = false;
  for (const LayerTables& l : layers) {
    if (l.empty()) continue;
    if (!l.has(kind)) return false;
    any = true;
  }
  return any;
}

void RoutingTables::check(const std::string& where) const {
  if (n_experts < 1 || n_experts > kMaxExperts)
    bad(fmt::format("{}: {} experts, it must be 1 to {}", where, n_experts, kMaxExperts));
  if (top_k < 1 || top_k > n_experts) {
    bad(fmt::format("{}: {} experts per token of {}: must be 1 to {}", where, top_k, n_experts, n_experts));
  }
  if (layers.empty() || layers.size() > kMaxLayers) {
    bad(fmt::format("{}: {} layers, it must be 1 to {}", where, layers.size(), kMaxLayers));
  }
  const auto E = static_cast<size_t>(n_experts);
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerTables& t = layers[l];
    check_values(where, l, t.similarity, {"similarity", E * E, -1, 1});
    check_values(where, l, t.fold_scale, {"fold_scale", E * E, 0, kMost});
    check_values(where, l, t.fold_loss, {"fold_loss", E * E, 0, kMost});
    check_values(where, l, t.norm, {"norm", E, 0, kMost});
    check_values(where, l, t.contribution, {"contribution", E, 0, kMost});
    check_values(where, l, {t.rank_range}, {"rank_range", 1, 0, kMost});
    const std::vector<float> resident(t.resident.begin(), t.resident.end());
    check_values(where, l, resident, {"resident", E, 0, 1});
    if (t.k0 < 0 || t.k0 > top_k) bad(fmt::format("{}: layer {}: k0 is {}, it must be 1 to {}", where, l, t.k0, top_k));
  }
  for (const TableKind kind : kKinds) {
    const auto with = std::count_if(layers.begin(), layers.end(), [&](const LayerTables& t) { return t.has(kind); });
    const auto tabled = std::count_if(layers.begin(), layers.end(), [](const LayerTables& t) { return !t.empty(); });
    if (with != 0 && with != tabled) {
      bad(fmt::format("{}: {} of {} layers with tables have \"{}\"", where, with, tabled, table_name(kind)));
    }
  }
}

}  // namespace carpool
