#include "measure/trace_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/error.h"

namespace carpool {
namespace {

constexpr int kMaxRanks = 4096;

std::vector<size_t> by_falling(std::span<const double> load) {
  std::vector<size_t> order(load.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return load[a] > load[b]; });
  return order;
}

// The rank of least load among those with room that do not have the expert; -1 without one.
int least_loaded(const std::vector<double>& load, const std::vector<int>& room, const std::vector<int>& has) {
  int best = -1;
  for (int r = 0; r < static_cast<int>(load.size()); ++r) {
    const auto at = static_cast<size_t>(r);
    if (room[at] <= 0 || std::find(has.begin(), has.end(), r) != has.end()) continue;
    if (best < 0 || load[at] < load[static_cast<size_t>(best)]) best = r;
  }
  return best;
}

int copies_of(std::string_view kind) {
  constexpr std::string_view kPrefix = "replicated:";
  int n = -1;
  if (!kind.starts_with(kPrefix)) return n;
  kind.remove_prefix(kPrefix.size());
  const auto [end, error] = std::from_chars(kind.data(), kind.data() + kind.size(), n);
  return error == std::errc() && end == kind.data() + kind.size() ? n : -1;
}

}  // namespace

ExpertPlacement ExpertPlacement::make(std::string_view kind, int ranks, std::span<const double> load) {
  const auto E = static_cast<int>(load.size());
  if (ranks < 1 || ranks > std::min(kMaxRanks, E)) {
    throw Error(ErrorKind::kConfig,
                fmt::format("{} ranks for {} experts: must be 1 to {}", ranks, E, std::min(kMaxRanks, E)));
  }
  ExpertPlacement p;
  p.ranks_ = ranks;
  p.homes_.resize(load.size());
  if (kind == "round_robin") {
    for (int e = 0; e < E; ++e) p.homes_[static_cast<size_t>(e)].push_back(e % ranks);
    return p;
  }
  const int extra = kind == "greedy" ? 0 : copies_of(kind);
  if (extra < 0 || extra > E * (ranks - 1)) {
    throw Error(ErrorKind::kConfig,
                fmt::format("unknown placement \"{}\"; there are round_robin, greedy and replicated:N "
                            "with N copies, at most {}",
                            escape(kind, 60), E * (ranks - 1)));
  }
  // Copies first: each goes to the expert that has most load per copy.
  std::vector<int> copies(load.size(), 1);
  for (int n = 0; n < extra; ++n) {
    size_t most = load.size();
    for (size_t e = 0; e < load.size(); ++e) {
      if (copies[e] >= ranks) continue;
      if (most == load.size() || load[e] / copies[e] > load[most] / copies[most]) most = e;
    }
    ++copies[most];
  }
  std::vector<double> each(load.size()), rank_load(static_cast<size_t>(ranks), 0);
  for (size_t e = 0; e < load.size(); ++e) each[e] = load[e] / copies[e];
  std::vector<int> room(static_cast<size_t>(ranks), (E + extra + ranks - 1) / ranks);
  for (const size_t e : by_falling(each)) {
    for (int n = 0; n < copies[e]; ++n) {
      const int r = least_loaded(rank_load, room, p.homes_[e]);
      if (r < 0) break;  // every rank with room has it already
      p.homes_[e].push_back(r);
      rank_load[static_cast<size_t>(r)] += each[e];
      --room[static_cast<size_t>(r)];
    }
    CARPOOL_CHECK(!p.homes_[e].empty());
  }
  return p;
}

void ExpertPlacement::count(std::span<const int> loaded, std::vector<int>& counts) const {
  counts.assign(static_cast<size_t>(ranks_), 0);
  std::vector<int> order(loaded.begin(), loaded.end());
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return homes(a).size() < homes(b).size(); });
  for (const int e : order) {
    int best = homes(e).front();
    for (const int r : homes(e)) {
      if (counts[static_cast<size_t>(r)] < counts[static_cast<size_t>(best)]) best = r;
    }
    ++counts[static_cast<size_t>(best)];
  }
}

}  // namespace carpool
