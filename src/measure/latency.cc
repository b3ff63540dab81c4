#include "measure/latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <random>

#include "base/error.h"
#include "measure/model_identity.h"

namespace carpool {
namespace {

constexpr int kResamples = 500;

struct Line {
  double slope = 0, intercept = 0, r2 = 0, slope_error = HUGE_VAL;
};

Line least_squares(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  const double mx = mean(x), my = mean(y);
  double sxx = 0, sxy = 0, syy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sxx += (x[i] - mx) * (x[i] - mx);
    sxy += (x[i] - mx) * (y[i] - my);
    syy += (y[i] - my) * (y[i] - my);
  }
  Line line;
  if (!(sxx > 0)) return line;
  line.slope = sxy / sxx;
  line.intercept = my - line.slope * mx;
  const double left = std::max(syy - line.slope * sxy, 0.0);
  line.r2 = syy > 0 ? 1 - left / syy : 1;
  if (n > 2) line.slope_error = std::sqrt(left / (n - 2) / sxx);
  return line;
}

// The 97.5 percentile of Student's t.
double student(size_t freedom) {
  static constexpr double kTable[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
  return freedom <= std::size(kTable) ? kTable[freedom - 1] : 1.96 + 2.65 / static_cast<double>(freedom);
}

std::vector<const CompareCell*> cells_to_fit(const std::vector<CompareCell>& cells, int batch) {
  std::vector<const CompareCell*> all, oea;
  for (const CompareCell& cell : cells) {
    if (cell.batch != batch) continue;
    all.push_back(&cell);
    if (cell.policy == "topk" || cell.method() == "oea") oea.push_back(&cell);
  }
  return oea.size() >= 4 ? oea : all;
}

// Mean experts and time of a cell over some of its blocks: the median share of topk's time, times `plain_ms`.
std::pair<double, double> point_of(const CompareCell& cell, const std::vector<size_t>& blocks, double plain_ms) {
  double distinct = 0;
  std::vector<double> shares;
  for (const size_t b : blocks) {
    const StepBlock& block = cell.blocks[b % cell.blocks.size()];
    distinct += block.distinct / static_cast<double>(blocks.size());
    shares.push_back(block.ms / block.plain_ms);
  }
  const auto middle = shares.begin() + static_cast<std::ptrdiff_t>(shares.size() / 2);
  std::nth_element(shares.begin(), middle, shares.end());
  return {distinct, *middle * plain_ms};
}

Line line_of(const std::vector<const CompareCell*>& cells, const std::vector<size_t>& blocks, double plain_ms) {
  std::vector<double> x, y;
  for (const CompareCell* cell : cells) {
    const auto [distinct, ms] = point_of(*cell, blocks, plain_ms);
    x.push_back(distinct);
    y.push_back(ms);
  }
  return least_squares(x, y);
}

}  // namespace

LatencyFit fit_latency(const std::vector<CompareCell>& cells, int batch) {
  const std::vector<const CompareCell*> points = cells_to_fit(cells, batch);
  LatencyFit fit;
  fit.batch = batch;
  fit.cells = static_cast<int>(points.size());
  double plain_ms = 0;
  for (const CompareCell* cell : points) {
    if (cell->policy == "topk") plain_ms = cell->step_ms.value;
  }
  if (!points.empty()) fit.blocks = static_cast<int>(points[0]->blocks.size());
  if (points.size() < 3 || !(plain_ms > 0)) return fit;
  const auto n = static_cast<size_t>(fit.blocks);
  std::vector<size_t> blocks(n);
  for (size_t b = 0; b < n; ++b) blocks[b] = b;
  const Line line = line_of(points, blocks, plain_ms);
  std::mt19937_64 random(7);
  std::vector<double> slopes, intercepts;
  for (int r = 0; r < kResamples; ++r) {
    for (size_t& b : blocks) b = random() % n;
    const Line other = line_of(points, blocks, plain_ms);
    slopes.push_back(other.slope);
    intercepts.push_back(other.intercept);
  }
  std::sort(slopes.begin(), slopes.end());
  std::sort(intercepts.begin(), intercepts.end());
  const double error = student(points.size() - 2) * line.slope_error;
  const auto low = static_cast<size_t>(kResamples * 0.025), high = static_cast<size_t>(kResamples * 0.975) - 1;
  fit.slope_ms = {line.slope, std::min(slopes[low], line.slope - error), std::max(slopes[high], line.slope + error)};
  fit.intercept_ms = {line.intercept, intercepts[low], intercepts[high]};
  fit.r2 = line.r2;
  return fit;
}

QualityBudget QualityBudget::parse(const std::string& text) {
  const bool ce = text.starts_with("ce="), kl = text.starts_with("kl=");
  QualityBudget budget;
  budget.cross_entropy = ce;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + std::min<size_t>(3, text.size()), end, budget.limit);
  if ((!ce && !kl) || error != std::errc() || stop != end || !std::isfinite(budget.limit) || budget.limit <= 0) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("the budget must be kl=NATS or ce=NATS per token, as kl=0.01, got \"{}\"", escape(text, 60)));
  }
  return budget;
}

std::string QualityBudget::text() const { return fmt::format("{}={}", cross_entropy ? "ce" : "kl", limit); }

std::string bands_spec(const std::vector<ChosenBand>& bands) {
  std::string out, last = "topk";
  const auto add = [&](int from, const std::string& policy) {
    if (policy == last) return;
    out += fmt::format("{}{}={}", out.empty() ? "bands:" : ";", from, policy);
    last = policy;
  };
  for (size_t i = 0; i < bands.size(); ++i) {
    add(bands[i].from, bands[i].policy);
    if (i + 1 == bands.size() || bands[i + 1].from != bands[i].to + 1) add(bands[i].to + 1, "topk");
  }
  return out.empty() ? "topk" : out;
}

namespace {

json::object trial_json(const LayerTrial& trial) {
  json::object o{{"policy", trial.policy}, {"against", trial.against}, {"kept", trial.kept}};
  if (trial.policy.empty()) return o;
  put_estimate(o, "time_ratio", trial.time_ratio);
  put_estimate(o, "cost_tuning", trial.cost);
  return o;
}

}  // namespace

json::value profile_json(const RunFacts& facts, const std::string& model, const std::string& hash,
                         const QualityBudget& budget, const std::vector<ChosenBand>& bands) {
  json::object out{{"carpool_profile", 1},
                   {"model", model},
                   {"model_hash", hash},
                   {"budget", budget.text()},
                   {"policy", bands_spec(bands)}};
  json::array list;
  for (const ChosenBand& band : bands) {
    json::object o{{"from", band.from},
                   {"to", band.to},
                   {"policy", band.policy},
                   {"reason", band.reason},
                   {"batch", band.cell.batch}};
    put_number(o, "distinct_experts", band.cell.distinct);
    put_number(o, "distinct_experts_plain", band.cell.distinct_plain);
    put_estimate(o, "kl_mean", band.cell.kl_mean);
    put_estimate(o, "cross_entropy_delta", band.cell.cross_entropy_delta);
    put_estimate(o, "cost_tuning", band.tuning);
    put_estimate(o, "cost_held_out", band.held_out);
    put_estimate(o, "step_ms", band.cell.step_ms);
    put_estimate(o, "time_ratio", band.cell.time_ratio);
    put_estimate(o, "slope_ms", band.fit.slope_ms);
    put_estimate(o, "intercept_ms", band.fit.intercept_ms);
    put_number(o, "r2", band.fit.r2);
    if (band.by_layer) o["by_layer"] = trial_json(*band.by_layer);
    list.push_back(std::move(o));
  }
  out["bands"] = std::move(list);
  out["command"] = facts.command;
  out["commit"] = facts.commit;
  out["machine"] = facts.machine;
  json::object settings;
  for (const auto& [key, value] : facts.settings) settings[key] = value;
  out["settings"] = std::move(settings);
  return out;
}

Profile read_profile(const std::string& path) {
  const std::string where = escape(path, 400);
  const json::value root = parse_json(read_text_file(path, size_t{16} << 20), where);
  const JsonObject o(root, where);
  if (o.integer("carpool_profile", 0, 1 << 20) != 1) o.fail("carpool_profile", "this version reads version 1");
  Profile profile{path, o.string("model"), o.string("model_hash"), o.string("policy")};
  profile.spec = make_policy(profile.spec)->spec();
  return profile;
}

void check_profile(const Profile& profile, const std::string& model) {
  const std::string hash = model_hash(model);
  if (hash == profile.model_hash) return;
  throw Error(ErrorKind::kConfig,
              fmt::format("{}: the profile was made for {} ({}), not for {} ({}); run carpool tune for this model",
                          escape(profile.path, 400), escape(profile.model, 400), escape(profile.model_hash, 40),
                          escape(model, 400), hash));
}

}  // namespace carpool
