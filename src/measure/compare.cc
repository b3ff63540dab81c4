#include "measure/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "measure/lines.h"
#include "model/routing_tables.h"

namespace carpool {
namespace {

constexpr int kMostBlocks = 1 << 20;  // of one cell, in a file

Estimate estimate_of(const JsonObject& o, const std::string& key) {
  return {o.number(key, -1e300, 1e300), o.number(key + "_lo", -1e300, 1e300), o.number(key + "_hi", -1e300, 1e300)};
}

// Empty where an earlier build did not write them.
std::vector<double> numbers_of(const JsonObject& o, const std::string& key) {
  std::vector<double> out;
  if (!o.has(key)) return out;
  for (const json::value& v : o.array(key)) {
    if (!v.is_number()) o.fail(key, "must be a list of numbers");
    out.push_back(v.to_number<double>());
  }
  return out;
}

const CompareCell* find_cell(const std::vector<CompareCell>& cells, const std::string& policy, int batch) {
  for (const CompareCell& cell : cells) {
    if (cell.policy == policy && cell.batch == batch) return &cell;
  }
  return nullptr;
}

double over_layers(int64_t sum, const RoutingCounters& routing) {
  return static_cast<double>(sum) / static_cast<double>(std::max<int64_t>(routing.layers, 1));
}

}  // namespace

std::vector<StepBlock> step_blocks(const LockstepRun& run, const LockstepRun& plain, int steps_per_batch) {
  CARPOOL_CHECK(steps_per_batch > 0 && run.steps.size() == plain.steps.size());
  std::vector<StepBlock> blocks;
  for (size_t begin = 0; begin < run.steps.size(); begin += static_cast<size_t>(steps_per_batch)) {
    for (int first = 0; first < steps_per_batch; first += kBlockSteps) {
      const int n = std::min(kBlockSteps, steps_per_batch - first);
      std::vector<double> ms, plain_ms;
      StepBlock block;
      for (int i = 0; i < n; ++i) {
        const size_t at = begin + static_cast<size_t>(first + i);
        ms.push_back(run.steps[at].ms);
        plain_ms.push_back(plain.steps[at].ms);
        block.distinct += run.steps[at].distinct / static_cast<double>(n);
      }
      block.ms = median(ms);
      block.plain_ms = median(plain_ms);
      blocks.push_back(block);
    }
  }
  return blocks;
}

CompareCell make_cell(const std::string& policy, int batch, const LockstepRun& run, const LockstepRun& plain,
                      int document_tokens) {
  const PolicyScore score = score_run(policy, batch, run, plain);
  CompareCell cell;
  cell.policy = policy;
  cell.batch = batch;
  cell.distinct = over_layers(run.routing.distinct_experts, run.routing);
  cell.distinct_plain = over_layers(plain.routing.distinct_experts, plain.routing);
  cell.cross_entropy = score.cross_entropy;
  cell.cross_entropy_delta = score.cross_entropy_delta;
  cell.kl_mean = score.kl_mean;
  cell.kl_median = score.kl_median;
  cell.kl_p99 = score.kl_p99;
  cell.top1_agreement = score.top1_agreement;
  cell.document_kl = run.kl;
  for (size_t d = 0; d < run.loss.size(); ++d) cell.document_delta.push_back(run.loss[d] - plain.loss[d]);
  cell.blocks = step_blocks(run, plain, document_tokens - 1);
  std::vector<double> ms, ratio;
  for (const StepBlock& block : cell.blocks) {
    ms.push_back(block.ms);
    ratio.push_back(block.ms / block.plain_ms);
  }
  cell.step_ms = median_with_interval(ms);
  cell.time_ratio = median_with_interval(ratio);
  return cell;
}

std::vector<std::string> default_grid(int n_experts, int top_k, bool sigmoid) {
  std::vector<std::string> specs;
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    const std::unique_ptr<Policy> policy = make_policy(fmt::format(format, std::forward<Args>(args)...));
    policy->check(n_experts, top_k);
    specs.push_back(policy->spec());
  };
  for (int k0 = 1; k0 < top_k; k0 += 1 + (top_k - 2) / 8) add("oea:k0={}", k0);
  for (int k0 = 1 + top_k / 8; k0 < top_k; k0 += 1 + (top_k - 2) / 8) add("prune:k0={}", k0);
  for (const int percent : {25, 50, 75}) {
    add("oea:k0=auto,t={}%", percent);
    add("xshare:m={}%,k0=1", percent);
    add("des_vote:m={}%", percent);
    add("lynx:drop={}%", 100 - percent);
    add("lynx_bins:m={}%{}", percent, sigmoid ? ",scores=sigmoid" : "");
  }
  if (top_k > 1) {
    for (const char* p : {"0.5", "0.7", "0.9"}) add("top_p:p={}", p);
    for (const char* t : {"0.2", "0.4"}) add("ser:k_min={},t={}", std::max(1, top_k / 4), t);
  }
  return specs;
}

std::vector<std::string> table_grid(const std::string& file, const RoutingTables& tables, int top_k) {
  std::vector<std::string> specs;
  if (tables.has(TableKind::kSimilarity)) {
    for (int k0 = 1; k0 < top_k; k0 += 1 + (top_k - 2) / 8)
      specs.push_back(fmt::format("sere:table={},k0={}", file, k0));
  }
  if (tables.has(TableKind::kFold)) {
    for (const int percent : {25, 50, 75}) specs.push_back(fmt::format("exfold:table={},m={}%", file, percent));
  }
  if (tables.has(TableKind::kK0)) specs.push_back(fmt::format("oea:k0=table,table={}", file));
  return specs;
}

json::object cell_json(const CompareCell& cell, const json::object& key) {
  json::object o{{"key", key}, {"policy", cell.policy}, {"batch", cell.batch}};
  put_number(o, "distinct_experts", cell.distinct);
  put_number(o, "distinct_experts_plain", cell.distinct_plain);
  put_estimate(o, "cross_entropy", cell.cross_entropy);
  put_estimate(o, "cross_entropy_delta", cell.cross_entropy_delta);
  put_estimate(o, "kl_mean", cell.kl_mean);
  put_number(o, "kl_median", cell.kl_median);
  put_number(o, "kl_p99", cell.kl_p99);
  put_estimate(o, "top1_agreement", cell.top1_agreement);
  put_estimate(o, "step_ms", cell.step_ms);
  put_estimate(o, "time_ratio", cell.time_ratio);
  json::array blocks;
  for (const StepBlock& b : cell.blocks) blocks.push_back(json::array{b.distinct, b.ms, b.plain_ms});
  o["blocks"] = std::move(blocks);
  o["document_kl"] = json::array(cell.document_kl.begin(), cell.document_kl.end());
  o["document_delta"] = json::array(cell.document_delta.begin(), cell.document_delta.end());
  return o;
}

CompareCell cell_of(const json::value& value, const std::string& where) {
  const JsonObject o(value, where);
  CompareCell cell;
  cell.policy = o.string("policy");
  cell.batch = static_cast<int>(o.integer("batch", 1, 1 << 20));
  cell.distinct = o.number("distinct_experts", 0, 1e6);
  cell.distinct_plain = o.number("distinct_experts_plain", 1e-9, 1e6);
  cell.cross_entropy = estimate_of(o, "cross_entropy");
  cell.cross_entropy_delta = estimate_of(o, "cross_entropy_delta");
  cell.kl_mean = estimate_of(o, "kl_mean");
  cell.kl_median = o.number("kl_median", -1e300, 1e300);
  cell.kl_p99 = o.number("kl_p99", -1e300, 1e300);
  cell.top1_agreement = estimate_of(o, "top1_agreement");
  cell.step_ms = estimate_of(o, "step_ms");
  cell.time_ratio = estimate_of(o, "time_ratio");
  const json::array& blocks = o.array("blocks");
  if (blocks.empty() || blocks.size() > kMostBlocks) o.fail("blocks", fmt::format("must be 1 to {}", kMostBlocks));
  for (const json::value& block : blocks) {
    const json::array* three = block.if_array();
    if (!three || three->size() != 3 ||
        !std::all_of(three->begin(), three->end(), [](const auto& v) { return v.is_number(); })) {
      o.fail("blocks", "must be lists of three numbers");
    }
    cell.blocks.push_back(
        {(*three)[0].to_number<double>(), (*three)[1].to_number<double>(), (*three)[2].to_number<double>()});
  }
  cell.document_kl = numbers_of(o, "document_kl");
  cell.document_delta = numbers_of(o, "document_delta");
  return cell;
}

std::vector<CompareCell> read_cells(const std::string& path, const json::object& key) {
  std::vector<CompareCell> cells;
  if (path.empty() || !file_exists(path)) return cells;
  const std::string text = read_text_file(path);
  for_each_line(text, [&](const Line& line) {
    const std::string where = line.where(path);
    json::value value;
    try {
      value = parse_json(line.text, where);
    } catch (const JsonError&) {
      constexpr std::string_view kBegin = "{\"key\":";
      if (line.text.starts_with(kBegin) || kBegin.starts_with(line.text)) return;  // a torn one
      throw;
    }
    const JsonObject o(value, where);
    const json::value& own = o.value("key");
    CompareCell cell = cell_of(value, where);
    if (own == json::value(key) && !cell.document_kl.empty() && !find_cell(cells, cell.policy, cell.batch))
      cells.push_back(std::move(cell));
  });
  return cells;
}

std::vector<CompareCell> measure_cells(Model& model, const Documents& documents, const CompareOptions& options,
                                       const std::vector<CompareCell>& known) {
  CARPOOL_CHECK(!documents.empty() && options.together > 0);
  std::vector<std::string> policies = {"topk"};
  for (const std::string& spec : options.policies) {
    if (std::find(policies.begin(), policies.end(), spec) == policies.end()) policies.push_back(spec);
  }
  std::map<int, std::vector<std::string>> missing;
  size_t total = 0, done = 0;
  for (const int batch : options.batches) {
    for (const std::string& spec : policies) {
      if (!find_cell(known, spec, batch)) missing[batch].push_back(spec);
    }
    total += missing[batch].size();
  }
  std::vector<CompareCell> cells = known;
  const int tokens = static_cast<int>(documents[0].size());
  for (const int batch : options.batches) {
    std::vector<std::string>& todo = missing[batch];
    while (!todo.empty()) {
      // topk runs beside all others anyway.
      const bool plain = todo[0] == "topk";
      if (plain) todo.erase(todo.begin());
      const size_t n = std::min(todo.size(), static_cast<size_t>(options.together));
      std::vector<std::unique_ptr<Policy>> owned;
      std::vector<const Policy*> now;
      for (size_t i = 0; i < n; ++i) now.push_back(owned.emplace_back(make_policy(todo[i], model)).get());
      const std::vector<LockstepRun> runs =
          decode_in_step(model, now, documents,
                         {batch, options.seeds,
                          [&](double share) {
                            const auto part = static_cast<double>(n + (plain ? 1 : 0));
                            if (!options.progress || total == 0) return;
                            options.progress(fmt::format("comparing, batch {}", batch),
                                             (static_cast<double>(done) + share * part) / static_cast<double>(total));
                          },
                          nullptr});
      for (size_t r = plain ? 0 : 1; r < runs.size(); ++r) {
        cells.push_back(make_cell(r == 0 ? "topk" : todo[r - 1], batch, runs[r], runs[0], tokens));
        if (options.finished) options.finished(cells.back());
        ++done;
      }
      todo.erase(todo.begin(), todo.begin() + static_cast<std::ptrdiff_t>(n));
    }
  }
  std::vector<CompareCell> ordered;
  for (const int batch : options.batches) {
    for (const std::string& spec : policies) ordered.push_back(*find_cell(cells, spec, batch));
  }
  return ordered;
}

std::vector<size_t> pareto_front(const std::vector<std::pair<double, double>>& points) {
  std::vector<size_t> order(points.size()), front;
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return points[a] < points[b]; });
  double best = HUGE_VAL;
  for (const size_t i : order) {
    if (!(points[i].second < best)) continue;
    best = points[i].second;
    front.push_back(i);
  }
  return front;
}

std::vector<const CompareCell*> cells_near(const std::vector<CompareCell>& cells, int batch, double share,
                                           double slack) {
  std::vector<const CompareCell*> out;
  for (const CompareCell& cell : cells) {
    if (cell.batch != batch || cell.policy == "topk" || std::abs(cell.share() - share) > slack) continue;
    const auto same = std::find_if(out.begin(), out.end(), [&](const auto* o) { return o->method() == cell.method(); });
    if (same == out.end()) {
      out.push_back(&cell);
    } else if (std::abs(cell.share() - share) < std::abs((*same)->share() - share)) {
      *same = &cell;
    }
  }
  return out;
}

std::optional<double> kl_at_share(const std::vector<CompareCell>& cells, int batch, const std::string& method,
                                  double share) {
  const CompareCell *below = nullptr, *above = nullptr;
  for (const CompareCell& cell : cells) {
    if (cell.batch != batch || cell.method() != method) continue;
    if (cell.share() <= share && (!below || cell.share() > below->share())) below = &cell;
    if (cell.share() >= share && (!above || cell.share() < above->share())) above = &cell;
  }
  if (!below || !above || !(below->kl_mean.value > 0) || !(above->kl_mean.value > 0)) return std::nullopt;
  const double room = above->share() - below->share();
  const double part = room > 0 ? (share - below->share()) / room : 0;
  return std::exp((1 - part) * std::log(below->kl_mean.value) + part * std::log(above->kl_mean.value));
}

}  // namespace carpool
