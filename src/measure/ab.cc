#include "measure/ab.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <span>

#include "base/cpu_info.h"
#include "base/error.h"
#include "engine/engine.h"
#include "measure/ab_tally.h"
#include "model/routing_tables.h"

namespace carpool {
namespace {

constexpr size_t kDefaultCacheBytes = size_t{64} << 20;
constexpr int64_t kFewestDocuments = 64;  // that a quality number should rest on

struct Side {
  std::string spec;
  Tally decode, mixed;
};

StepSizes sizes_of(const Model& model) {
  const ModelConfig& c = model.config();
  return {c.moe_layers(), static_cast<double>(model.weights().bytes_per_expert()),
          static_cast<double>(model.weights().dense_bytes_per_step()),
          static_cast<double>(KvCache::bytes_for(c, KvCache::kBlockTokens, model.kv_format())) / KvCache::kBlockTokens};
}

int64_t pool_tokens(std::span<const AbPrompt> prompts, int new_tokens) {
  int64_t blocks = 0;
  for (const AbPrompt& prompt : prompts) blocks += KvCache::blocks_for(std::ssize(prompt.tokens) + new_tokens);
  return blocks * KvCache::kBlockTokens;
}

// Runs one request per prompt to its end under the side's policy: one repeat.
void run_requests(Model& model, std::span<const AbPrompt> prompts, const AbOptions& options, Side& side) {
  const int concurrency = static_cast<int>(prompts.size());
  EngineOptions engine_options;
  engine_options.max_batch = concurrency;
  engine_options.chunk = options.chunk;
  engine_options.kv_tokens = pool_tokens(prompts, options.new_tokens);
  Engine engine(model, nullptr, make_policy(side.spec, model), engine_options);
  Positions positions;
  for (const AbPrompt& prompt : prompts) {
    Request request;
    request.prompt = prompt.tokens;
    request.max_tokens = options.new_tokens;
    request.ignore_eos = true;
    positions.add_prompt(request.prompt.size());
    engine.submit(std::move(request));
  }
  while (engine.step()) {
    const StepReport& report = engine.last_step();
    for (const Event& event : report.events) {
      if (event.finish != FinishReason::kNumericalError) continue;
      throw Error(ErrorKind::kMalformed,
                  fmt::format("the model's logits are not finite after the prompt of {}, under {}",
                              escape(prompts[static_cast<size_t>(event.id) - 1].origin, 400), escape(side.spec)));
    }
    const double attended = positions.attend(report.events);
    if (report.prefill_rows > 0) {
      side.mixed.add(report, attended);
    } else if (report.decode_rows == concurrency) {
      side.decode.add(report, attended);
    }
  }
  side.decode.end_repeat();
  side.mixed.end_repeat();
  if (side.decode.steps == 0) {
    throw Error(ErrorKind::kUsage,
                fmt::format("no step decoded all {} requests together: give more --new-tokens or a larger --chunk",
                            concurrency));
  }
}

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorKind::kUsage, sentence); }

// The least common multiple, as far as documents could reach.
int64_t common_multiple(const std::vector<int>& concurrency) {
  int64_t multiple = 1;
  for (const int c : concurrency) {
    const int64_t next = c > 0 ? std::lcm(multiple, int64_t{c}) : multiple;
    multiple = next <= (1 << 20) ? next : c;
  }
  return multiple;
}

void check_prompts(const std::vector<AbPrompt>& prompts, const ModelConfig& config, const AbOptions& options) {
  std::set<std::vector<int>> different;
  for (const AbPrompt& prompt : prompts) {
    const std::string origin = escape(prompt.origin, 400);
    if (prompt.tokens.empty()) refuse(fmt::format("{}: the prompt has no tokens", origin));
    if (std::ssize(prompt.tokens) + options.new_tokens > config.context) {
      refuse(fmt::format("{}: the prompt's {} tokens and {} new ones do not fit the model's context of {}", origin,
                         prompt.tokens.size(), options.new_tokens, config.context));
    }
    different.insert(prompt.tokens);
  }
  const int most = *std::max_element(options.concurrency.begin(), options.concurrency.end());
  if (std::ssize(different) < most || different.size() < prompts.size()) {
    refuse(fmt::format("concurrency {} needs as many different prompts, there are {}", most, different.size()));
  }
}

}  // namespace

void check_document_count(int64_t documents, const std::vector<int>& batches) {
  const int64_t multiple = common_multiple(batches);
  for (const int c : batches) {
    if (documents % c == 0) continue;
    const int64_t next = (documents / multiple + 1) * multiple;
    refuse(fmt::format("{} documents do not fill batches of {}: the next number that does is {}", documents, c, next));
  }
}

size_t last_level_cache() { return cpu_info().l3_bytes ? cpu_info().l3_bytes : kDefaultCacheBytes; }

std::vector<AbPrompt> distinct_prompts(std::vector<AbPrompt> prompts, const Documents& starts, int needed) {
  std::set<std::vector<int>> seen;
  std::vector<AbPrompt> out;
  for (AbPrompt& prompt : prompts) {
    if (seen.insert(prompt.tokens).second) out.push_back(std::move(prompt));
  }
  for (size_t i = 0; i < starts.size() && std::ssize(out) < needed; ++i) {
    if (seen.insert(starts[i]).second) out.push_back({starts[i], fmt::format("start {} of the text", i + 1)});
  }
  return out;
}

void check_ab(const ModelConfig& config, const AbOptions& options) {
  if (options.policies.empty()) refuse("no policy to measure");
  if (options.repeats < 1 || options.repeats > 1000)
    refuse(fmt::format("repeats must be 1 to 1000, got {}", options.repeats));
  if (options.new_tokens < 8)
    refuse(fmt::format("at least 8 new tokens are needed to time decode steps, got {}", options.new_tokens));
  if (options.chunk < 1 || options.chunk > 65536)
    refuse(fmt::format("the chunk must be 1 to 65536 prompt tokens, got {}", options.chunk));
  if (options.concurrency.empty()) refuse("no concurrency to measure");
  for (const int c : options.concurrency) {
    if (c < 1 || c > 1024) refuse(fmt::format("concurrency must be 1 to 1024, got {}", c));
  }
  check_fits(options.text.tokens, config);
  check_document_count(options.text.documents, options.concurrency);
  if (config.moe_layers() == 0)
    throw Error(ErrorKind::kConfig, "the model has no routed experts: there is nothing for policies to compare");
  for (const std::string& spec : options.policies) check_spec(spec, config);
}

int default_documents(const std::vector<int>& concurrency) {
  const int64_t multiple = common_multiple(concurrency);
  return static_cast<int>((kFewestDocuments + multiple - 1) / multiple * multiple);
}

int default_cold_copies(const Model& model) {
  return cold_copies_for(model.weights().expert_bytes(), last_level_cache());
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

std::vector<ResultRow> run_ab(Model& model, const std::vector<AbPrompt>& prompts, const Documents& documents,
                              const AbOptions& options) {
  check_ab(model.config(), options);
  check_document_count(std::ssize(documents), options.concurrency);
  check_prompts(prompts, model.config(), options);
  std::vector<std::unique_ptr<Policy>> policies;
  std::vector<const Policy*> pointers;
  for (const std::string& spec : options.policies) {
    policies.push_back(make_policy(spec, model));
    policies.back()->check(model.config().n_experts, model.config().top_k);
    pointers.push_back(policies.back().get());
  }
  const auto progress = [&](const std::string& stage, double share) {
    if (options.progress) options.progress(stage, share);
  };
  const StepSizes sizes = sizes_of(model);
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
        run_requests(model, std::span(prompts).first(static_cast<size_t>(concurrency)), options, sides[s]);
      }
    }
    const QualityRun quality = teacher_forced(model, pointers, documents, concurrency, [&](double share) {
      progress(fmt::format("quality at concurrency {}", concurrency), share);
    });
    const auto add = [&](const Side& side, const Tally& tally, bool decode) -> ResultRow& {
      ResultRow& row = rows.emplace_back(make_row(sizes, tally, decode, concurrency));
      row.policy = side.spec;
      set_floor(row, median(bandwidth));
      return row;
    };
    for (size_t s = 0; s < sides.size(); ++s) {
      ResultRow& row = add(sides[s], sides[s].decode, true);
      row.quality = quality.quality[s];
      row.speedup = paired_speedup(sides[0].decode, sides[s].decode);
    }
    for (const Side& side : sides) {
      if (side.mixed.steps > 0) add(side, side.mixed, false);
    }
  }
  return rows;
}

}  // namespace carpool
