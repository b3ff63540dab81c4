// Counting and the text of /metrics. See metrics.h.
//
// All numbers lie in one small copyable struct under a mutex: recording adds to it, rendering copies it and formats the
// copy. Names, labels and buckets of the first half are vLLM's, with the prefix carpool:.
#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "text/utf8.h"

namespace carpool {
namespace {

constexpr double kFirstToken[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                  1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
constexpr double kInterToken[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                  0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double kLatency[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                               30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokens[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                              1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
constexpr double kIteration[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr double kExperts[] = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512};
constexpr double kRowsPerExpert[] = {1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128};
constexpr double kLiveKept = 0.9;  // of the sums of the live view: about the last ten of them
constexpr double kKept = 0.98;     // of the moving sums, per decode-only step: about the last 50 of them

struct Histogram {
  explicit Histogram(std::span<const double> b) : bounds(b), counts(b.size() + 1) {}
  std::span<const double> bounds;
  std::vector<int64_t> counts;  // by bucket, not cumulative; the last is +Inf
  double sum = 0;

  void add(double value) {
    const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
    ++counts[static_cast<size_t>(bucket)];
    sum += value;
  }
  void add_if_known(double value) {
    if (value >= 0) add(value);
  }
};

// Steps of one kind: without prompt rows, or with them.
struct StepSums {
  RoutingCounters routing;
  int64_t steps = 0;
  double seconds = 0, expert_bytes = 0, dense_bytes = 0;
};

// What LiveRouting is computed from: sums over decode-only steps that decay with each.
struct LiveSums {
  double steps = 0, rows = 0, pairs = 0, rerouted = 0;
  std::vector<LiveRouting::Layer> layers;

  void add(const StepReport& report) {
    const auto grow = [](double& sum, double value) { sum = sum * kLiveKept + value; };
    grow(steps, 1);
    grow(rows, report.decode_rows);
    grow(pairs, static_cast<double>(report.decode_rows) * static_cast<double>(report.layers.size()));
    grow(rerouted, static_cast<double>(report.routing.rerouted_tokens));
    layers.resize(report.layers.size());
    for (size_t l = 0; l < layers.size(); ++l) {
      grow(layers[l].loaded, static_cast<double>(report.layers[l].loaded));
      grow(layers[l].plain, static_cast<double>(report.layers[l].plain));
    }
  }
};

struct Data {
  LiveSums live;
  MemorySizes sizes;
  StepSums decode, mixed;
  double moving_bytes = 0, moving_seconds = 0, moving_tokens = 0;  // of decode-only steps, decaying
  int64_t prompt_tokens = 0, generation_tokens = 0, prefix_hits = 0, prefix_queries = 0, preemptions = 0;
  std::array<int64_t, kPrefixReasons> prefix{};
  std::map<std::string, int64_t> finished, refused;
  std::map<std::pair<std::string, int>, int64_t> http;
  int64_t connections = 0;
  Histogram first_token{kFirstToken}, inter_token{kInterToken}, per_output_token{kInterToken};
  Histogram e2e{kLatency}, queue{kLatency}, inference{kLatency}, prefill_time{kLatency}, decode_time{kLatency};
  Histogram prompt{kTokens}, generation{kTokens}, iteration{kIteration};
  Histogram experts{kExperts}, experts_plain{kExperts}, rows_per_expert{kRowsPerExpert};
};

const char* finished_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
    default:
      return "error";
  }
}

std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : sanitize_utf8(text)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return out;
}

// As the Python client spells bounds, so that series of both can be joined: 1.0, 0.025.
std::string bound_text(double bound) {
  const std::string text = fmt::format("{}", bound);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

// The page under construction. Every metric carries the model's name.
class Page {
 public:
  explicit Page(const std::string& model_name) : model_("model_name=\"" + label_value(model_name) + "\"") {}

  void head(const char* name, const char* type, const char* help) {
    text_ += fmt::format("# HELP carpool:{} {}\n# TYPE carpool:{} {}\n", name, help, name, type);
  }
  void sample(std::string_view name, const std::string& labels, double value) {
    text_ += fmt::format("carpool:{}{{{}{}{}}} {}\n", name, model_, labels.empty() ? "" : ",", labels, value);
  }
  void gauge(const char* name, const char* help, double value) {
    head(name, "gauge", help);
    sample(name, "", value);
  }
  void counter(const char* name, const char* help, double value) {
    head(name, "counter", help);
    sample(name, "", value);
  }
  void histogram(const char* name, const char* help, const Histogram& h) {
    head(name, "histogram", help);
    int64_t count = 0;
    for (size_t i = 0; i < h.counts.size(); ++i) {
      count += h.counts[i];
      const std::string le = i < h.bounds.size() ? bound_text(h.bounds[i]) : "+Inf";
      sample(fmt::format("{}_bucket", name), "le=\"" + le + "\"", static_cast<double>(count));
    }
    sample(fmt::format("{}_sum", name), "", h.sum);
    sample(fmt::format("{}_count", name), "", static_cast<double>(count));
  }
  // The same counter of decode-only steps and of steps with prompt rows.
  template <class F>
  void both(const char* name, const char* help, const Data& d, const F& value) {
    head(name, "counter", help);
    sample(name, "steps=\"decode\"", static_cast<double>(value(d.decode)));
    sample(name, "steps=\"mixed\"", static_cast<double>(value(d.mixed)));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string model_;
  std::string text_;
};

void engine_part(Page& page, const Data& d, const LoopState& state) {
  const double blocks = std::max(1, state.kv_total_blocks);
  page.gauge("num_requests_running", "Requests in the running batch.", state.running);
  page.gauge("num_requests_waiting", "Requests that wait to be admitted.", state.waiting);
  page.gauge("kv_cache_usage_perc", "Share of the key-value pool in use by requests, 0 to 1.",
             (state.kv_total_blocks - state.kv_free_blocks - state.kv_cached_blocks) / blocks);
  page.gauge("kv_cache_blocks", "Blocks of the key-value pool.", state.kv_total_blocks);
  page.gauge("kv_cache_cached_blocks", "Blocks that only the prefix cache holds.", state.kv_cached_blocks);
  page.gauge("estimated_wait_seconds", "Until a request queued now would be admitted.", state.estimated_wait);
  page.gauge("gen_throughput", "Generated tokens per second, over the last seconds.", state.tokens_per_second);
  page.gauge("engine_alive", "1 while the engine thread runs.", state.alive ? 1 : 0);
  page.counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               static_cast<double>(d.prefix_queries));
  page.counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
               static_cast<double>(d.prefix_hits));
  page.counter("num_preemptions_total", "Times a running request gave its blocks back.",
               static_cast<double>(d.preemptions));
  page.counter("prompt_tokens_total", "Prompt tokens computed or taken from the prefix cache.",
               static_cast<double>(d.prompt_tokens));
  page.counter("generation_tokens_total", "Generated tokens.", static_cast<double>(d.generation_tokens));
  page.head("request_success_total", "counter", "Finished requests by reason.");
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    const auto it = d.finished.find(reason);
    page.sample("request_success_total", fmt::format("finished_reason=\"{}\"", reason),
                it == d.finished.end() ? 0 : static_cast<double>(it->second));
  }
  page.histogram("iteration_tokens_total", "Rows of a step.", d.iteration);
  page.histogram("time_to_first_token_seconds", "From arrival to first token.", d.first_token);
  page.histogram("inter_token_latency_seconds", "From a token of a request to its next.", d.inter_token);
  page.histogram("request_time_per_output_token_seconds", "Mean of a request's inter-token times.", d.per_output_token);
  page.histogram("e2e_request_latency_seconds", "From arrival to end.", d.e2e);
  page.histogram("request_queue_time_seconds", "From arrival to first admission.", d.queue);
  page.histogram("request_inference_time_seconds", "From first admission to end.", d.inference);
  page.histogram("request_prefill_time_seconds", "From first admission to first token.", d.prefill_time);
  page.histogram("request_decode_time_seconds", "From first token to last.", d.decode_time);
  page.histogram("request_prompt_tokens", "Prompt tokens of a request.", d.prompt);
  page.histogram("request_generation_tokens", "Generated tokens of a request.", d.generation);
}

void moe_part(Page& page, const Data& d, const LoopState& state) {
  page.head("policy_info", "gauge", "The default routing policy.");
  page.sample("policy_info", "policy=\"" + label_value(state.policy) + "\"", 1);
  page.both("steps_total", "Steps: decode = without prompt rows, mixed = with them.", d,
            [](const StepSums& s) { return s.steps; });
  page.both("forward_seconds_total", "Seconds in the model's forward pass.", d,
            [](const StepSums& s) { return s.seconds; });
  page.both("moe_layer_steps_total", "(step, MoE layer) pairs; divide the expert counters by it.", d,
            [](const StepSums& s) { return s.routing.layers; });
  page.both("moe_distinct_experts_total", "Distinct experts loaded, summed over layers and steps.", d,
            [](const StepSums& s) { return s.routing.distinct_experts; });
  page.both("moe_distinct_experts_plain_total", "Distinct experts that plain routing would have loaded.", d,
            [](const StepSums& s) { return s.routing.distinct_plain; });
  page.both("moe_slots_total", "(row, expert) pairs computed.", d, [](const StepSums& s) { return s.routing.slots; });
  page.both("moe_rerouted_tokens_total", "(row, layer) pairs whose experts differ from plain routing.", d,
            [](const StepSums& s) { return s.routing.rerouted_tokens; });
  page.both("moe_underfilled_tokens_total", "(row, layer) pairs with fewer experts than plain routing.", d,
            [](const StepSums& s) { return s.routing.underfilled_tokens; });
  RoutingCounters all = d.decode.routing;
  all.add(d.mixed.routing);
  page.head("moe_rows_total", "counter", "(row, layer) pairs by why they stayed plain; applied = the policy decided.");
  for (int r = 0; r < kPlainReasons; ++r) {
    const std::string label = fmt::format("reason=\"{}\"", name(static_cast<PlainReason>(r)));
    page.sample("moe_rows_total", label, static_cast<double>(all.plain_rows[static_cast<size_t>(r)]));
  }
  page.head("moe_plain_steps_total", "counter", "(step, layer, group) triples left plain, by reason.");
  for (int r = 1; r < kPlainReasons; ++r) {
    const std::string label = fmt::format("reason=\"{}\"", name(static_cast<PlainReason>(r)));
    page.sample("moe_plain_steps_total", label, static_cast<double>(all.plain_steps[static_cast<size_t>(r)]));
  }
  page.histogram("moe_step_distinct_experts", "Distinct experts per MoE layer, mean of a decode-only step.", d.experts);
  page.histogram("moe_step_distinct_experts_plain", "The same, had routing been plain.", d.experts_plain);
  page.histogram("moe_rows_per_expert", "Rows that share one read of an expert, mean of a decode-only step.",
                 d.rows_per_expert);
}

// How many admitted requests reused no more of their prefix for this reason. To those who are no operators all requests
// that found something else, or nothing, are one: more would say what prompts other tenants send.
int64_t prefix_count(const Data& d, PrefixReason reason, bool operators) {
  const auto count = [&d](PrefixReason r) { return d.prefix[static_cast<size_t>(r)]; };
  if (operators) return count(reason);
  if (reason == PrefixReason::kDiverged || reason == PrefixReason::kOtherTenant) return 0;
  if (reason != PrefixReason::kNoMatch) return count(reason);
  return count(reason) + count(PrefixReason::kDiverged) + count(PrefixReason::kOtherTenant);
}

void memory_part(Page& page, const Data& d, bool operators) {
  page.head("weight_bytes_total", "counter", "Bytes of weights that steps read: experts loaded, and all others.");
  for (const auto& [label, sums] : {std::pair("decode", &d.decode), std::pair("mixed", &d.mixed)}) {
    page.sample("weight_bytes_total", fmt::format("kind=\"experts\",steps=\"{}\"", label), sums->expert_bytes);
    page.sample("weight_bytes_total", fmt::format("kind=\"dense\",steps=\"{}\"", label), sums->dense_bytes);
  }
  page.gauge("weight_bytes_per_token", "Bytes of weights read per generated token, last 50 decode-only steps.",
             d.moving_tokens > 0 ? d.moving_bytes / d.moving_tokens : 0);
  page.gauge("read_bandwidth_gbps", "Memory read bandwidth as probed at start; 0 = not probed.", d.sizes.read_gbps);
  const bool known = d.moving_seconds > 0 && d.sizes.read_gbps > 0;
  page.gauge("memory_bandwidth_share", "Weight bytes per second over that bandwidth, last 50 decode-only steps.",
             known ? d.moving_bytes / d.moving_seconds / (d.sizes.read_gbps * 1e9) : 0);
  page.head("prefix_reuse_total", "counter", "Admitted requests by why no more of their prefix was reused.");
  for (int r = 0; r < kPrefixReasons; ++r) {
    const auto reason = static_cast<PrefixReason>(r);
    page.sample("prefix_reuse_total", fmt::format("reason=\"{}\"", name(reason)),
                static_cast<double>(prefix_count(d, reason, operators)));
  }
}

void http_part(Page& page, const Data& d) {
  page.gauge("http_connections", "Open connections.", static_cast<double>(d.connections));
  page.head("http_requests_total", "counter", "Answered requests by route and status.");
  for (const auto& [key, n] : d.http) {
    page.sample("http_requests_total", fmt::format("route=\"{}\",status=\"{}\"", label_value(key.first), key.second),
                static_cast<double>(n));
  }
  page.head("refused_total", "counter", "Requests refused for load or state, by code.");
  for (const auto& [code, n] : d.refused) {
    page.sample("refused_total", "code=\"" + label_value(code) + "\"", static_cast<double>(n));
  }
}

}  // namespace

struct Metrics::Impl {
  std::string model_name;
  mutable std::mutex mutex;
  Data data;
};

Metrics::Metrics(std::string model_name) : impl_(std::make_unique<Impl>()) {
  impl_->model_name = std::move(model_name);
}
Metrics::~Metrics() = default;

void Metrics::set_sizes(const MemorySizes& sizes) {
  const std::lock_guard lock(impl_->mutex);
  impl_->data.sizes = sizes;
}

void Metrics::step(const Engine& engine, const StepReport& report) {
  const std::lock_guard lock(impl_->mutex);
  Data& d = impl_->data;
  for (const Event& event : report.events) d.generation_tokens += event.token >= 0 ? 1 : 0;
  d.prompt_tokens += report.prefill_rows + engine.prefix_hits() - d.prefix_hits;
  d.prefix_hits = engine.prefix_hits();
  d.prefix_queries = engine.prefix_queries();
  d.preemptions = engine.preemptions();
  d.prefix = engine.prefix_reasons();
  const int rows = report.decode_rows + report.prefill_rows;
  if (rows == 0) return;
  d.iteration.add(rows);
  const RoutingCounters& r = report.routing;
  StepSums& sums = report.prefill_rows == 0 ? d.decode : d.mixed;
  const double expert_bytes = static_cast<double>(r.distinct_experts) * d.sizes.bytes_per_expert;
  sums.routing.add(r);
  ++sums.steps;
  sums.seconds += report.seconds;
  sums.expert_bytes += expert_bytes;
  sums.dense_bytes += d.sizes.dense_bytes;
  if (report.prefill_rows > 0) return;
  d.live.add(report);
  d.moving_bytes = d.moving_bytes * kKept + expert_bytes + d.sizes.dense_bytes;
  d.moving_seconds = d.moving_seconds * kKept + report.seconds;
  d.moving_tokens = d.moving_tokens * kKept + report.decode_rows;
  if (r.layers == 0 || r.distinct_experts == 0) return;
  d.experts.add(static_cast<double>(r.distinct_experts) / static_cast<double>(r.layers));
  d.experts_plain.add(static_cast<double>(r.distinct_plain) / static_cast<double>(r.layers));
  d.rows_per_expert.add(static_cast<double>(r.slots) / static_cast<double>(r.distinct_experts));
}

void Metrics::inter_token(double seconds) {
  const std::lock_guard lock(impl_->mutex);
  impl_->data.inter_token.add(seconds);
}

void Metrics::finished(FinishReason reason, const RequestStats& stats, const RequestTimes& times) {
  const std::lock_guard lock(impl_->mutex);
  Data& d = impl_->data;
  ++d.finished[finished_reason(reason)];
  d.prompt.add(stats.prompt_tokens);
  d.generation.add(stats.completion_tokens);
  d.first_token.add_if_known(times.first_token);
  d.e2e.add_if_known(times.total);
  d.queue.add_if_known(times.queue);
  if (times.queue >= 0) d.inference.add_if_known(times.total - times.queue);
  d.prefill_time.add_if_known(times.prefill);
  d.decode_time.add_if_known(times.decode);
  if (times.decode >= 0 && stats.completion_tokens > 1) {
    d.per_output_token.add(times.decode / (stats.completion_tokens - 1));
  }
}

void Metrics::http(const char* route, int status) {
  const std::lock_guard lock(impl_->mutex);
  ++impl_->data.http[{route, status}];
}

void Metrics::refused(const char* code) {
  const std::lock_guard lock(impl_->mutex);
  ++impl_->data.refused[code];
}

void Metrics::connections(int delta) {
  const std::lock_guard lock(impl_->mutex);
  impl_->data.connections += delta;
}

std::string Metrics::render(const LoopState& state, bool operators) const {
  Data data;
  {
    const std::lock_guard lock(impl_->mutex);
    data = impl_->data;
  }
  Page page(impl_->model_name);
  engine_part(page, data, state);
  moe_part(page, data, state);
  memory_part(page, data, operators);
  http_part(page, data);
  return page.take();
}

LiveRouting Metrics::live() const {
  LiveRouting out;
  LiveSums sums;
  {
    const std::lock_guard lock(impl_->mutex);
    sums = impl_->data.live;
    out.steps = impl_->data.decode.steps;
  }
  if (sums.steps == 0) return out;
  out.rows = sums.rows / sums.steps;
  out.rerouted_share = sums.pairs > 0 ? sums.rerouted / sums.pairs : 0;
  const auto n = static_cast<double>(sums.layers.size());
  for (const LiveRouting::Layer& layer : sums.layers) {
    out.layers.push_back({layer.loaded / sums.steps, layer.plain / sums.steps});
    out.loaded += out.layers.back().loaded / n;
    out.plain += out.layers.back().plain / n;
  }
  return out;
}

RoutingTotals Metrics::routing() const {
  const std::lock_guard lock(impl_->mutex);
  const StepSums &decode = impl_->data.decode, &mixed = impl_->data.mixed;
  RoutingTotals totals{decode.routing, decode.routing, decode.steps, decode.steps + mixed.steps, decode.seconds};
  totals.all.add(mixed.routing);
  return totals;
}

}  // namespace carpool
