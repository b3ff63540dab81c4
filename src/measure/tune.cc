#include "measure/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "measure/layer_k0.h"

namespace carpool {
namespace {

constexpr size_t kFast = 5, kSafe = 3;          // finalists that may be within the budget; that are well within it
constexpr double kMay = 1.5, kWell = 0.8;       // screened cost as a share of the budget
constexpr double kFills[] = {0.8, 0.92, 1.04};  // of the budget, for a k0 by layer: the upper end must be within it

// N of "oea:k0=N" without other arguments, else nothing.
std::optional<int> plain_k0(const std::string& spec) {
  constexpr std::string_view kBegin = "oea:k0=";
  if (!spec.starts_with(kBegin)) return std::nullopt;
  const std::string value = spec.substr(kBegin.size());
  if (value.empty() || value.size() > 4 || value.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoi(value);
}

std::string fit_text(const LatencyFit& fit) {
  return fmt::format("{:+.2f} us per expert of a layer [{:+.2f}, {:+.2f}]", 1e3 * fit.slope_ms.value,
                     1e3 * fit.slope_ms.lo, 1e3 * fit.slope_ms.hi);
}

void sort_by_time(std::vector<const CompareCell*>& cells) {
  std::stable_sort(cells.begin(), cells.end(),
                   [](const auto* a, const auto* b) { return a->time_ratio.value < b->time_ratio.value; });
}

// The search at one batch size.
class BatchTuner {
 public:
  BatchTuner(const TuneOptions& options, const MeasureCells& measure, int batch)
      : options_(options), measure_(measure), batch_(batch) {}

  ChosenBand run() {
    band_.policy = "topk";
    std::vector<CompareCell> screened = measure_(batch_, options_.candidates, options_.screen_tokens);
    band_.cell = screened.front();
    band_.fit = fit_latency(screened, batch_);
    if (!band_.fit.usable() && options_.screen_tokens > 0) look_again();
    if (!band_.fit.enough()) {
      band_.reason = fmt::format(
          "{} settings in {} blocks of steps are too few to tell how step time follows experts: it "
          "takes 3 in {}",
          band_.fit.cells, band_.fit.blocks, kFewestBlocks);
      return band_;
    }
    if (!band_.fit.usable()) {
      band_.reason = fmt::format("step time does not follow the number of experts here: {}", fit_text(band_.fit));
      return band_;
    }
    std::vector<std::string> finals = options_.candidates;
    if (options_.screen_tokens > 0) finals = finalists(screened, options_.budget);
    if (options_.by_layer) add_lists(screened, finals);
    full_ = measure_(batch_, finals, 0);
    choose();
    return band_;
  }

 private:
  double cost(const CompareCell& cell) const { return cost_on(cell, options_.budget, TextPart::kTuning).value; }
  bool is_list(const CompareCell& cell) const {
    return std::find(lists_.begin(), lists_.end(), cell.policy) != lists_.end();
  }

  // Screening is short; whether time follows experts is asked of the whole text before it is denied.
  void look_again() {
    std::vector<std::string> oea;
    for (const std::string& spec : options_.candidates) {
      if (spec.starts_with("oea:")) oea.push_back(spec);
    }
    band_.fit = fit_latency(measure_(batch_, oea.empty() ? options_.candidates : oea, 0), batch_);
  }

  // Assignments of a k0 to each layer that should just fill the budget.
  void add_lists(const std::vector<CompareCell>& screened, std::vector<std::string>& finals) {
    const auto layers = static_cast<double>(std::count(options_.moe_layer.begin(), options_.moe_layer.end(), true));
    std::vector<K0Effect> uniform;
    for (const CompareCell& cell : screened) {
      const std::optional<int> k0 = plain_k0(cell.policy);
      if (k0 && *k0 > 0 && *k0 < options_.top_k)
        uniform.push_back({*k0, std::max(cost(cell), 0.0), (cell.distinct_plain - cell.distinct) * layers});
    }
    if (uniform.empty() || layers < 2) return;
    std::sort(uniform.begin(), uniform.end(), [](const auto& a, const auto& b) { return a.k0 < b.k0; });
    const auto within = std::find_if(uniform.begin(), uniform.end(),
                                     [&](const K0Effect& e) { return e.cost <= options_.budget.limit; });
    LayerK0 by_layer(uniform, options_.top_k, options_.moe_layer);
    const std::vector<std::string> probes = by_layer.probes(within == uniform.end() ? options_.top_k : within->k0);
    by_layer.learn(measure_(batch_, probes, options_.screen_tokens), [&](const CompareCell& c) { return cost(c); });
    for (const double fill : kFills) {
      const std::string spec = by_layer.assign(fill * options_.budget.limit);
      if (!spec.empty() && std::find(finals.begin(), finals.end(), spec) == finals.end()) {
        finals.push_back(spec);
        lists_.push_back(spec);
      }
    }
  }

  void choose() {
    std::vector<const CompareCell*> one, by_layer;
    int affordable = 0;
    for (const CompareCell& cell : full_) {
      if (cell.policy == "topk") {
        band_.cell = cell;
        continue;
      }
      if (cost_on(cell, options_.budget, TextPart::kTuning).hi > options_.budget.limit) continue;
      ++affordable;
      if (cell.time_ratio.hi < 1) (is_list(cell) ? by_layer : one).push_back(&cell);
    }
    sort_by_time(one);
    sort_by_time(by_layer);
    try_layers(one, by_layer);
    std::vector<const CompareCell*> order = by_layer;
    order.insert(order.end(), one.begin(), one.end());
    std::string fell;
    for (const CompareCell* cell : order) {
      const double held_out = cost_on(*cell, options_.budget, TextPart::kHeldOut).value;
      if (held_out <= options_.budget.limit) {
        band_.policy = cell->policy;
        band_.cell = *cell;
        band_.reason = fmt::format("{:.3f} of topk's time; {}{}", cell->time_ratio.value, fit_text(band_.fit), fell);
        break;
      }
      fell += fmt::format("; {} is faster, but costs {:.5f} on held-out text", cell->policy, held_out);
    }
    if (band_.policy == "topk") {
      band_.reason = affordable == 0 ? "no setting is within the budget"
                     : order.empty() ? "no setting within the budget is surely faster"
                                     : "no setting keeps the budget on held-out text" + fell;
    } else {
      set_costs();
    }
    if (band_.by_layer) band_.by_layer->kept = band_.policy == band_.by_layer->policy;
  }

  // Leaves in `by_layer` those that are surely faster than the best other setting, and remembers the best of all.
  void try_layers(const std::vector<const CompareCell*>& one, std::vector<const CompareCell*>& by_layer) {
    if (lists_.empty()) return;
    LayerTrial& trial = band_.by_layer.emplace();
    trial.against = one.empty() ? "topk" : one.front()->policy;
    const auto ratio = [&](const CompareCell& c) { return one.empty() ? c.time_ratio : time_against(c, *one.front()); };
    if (!by_layer.empty()) {
      trial.policy = by_layer.front()->policy;
      trial.time_ratio = ratio(*by_layer.front());
      trial.cost = cost_on(*by_layer.front(), options_.budget, TextPart::kTuning);
    }
    std::erase_if(by_layer, [&](const CompareCell* c) { return ratio(*c).hi >= 1; });
  }

  void set_costs() {
    band_.tuning = cost_on(band_.cell, options_.budget, TextPart::kTuning);
    band_.held_out = cost_on(band_.cell, options_.budget, TextPart::kHeldOut);
  }

  const TuneOptions& options_;
  const MeasureCells& measure_;
  int batch_;
  ChosenBand band_;
  std::vector<CompareCell> full_;
  std::vector<std::string> lists_;
};

}  // namespace

Estimate cost_on(const CompareCell& cell, const QualityBudget& budget, TextPart part) {
  const std::vector<double>& all = budget.cross_entropy ? cell.document_delta : cell.document_kl;
  std::vector<double> own;
  for (size_t d = part == TextPart::kTuning ? 0 : 1; d < all.size(); d += 2) own.push_back(all[d]);
  CARPOOL_CHECK(!own.empty());
  return bootstrap(own, mean);
}

Estimate time_against(const CompareCell& first, const CompareCell& other) {
  CARPOOL_CHECK(first.blocks.size() == other.blocks.size());
  std::vector<double> ratio;
  for (size_t b = 0; b < first.blocks.size(); ++b) {
    const StepBlock &one = first.blocks[b], &two = other.blocks[b];
    ratio.push_back(one.ms / one.plain_ms / (two.ms / two.plain_ms));
  }
  return median_with_interval(ratio);
}

std::vector<std::string> finalists(const std::vector<CompareCell>& screened, const QualityBudget& budget) {
  std::vector<const CompareCell*> order;
  for (const CompareCell& cell : screened) {
    if (cell.policy != "topk") order.push_back(&cell);
  }
  sort_by_time(order);
  std::vector<std::string> out;
  const auto take = [&](size_t most, double share) {
    size_t taken = 0;
    for (const CompareCell* cell : order) {
      if (taken == most) break;
      if (cost_on(*cell, budget, TextPart::kTuning).value > share * budget.limit) continue;
      ++taken;
      if (std::find(out.begin(), out.end(), cell->policy) == out.end()) out.push_back(cell->policy);
    }
  };
  take(kFast, kMay);
  take(kSafe, kWell);
  return out;
}

namespace {

// A setting is measured at the first number of rows of its band. What it costs with more rows is known to fall for OEA
// alone, whose union grows with them; another must be within the budget at the next measured size, too, or it holds at
// its own size only.
void limit_band(ChosenBand& band, const TuneOptions& options, const MeasureCells& measure, int next_batch) {
  if (band.policy == "topk" || band.policy.starts_with("oea:")) return;
  if (next_batch > 0) {
    const CompareCell there = measure(next_batch, {band.policy}, 0).back();
    if (cost_on(there, options.budget, TextPart::kTuning).hi <= options.budget.limit) return;
  }
  band.to = band.from;
  band.reason += "; with more rows it may cost more";
}

}  // namespace

std::vector<ChosenBand> tune(const TuneOptions& options, const MeasureCells& measure) {
  std::vector<ChosenBand> bands;
  for (size_t i = 0; i < options.batches.size(); ++i) {
    const int batch = options.batches[i];
    ChosenBand band = BatchTuner(options, measure, batch).run();
    band.from = batch;
    band.to = i + 1 < options.batches.size() ? options.batches[i + 1] - 1 : 2 * batch - 1;
    limit_band(band, options, measure, i + 1 < options.batches.size() ? options.batches[i + 1] : 0);
    bands.push_back(std::move(band));
  }
  return bands;
}

}  // namespace carpool
