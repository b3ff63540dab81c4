#include "measure/ab.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/cpu_info.h"
#include "base/error.h"
#include "engine/engine.h"

namespace carpool {
namespace {

constexpr size_t kDefaultCacheBytes = size_t{64} << 20;

size_t last_level_cache() { return cpu_info().l3_bytes ? cpu_info().l3_bytes : kDefaultCacheBytes; }

// The steps of one kind (full-batch decode, or mixed) of one policy at one concurrency.
struct Tally {
  std::vector<double> repeat_ms;   // median step of each repeat
  std::vector<double> current_ms;  // steps of the repeat under way
  RoutingCounters routing;
  int64_t steps = 0;
  double positions = 0;  // sum over steps and rows of positions attended to
  double rows = 0;

  void add(const StepReport& report, double attended) {
    current_ms.push_back(report.seconds * 1e3);
    routing.add(report.routing);
    positions += attended;
    rows += report.decode_rows + report.prefill_rows;
    ++steps;
  }
  void end_repeat() {
    if (!current_ms.empty()) repeat_ms.push_back(median(current_ms));
    current_ms.clear();
  }
};

struct Side {
  std::string spec;
  Tally decode, mixed;
};

// Runs all requests of one repeat to the end under one policy.
void run_requests(Model& model, const std::vector<std::vector<int>>& prompts, int concurrency, const AbOptions& options,
                  Side& side) {
  EngineOptions engine_options;
  engine_options.max_batch = concurrency;
  engine_options.chunk = options.chunk;
  int64_t tokens = 0;
  for (int i = 0; i < concurrency; ++i) {
    tokens += int64_t{KvCache::blocks_for(
                  static_cast<int64_t>(prompts[static_cast<size_t>(i) % prompts.size()].size()) + options.new_tokens)} *
              KvCache::kBlockTokens;
  }
  engine_options.kv_tokens = tokens;
  Engine engine(model, nullptr, make_policy(side.spec), engine_options);
  std::vector<size_t> length;
  for (int i = 0; i < concurrency; ++i) {
    Request request;
    request.prompt = prompts[static_cast<size_t>(i) % prompts.size()];
    request.max_tokens = options.new_tokens;
    request.ignore_eos = true;
    length.push_back(request.prompt.size());
    engine.submit(std::move(request));
  }
  while (engine.step()) {
    const StepReport& report = engine.last_step();
    double attended = 0;
    for (const Event& event : report.events)
      attended += static_cast<double>(length[static_cast<size_t>(event.id) - 1]++);
    if (report.prefill_rows > 0) {
      side.mixed.add(report, attended);
    } else if (report.decode_rows == concurrency) {
      side.decode.add(report, attended);
    }
  }
  side.decode.end_repeat();
  side.mixed.end_repeat();
}

Estimate inverse(const Estimate& e, double numerator) {
  return {numerator / e.value, numerator / e.hi, numerator / e.lo};
}

ResultRow make_row(const Model& model, const Side& side, const Tally& tally, const char* steps, int concurrency) {
  ResultRow row;
  row.policy = side.spec;
  row.batch = concurrency;
  row.steps = steps;
  row.steps_measured = tally.steps;
  row.repeats = static_cast<int>(tally.repeat_ms.size());
  row.step_ms = median_with_interval(tally.repeat_ms);
  row.tokens_per_second = inverse(row.step_ms, 1e3 * concurrency);
  row.routing = tally.routing;
  const auto layers = static_cast<double>(std::max<int64_t>(tally.routing.layers, 1));
  row.distinct_experts = static_cast<double>(tally.routing.distinct_experts) / layers;
  row.distinct_experts_plain = static_cast<double>(tally.routing.distinct_plain) / layers;
  const ModelConfig& c = model.config();
  const double kv = tally.positions / static_cast<double>(tally.steps) * 2 * c.kv_width() * c.layers * sizeof(float);
  row.bytes_per_step = row.distinct_experts * c.moe_layers() * static_cast<double>(model.weights().bytes_per_expert()) +
                       static_cast<double>(model.weights().dense_bytes_per_step()) + kv;
  return row;
}

void check(const AbOptions& options) {
  const auto refuse = [](const std::string& sentence) { throw Error(ErrorKind::kUsage, sentence); };
  if (options.policies.empty()) refuse("no policy to measure");
  if (options.repeats < 1 || options.repeats > 1000)
    refuse(fmt::format("repeats must be 1 to 1000, got {}", options.repeats));
  if (options.new_tokens < 8)
    refuse(fmt::format("at least 8 new tokens are needed to time decode steps, got {}", options.new_tokens));
  for (const int c : options.concurrency) {
    if (c < 1 || c > 1024) refuse(fmt::format("concurrency must be 1 to 1024, got {}", c));
  }
}

}  // namespace

int default_cold_copies(const Model& model) {
  const size_t bytes = std::max<size_t>(model.weights().expert_bytes(), 1);
  return static_cast<int>((4 * last_level_cache() + bytes - 1) / bytes);
}

ReadProbe::ReadProbe(Ops& ops) : ops_(ops), buffer_(std::max<size_t>(4 * last_level_cache(), size_t{256} << 20)) {
  std::memset(buffer_.data(), 1, buffer_.size());  // so that every page is really there
}

double ReadProbe::gbps() {
  double best = 0;
  for (int i = 0; i < 3; ++i)
    best = std::max(best, static_cast<double>(buffer_.size()) / ops_.read_seconds(buffer_) / 1e9);
  return best;
}

std::vector<ResultRow> run_ab(Model& model, const std::vector<std::vector<int>>& prompts, const Documents& documents,
                              const AbOptions& options) {
  check(options);
  std::vector<std::unique_ptr<Policy>> policies;
  std::vector<const Policy*> pointers;
  for (const std::string& spec : options.policies) {
    policies.push_back(make_policy(spec));
    policies.back()->check(model.config().n_experts, model.config().top_k);
    pointers.push_back(policies.back().get());
  }
  const auto progress = [&](const std::string& stage, double share) {
    if (options.progress) options.progress(stage, share);
  };
  ReadProbe probe(model.ops());
  std::vector<ResultRow> rows;
  for (const int concurrency : options.concurrency) {
    std::vector<Side> sides;
    for (const auto& policy : policies) sides.push_back({policy->spec(), {}, {}});
    std::vector<double> bandwidth;
    for (int r = 0; r < options.repeats; ++r) {
      bandwidth.push_back(probe.gbps());
      for (size_t s = 0; s < sides.size(); ++s) {
        progress(fmt::format("timing at concurrency {}", concurrency),
                 (r + static_cast<double>(s) / static_cast<double>(sides.size())) / options.repeats);
        run_requests(model, prompts, concurrency, options, sides[s]);
      }
    }
    const QualityRun quality = teacher_forced(model, pointers, documents, concurrency, [&](double share) {
      progress(fmt::format("quality at concurrency {}", concurrency), share);
    });
    for (size_t s = 0; s < sides.size(); ++s) {
      if (sides[s].decode.steps == 0) {
        throw Error(ErrorKind::kUsage,
                    fmt::format("no step decoded all {} requests together: give more --new-tokens or a larger --chunk",
                                concurrency));
      }
      ResultRow row = make_row(model, sides[s], sides[s].decode, "decode", concurrency);
      row.quality = quality.quality[s];
      std::vector<double> ratios;
      for (size_t r = 0; r < sides[s].decode.repeat_ms.size(); ++r) {
        ratios.push_back(sides[0].decode.repeat_ms[r] / sides[s].decode.repeat_ms[r]);
      }
      row.speedup = median_with_interval(ratios);
      rows.push_back(std::move(row));
    }
    for (const Side& side : sides) {
      if (side.mixed.steps > 0) rows.push_back(make_row(model, side, side.mixed, "mixed", concurrency));
    }
    for (ResultRow& row : rows) {
      if (row.batch != concurrency) continue;
      row.read_gbps = median(bandwidth);
      row.floor_share = row.bytes_per_step / (row.read_gbps * 1e9) / (row.step_ms.value / 1e3);
    }
  }
  return rows;
}

}  // namespace carpool
