#include "cli/bench_serve.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "measure/load_ab.h"
#include "measure/load_backend.h"
#include "measure/load_client.h"
#include "measure/load_dataset.h"
#include "measure/load_report.h"
#include "measure/load_server.h"

namespace carpool {
namespace {

constexpr int kWarmupOutput = 32;      // tokens at most, as bench_serving
constexpr int kSpareDescriptors = 64;  // beside the connections
constexpr size_t kMostDatasetBytes = size_t{2} << 30;

struct Options {
  std::string url = "http://127.0.0.1:8080", backend = "sglang", dataset = "random-ids", dataset_path;
  std::string model, api_key, admin_key, request_rate = "inf", percentiles = "90,95,99", extra_body;
  std::string tag, output_file, json, markdown, quality, ab_via = "request";
  std::vector<std::string> headers, ab;
  std::vector<int> concurrency;
  std::optional<int> num_prompts, sharegpt_output_len, vocab_size;
  int max_concurrency = 0, warmup = 1, repeats = 5;
  LengthRule lengths;
  SharedPrefixRule shared;
  uint64_t seed = 42;
  double temperature = 0, top_p = 1, ready_s = 60, timeout_s = 3600;
  bool keep_eos = false, no_stream = false, flush = false, details = false;
};

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorKind::kUsage, sentence); }

// Every connection is a descriptor. Error{kNoMemory} when the system does not grant so many.
void require_descriptors(int connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto needed = static_cast<rlim_t>(connections + kSpareDescriptors);
  if (limit.rlim_cur >= needed) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (limit.rlim_cur < needed || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    throw Error(ErrorKind::kNoMemory, fmt::format("{} connections need {} open files and the limit is {}: raise it "
                                                  "(ulimit -n) or lower the concurrency",
                                                  connections, needed, std::max(before, limit.rlim_max)));
  }
}

LoadHeaders all_headers(const Options& options) {
  LoadHeaders headers;
  if (!options.api_key.empty()) headers.push_back(parse_header("Authorization: Bearer " + options.api_key));
  for (const std::string& text : options.headers) headers.push_back(parse_header(text));
  return headers;
}

// One command under way: what was asked of the server once, and what runs share.
class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        rate_(parse_request_rate(options.request_rate)),
        percents_(parse_percentiles(options.percentiles)),
        client_(parse_url(options.url), all_headers(options), options.timeout_s),
        server_(client_, options.admin_key),
        progress_(false) {
    settings_.backend = parse_backend(options.backend);
    settings_.temperature = options.temperature;
    settings_.top_p = options.top_p;
    settings_.ignore_eos = !options.keep_eos;
    settings_.stream = !options.no_stream;
    settings_.seed = options.seed;
    settings_.extra = parse_extra_body(options.extra_body);
  }

  void connect() {
    server_.wait_ready(options_.ready_s);
    settings_.model = options_.model.empty() ? server_.model() : options_.model;
    if (settings_.model.empty() && settings_.backend != LoadBackend::kNative) {
      refuse(fmt::format("{} names no model in /v1/models: give --model NAME", client_.url().text()));
    }
    info_ = server_.info();
    counter_ = server_.token_counter(settings_.model);
    if (options_.dataset == "random-ids") {
      vocab_ = options_.vocab_size ? *options_.vocab_size : server_.vocab();
      if (vocab_ == 0) refuse("the server does not say how large its vocabulary is: give --vocab-size N");
    }
    if (options_.dataset == "custom") dataset_text_ = read_text_file(options_.dataset_path, kMostDatasetBytes);
    if (options_.dataset == "random" || options_.dataset == "generated-shared-prefix") words_.emplace(counter_);
  }

  LoadDataset dataset(int count, uint64_t seed) {
    if (options_.dataset == "random-ids") return {random_ids(count, options_.lengths, vocab_, seed), {}};
    if (options_.dataset == "random") return {random_text(count, options_.lengths, *words_, seed), {}};
    if (options_.dataset == "generated-shared-prefix") return {shared_prefix(options_.shared, *words_, seed), {}};
    LoadDataset out =
        custom_prompts(dataset_text_, options_.dataset_path, count, options_.lengths.output, counter_, seed);
    if (options_.sharegpt_output_len) {
      for (LoadPrompt& prompt : out.prompts) prompt.output_tokens = *options_.sharegpt_output_len;
    }
    return out;
  }

  // Requests like the first, one after the other; a load whose first request fails is not worth its time.
  void warm_up(const LoadSettings& settings, const std::vector<LoadPrompt>& prompts) {
    LoadPrompt prompt = prompts.at(0);
    prompt.output_tokens = std::min(prompt.output_tokens, kWarmupOutput);
    LoadPlan plan;
    plan.backend = settings.backend;
    plan.max_concurrency = 1;
    plan.requests.assign(static_cast<size_t>(options_.warmup), make_request(settings, prompt, 0));
    for (const LoadOutcome& outcome : client_.run(plan).outcomes) {
      if (outcome.success) continue;
      throw Error(ErrorKind::kUnavailable, fmt::format("the warm-up request to {} failed: {}: {}", client_.url().text(),
                                                       outcome.failure, outcome.message));
    }
  }

  // One load. `stage` is for the terminal.
  LoadReport run(const LoadSettings& settings, const std::vector<LoadPrompt>& prompts, int concurrency,
                 const std::string& stage, const std::string& tag) {
    LoadPlan plan;
    plan.backend = settings.backend;
    plan.request_rate = rate_;
    plan.max_concurrency = concurrency;
    plan.seed = settings.seed;
    for (size_t i = 0; i < prompts.size(); ++i) {
      plan.requests.push_back(make_request(settings, prompts[i], static_cast<int>(i)));
    }
    plan.progress = [&](int done, int total) { progress_.show(stage, static_cast<double>(done) / total); };
    const std::optional<ServerCounters> before = server_.counters();
    const LoadRun load = client_.run(plan);
    const std::optional<ServerCounters> after = server_.counters();
    if (load.limited)
      add_note(
          fmt::format("{} connections were open and requests waited for one: from there on this was "
                      "no open loop.",
                      kMostConnections));
    LoadReport report = describe(load, concurrency);
    report.tag = tag;
    if (before && after) report.counters = difference(*after, *before);
    if (!options_.output_file.empty()) {
      // One object per run, as bench_serving appends them.
      append_line(options_.output_file,
                  json::serialize(load_line(report, options_.details ? &load.outcomes : nullptr)));
    }
    return report;
  }

  BenchReport empty_report(const Invocation& invocation) const {
    BenchReport report;
    report.facts.command = command_line(invocation.words);
    report.facts.commit = build_commit();
    report.facts.machine = machine_facts(1, "load client");
    report.facts.model = settings_.model;
    report.facts.settings = {{"url", client_.url().text()},
                             {"backend", options_.backend},
                             {"dataset", options_.dataset + (dataset_text_.empty() ? "" : " " + options_.dataset_path)},
                             {"request_rate", options_.request_rate},
                             {"seed", std::to_string(options_.seed)},
                             {"lengths_counted_by", counter_ ? "/tokenize" : "words"}};
    if (const json::object* info = info_.if_object()) {
      for (const char* key : {"version", "commit", "machine"}) {
        const json::value* found = info->if_contains(key);
        if (found && found->is_string()) {
          report.facts.settings.emplace_back(fmt::format("server_{}", key), std::string(found->get_string()));
        }
      }
    }
    return report;
  }

  void add_note(const std::string& note) {
    if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
  }
  const std::vector<std::string>& notes() const { return notes_; }
  const LoadSettings& settings() const { return settings_; }
  LoadServer& server() { return server_; }

 private:
  LoadReport describe(const LoadRun& load, int concurrency) {
    LoadReport report;
    report.backend = options_.backend;
    report.dataset = options_.dataset;
    report.model = settings_.model;
    report.url = client_.url().text();
    report.request_rate = rate_;
    report.max_concurrency = concurrency;
    report.sharegpt_output_len = options_.sharegpt_output_len;
    report.random_input_len = options_.lengths.input;
    report.random_output_len = options_.lengths.output;
    report.random_range_ratio = options_.lengths.range_ratio;
    report.server_info = server_.info();
    report.metrics = summarise(load.outcomes, load.duration, percents_);
    report.failures = failures(load.outcomes);
    report.routing = applied_routing(load.outcomes);
    if (counter_ && (options_.ab.empty() || !options_.output_file.empty())) {
      std::vector<std::string> texts;
      for (const LoadOutcome& o : load.outcomes) {
        if (o.success && !o.text.empty()) texts.push_back(o.text);
      }
      report.retokenized = server_.count_tokens(settings_.model, texts);
    }
    return report;
  }

  const Options& options_;
  double rate_;
  std::vector<double> percents_;
  LoadClient client_;
  LoadServer server_;
  Progress progress_;
  LoadSettings settings_;
  json::value info_;
  TokenCounter counter_;
  int vocab_ = 0;
  std::string dataset_text_;
  std::optional<RandomText> words_;
  std::vector<std::string> notes_;
};

Table latency_table(const LoadMetrics& m) {
  Table table{"Latency in ms, over requests (ITL: over tokens)", {"", "mean", "median"}, {}};
  for (const auto& [p, value] : m.e2e_ms.percentiles) table.columns.push_back(fmt::format("P{:g}", p));
  table.columns.emplace_back("max");
  const std::pair<const char*, const Distribution*> rows[] = {
      {"E2E", &m.e2e_ms}, {"TTFT", &m.ttft_ms}, {"TPOT", &m.tpot_ms}, {"ITL", &m.itl_ms}};
  for (const auto& [title, d] : rows) {
    std::vector<std::string> row = {title, number_text(d->mean, 2), number_text(d->median, 2)};
    for (const auto& [p, value] : d->percentiles) row.push_back(number_text(value, 2));
    row.push_back(number_text(d->max, 2));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table throughput_table(const LoadMetrics& m) {
  return {"Throughput, per second",
          {"completed", "failed", "duration s", "requests", "input tokens", "output tokens", "concurrency"},
          {{std::to_string(m.completed), std::to_string(m.failed), number_text(m.duration, 2),
            number_text(m.request_throughput, 2), number_text(m.input_throughput, 1),
            number_text(m.output_throughput, 1), number_text(m.concurrency, 2)}}};
}

void write_reports(const Options& options, const BenchReport& report, const std::string& text) {
  if (options.json != "-" && options.markdown != "-") write_output("-", text);
  if (!options.json.empty()) write_output(options.json, pretty(bench_json(report)));
  if (!options.markdown.empty()) write_output(options.markdown, markdown(report));
}

[[noreturn]] void nothing_succeeded(int failed, const std::map<std::string, FailureCount>& kinds) {
  std::string first;
  if (!kinds.empty()) first = fmt::format(": {}: {}", kinds.begin()->first, kinds.begin()->second.message);
  throw Error(ErrorKind::kUnavailable, fmt::format("none of {} requests succeeded{}", failed, first));
}

void single(const Options& options, Bench& bench, const Invocation& invocation) {
  const LoadDataset dataset = bench.dataset(options.num_prompts.value_or(1000), options.seed);
  for (const std::string& note : dataset.notes) bench.add_note(note);
  bench.warm_up(bench.settings(), dataset.prompts);
  if (options.flush) {
    if (const std::string why = bench.server().flush_cache(); !why.empty()) {
      throw Error(ErrorKind::kUnavailable, "the server did not flush its cache: " + why);
    }
  }
  const LoadReport load =
      bench.run(bench.settings(), dataset.prompts, options.max_concurrency, "requests", options.tag);
  BenchReport report = bench.empty_report(invocation);
  report.tables = {throughput_table(load.metrics), latency_table(load.metrics)};
  report.results = {load_row(load)};
  report.notes = load_notes(load);
  report.notes.insert(report.notes.end(), bench.notes().begin(), bench.notes().end());
  std::string text = load_block(load);
  for (const std::string& note : report.notes) text += printable(note) + "\n";
  write_reports(options, report, text);
  if (load.metrics.completed == 0) nothing_succeeded(load.metrics.failed, load.failures);
}

// Puts the default policy of the server back when the A/B ends, however it ends.
class PolicyGuard {
 public:
  explicit PolicyGuard(LoadServer& server) : server_(server), before_(server.policy()) {
    if (before_.empty()) {
      throw Error(ErrorKind::kUnavailable,
                  "the server does not tell its policy under /admin/policy: give --admin-key, or use --ab-via request");
    }
  }
  ~PolicyGuard() {
    try {
      server_.set_policy(before_);
    } catch (const Error& e) {
      std::fprintf(stderr, "warning: %s\n", e.what());
    }
  }
  PolicyGuard(const PolicyGuard&) = delete;
  PolicyGuard& operator=(const PolicyGuard&) = delete;

 private:
  LoadServer& server_;
  std::string before_;
};

ArmRun run_arm(const Options& options, Bench& bench, const LoadDataset& dataset, int concurrency, int repeat,
               const std::string& arm) {
  LoadSettings settings = bench.settings();
  settings.seed = options.seed + static_cast<uint64_t>(repeat);
  if (options.ab_via == "request") {
    settings.routing = arm;
  } else {
    bench.server().set_policy(arm);
  }
  bench.warm_up(settings, dataset.prompts);
  // The arms send the same prompts: the second must not find the first one's prefixes.
  if (const std::string why = bench.server().flush_cache(); !why.empty()) {
    bench.add_note("The prefix cache was not flushed between arms (" + why + "): see the column of cached tokens.");
  }
  const std::string stage =
      fmt::format("concurrency {}, repeat {} of {}, {}", concurrency, repeat + 1, options.repeats, arm);
  const std::string tag =
      fmt::format("{}{}c{} r{} {}", options.tag, options.tag.empty() ? "" : " ", concurrency, repeat, arm);
  LoadReport load = bench.run(settings, dataset.prompts, concurrency, stage, tag);
  return {std::move(load.metrics), std::move(load.routing), std::move(load.counters), std::move(load.failures)};
}

MoeSizes moe_sizes(const json::value& info) {
  const auto whole = [&](const std::vector<std::string>& keys) {
    const auto n = find_number(info, keys);
    return n && *n >= 1 && *n <= 1 << 20 ? static_cast<int>(*n) : 0;
  };
  return {whole({"n_experts", "num_experts", "n_routed_experts"}),
          whole({"num_experts_per_tok", "experts_per_token", "n_experts_per_token"})};
}

Table read_quality(const Options& options) {
  return measured_quality(parse_json(read_text_file(options.quality), options.quality), options.quality, options.ab);
}

void ab(const Options& options, Bench& bench, const Invocation& invocation) {
  const ServeAbOptions ab_options{options.ab, options.concurrency, options.repeats};
  std::optional<PolicyGuard> guard;
  if (options.ab_via == "admin") guard.emplace(bench.server());
  std::pair<int, int> made = {-1, -1};  // concurrency and repeat that `dataset` is of
  LoadDataset dataset;
  const auto levels = run_serve_ab(ab_options, [&](int concurrency, int repeat, size_t arm) {
    if (made != std::pair(concurrency, repeat)) {
      dataset =
          bench.dataset(ab_requests(options.num_prompts.has_value(), options.num_prompts.value_or(0), concurrency),
                        options.seed + static_cast<uint64_t>(repeat));
      for (const std::string& note : dataset.notes) bench.add_note(note);
      made = {concurrency, repeat};
    }
    return run_arm(options, bench, dataset, concurrency, repeat, options.ab[arm]);
  });
  BenchReport report = bench.empty_report(invocation);
  report.facts.settings.emplace_back("ab_via", options.ab_via);
  report.facts.settings.emplace_back("repeats", std::to_string(options.repeats));
  report_serve_ab(ab_options, levels, moe_sizes(bench.server().model_info()), report);
  if (!options.quality.empty()) report.tables.push_back(read_quality(options));
  report.notes.insert(report.notes.end(), bench.notes().begin(), bench.notes().end());
  write_reports(options, report, bench_text(report));
  int completed = 0, failed = 0;
  std::map<std::string, FailureCount> kinds;
  for (const ServeAbLevel& level : levels) {
    for (const auto& runs : level.runs) {
      for (const ArmRun& run : runs) {
        completed += run.metrics.completed;
        failed += run.metrics.failed;
        kinds.insert(run.failures.begin(), run.failures.end());
      }
    }
  }
  if (completed == 0) nothing_succeeded(failed, kinds);
}

void check_options(const Options& options) {
  static const std::vector<std::string> kDatasets = {"random-ids", "random", "custom", "generated-shared-prefix"};
  if (std::find(kDatasets.begin(), kDatasets.end(), options.dataset) == kDatasets.end()) {
    refuse(fmt::format("no data set {}: there are random-ids, random, custom and generated-shared-prefix",
                       escape(options.dataset, 60)));
  }
  const bool custom = options.dataset == "custom";
  if (custom && options.dataset_path.empty()) refuse("--dataset-name custom needs --dataset-path FILE");
  if (!custom && !options.dataset_path.empty()) refuse("--dataset-path is read with --dataset-name custom only");
  if (options.dataset == "random-ids" && parse_backend(options.backend) == LoadBackend::kChat) {
    refuse("token ids are no chat messages: use --dataset-name random, or --backend sglang or openai");
  }
  if (options.ab_via != "request" && options.ab_via != "admin") refuse("--ab-via is request or admin");
  if (options.details && options.output_file.empty()) refuse("--output-details needs --output-file FILE");
  if (options.ab.empty() && !options.concurrency.empty()) {
    refuse("--concurrency is for an A/B (--ab); of a single run it is --max-concurrency");
  }
  if (!options.ab.empty() && options.max_concurrency > 0) refuse("of an A/B the concurrency is --concurrency");
  if (!options.ab.empty()) check_serve_ab({options.ab, options.concurrency, options.repeats});
  if (!options.quality.empty() && options.ab.empty()) refuse("--quality is for an A/B (--ab)");
  if (!options.quality.empty()) read_quality(options);  // a file that does not fit is noticed before the load
  if (!options.json.empty() && options.json == options.markdown) refuse("--json and --markdown name the same file");
  for (const std::string& path : {options.json, options.markdown, options.output_file}) check_output(path);
}

void run(Options options, const Invocation& invocation) {
  if (!options.ab.empty() && options.concurrency.empty()) options.concurrency = {1, 10, 64};
  check_options(options);
  int most = options.max_concurrency > 0 ? options.max_concurrency
                                         : std::min(options.num_prompts.value_or(1000), kMostConnections);
  for (const int c : options.concurrency) most = std::max(most, c);
  require_descriptors(most);
  Bench bench(options);
  bench.connect();
  if (options.ab.empty()) {
    single(options, bench, invocation);
  } else {
    ab(options, bench, invocation);
  }
}

void add_load_options(CLI::App& c, Options& o) {
  c.add_option("--backend", o.backend, "sglang (/generate), openai (/v1/completions) or openai-chat")
      ->capture_default_str();
  c.add_option("--model", o.model, "name of the model in requests (default: the server's first)");
  c.add_option("--num-prompts", o.num_prompts, "requests (default: 1000; in an A/B two per place, at least 8)")
      ->check(CLI::Range(1, 1 << 24));
  c.add_option("--request-rate", o.request_rate, "requests per second with exponential gaps; inf = all at once")
      ->capture_default_str();
  c.add_option("--max-concurrency", o.max_concurrency,
               fmt::format("requests under way at once; one's clock starts when it gets its place (default: {})",
                           kMostConnections))
      ->check(CLI::Range(1, kMostConnections));
  c.add_option("--warmup-requests", o.warmup, "requests like the first, before the clock starts")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  c.add_option("--seed", o.seed, "of data sets, arrivals and sampling")->capture_default_str();
  c.add_option("--temperature", o.temperature, "of sampling; 0 = greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  c.add_option("--top-p", o.top_p, "of sampling")->check(CLI::Range(0.0, 1.0))->capture_default_str();
  c.add_flag("--disable-ignore-eos", o.keep_eos, "let texts end where the model ends them");
  c.add_flag("--disable-stream", o.no_stream, "ask for whole replies: there is no TTFT, TPOT and ITL then");
  c.add_flag("--flush-cache", o.flush, "flush the prefix cache before the clock starts (an A/B always asks for it)");
  c.add_option("--extra-request-body", o.extra_body, "JSON object merged into every request");
  c.add_option("--header", o.headers, "Name=value, sent with every request; may be given several times")
      ->allow_extra_args(false);
  c.add_option("--api-key", o.api_key, "sent as a bearer token");
  c.add_option("--ready-check-timeout-sec", o.ready_s, "wait so long for /health; 0 = do not ask")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  c.add_option("--timeout", o.timeout_s, "seconds after which a request is given up")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
}

void add_dataset_options(CLI::App& c, Options& o) {
  const CLI::Range count(1, 1 << 20);
  c.add_option("--dataset-name", o.dataset, "random-ids, random (words), custom or generated-shared-prefix")
      ->capture_default_str();
  c.add_option("--dataset-path", o.dataset_path,
               "of custom: JSON lines {\"prompt\"}, ShareGPT's {\"conversations\"} or OpenAI's {\"messages\"}");
  c.add_option("--random-input-len", o.lengths.input, "tokens of a prompt")->check(count)->capture_default_str();
  c.add_option("--random-output-len", o.lengths.output,
               "tokens to generate, also of custom where the file has no answer")
      ->check(count)
      ->capture_default_str();
  c.add_option("--random-range-ratio", o.lengths.range_ratio,
               "lengths are drawn from this share of them up to themselves")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  c.add_option("--sharegpt-output-len", o.sharegpt_output_len, "tokens to generate for every prompt of custom")
      ->check(count);
  c.add_option("--vocab-size", o.vocab_size, "of random-ids (default: what the server says)")
      ->check(CLI::Range(1, 1 << 24));
  c.add_option("--gsp-num-groups", o.shared.groups, "groups that share a beginning")
      ->check(count)
      ->capture_default_str();
  c.add_option("--gsp-prompts-per-group", o.shared.prompts_per_group, "prompts of each group")
      ->check(count)
      ->capture_default_str();
  c.add_option("--gsp-system-prompt-len", o.shared.system_tokens, "tokens of the shared beginning")
      ->check(count)
      ->capture_default_str();
  c.add_option("--gsp-question-len", o.shared.question_tokens, "tokens after it")->check(count)->capture_default_str();
  c.add_option("--gsp-output-len", o.shared.output_tokens, "tokens to generate")->check(count)->capture_default_str();
  c.add_option("--gsp-range-ratio", o.shared.range_ratio, "as --random-range-ratio, of questions and outputs")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void add_report_options(CLI::App& c, Options& o) {
  c.add_option("--ab", o.ab, "a policy of an A/B on the live server; at least two, the first is what others refer to")
      ->allow_extra_args(false);
  c.add_option(
       "--ab-via", o.ab_via,
       "request: the `routing` field of every request; admin: the server's default policy, by POST /admin/policy")
      ->capture_default_str();
  c.add_option("--quality", o.quality,
               "file that `carpool ab --json` wrote for the same policies: shown beside the speeds of an A/B");
  c.add_option("--admin-key", o.admin_key, "bearer token of operators' calls: /admin/policy, /flush_cache");
  c.add_option("--concurrency", o.concurrency, "requests under way in an A/B, e.g. 1,10,64 (the default)")
      ->delimiter(',')
      ->allow_extra_args(false);
  c.add_option("--repeat,--repeats", o.repeats, "rounds of an A/B in which every policy runs once")
      ->capture_default_str();
  c.add_option("--percentiles", o.percentiles, "of latencies, e.g. 50,99.9; 90, 95 and 99 are always reported")
      ->capture_default_str();
  c.add_option("--output-file", o.output_file, "append one line of JSON per run, with the keys of SGLang's client");
  c.add_flag("--output-details", o.details, "with every request's times and texts in it");
  c.add_option("--tag", o.tag, "copied into that line");
  c.add_option("--json", o.json, "write the results to this file (- = standard output instead of the table)");
  c.add_option("--markdown", o.markdown, "write facts and tables to this file (- = standard output instead)");
}

}  // namespace

std::pair<std::string, std::string> parse_header(std::string_view text) {
  const size_t at = text.find_first_of(":=");
  const std::string name(text.substr(0, std::min(at, text.size())));
  std::string value(at == std::string_view::npos ? "" : text.substr(at + 1));
  value.erase(0, std::min(value.find_first_not_of(' '), value.size()));
  constexpr std::string_view kNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  const bool bad_value = std::any_of(value.begin(), value.end(), [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return u < 32 || u == 127;
  });
  if (at == std::string_view::npos || name.empty() || name.find_first_not_of(kNames) != std::string::npos ||
      bad_value) {
    refuse(fmt::format("{} is no header: it looks like Name=value", escape(text, 60)));
  }
  return {name, value};
}

std::vector<double> parse_percentiles(const std::string& text) {
  std::vector<double> out = {90, 95, 99};
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    double p = 0;
    const auto [stop, ec] = std::from_chars(text.data() + at, text.data() + end, p);
    if (ec != std::errc() || stop != text.data() + end || !(p > 0 && p <= 100)) {
      refuse(fmt::format("--percentiles are numbers above 0 and at most 100, got {}", escape(text, 60)));
    }
    out.push_back(p);
    at = end + 1;
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

double parse_request_rate(const std::string& text) {
  if (text == "inf") return std::numeric_limits<double>::infinity();
  double rate = 0;
  const auto [stop, ec] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (ec != std::errc() || stop != text.data() + text.size() || !(rate > 0 && rate <= 1e6)) {
    refuse(fmt::format("--request-rate is a positive number of requests per second or inf, got {}", escape(text, 60)));
  }
  return rate;
}

json::object parse_extra_body(const std::string& text) {
  if (text.empty()) return {};
  try {
    const json::value value = parse_json(text, "--extra-request-body");
    if (value.is_object()) return value.get_object();
  } catch (const Error& e) {
    refuse(e.what());
  }
  refuse("--extra-request-body is no JSON object");
}

int ab_requests(bool given, int num_prompts, int concurrency) {
  return given ? std::max(num_prompts, concurrency) : std::max(8, 2 * concurrency);
}

void add_bench_serve(CLI::App& app, const Invocation& invocation) {
  auto options = std::make_shared<Options>();
  CLI::App& c = *app.add_subcommand(
      "bench-serve", "load an HTTP server and report SGLang's serving metrics; A/B of policies on a live server");
  c.footer(
      "Example: carpool bench-serve http://127.0.0.1:8080 --num-prompts 64 --max-concurrency 16 --random-input-len 64 "
      "--random-output-len 64\n"
      "         carpool bench-serve --ab topk --ab oea:k0=5 --concurrency 1,10,64 --repeat 5 --markdown ab.md");
  c.add_option("URL,--base-url", options->url, "the server, http://HOST:PORT")->capture_default_str();
  add_load_options(c, *options);
  add_dataset_options(c, *options);
  add_report_options(c, *options);
  c.callback([options, &invocation] { run(*options, invocation); });
}

}  // namespace carpool
