// `carpool serve MODEL`: the process around the server. The port is open from the start and says how far the load is;
// a thread loads; the main thread waits for signals. SIGTERM drains, a second one ends at once. What is refused before
// anything is loaded: serve_plan.cc. Read next: server/service.h, server/router.h, server/http_server.h.
#include "cli/serve.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdio>
#include <optional>
#include <thread>

#include "base/cpu_info.h"
#include "base/error.h"
#include "base/time.h"
#include "cli/commands.h"
#include "measure/bench_report.h"
#include "model/canary.h"
#include "model/dummy.h"
#include "model/routing_tables.h"
#include "routing/policy.h"
#include "server/router.h"
#include "text/dummy_tokenizer.h"
#include "text/parsers/output.h"

namespace carpool {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;

constexpr milliseconds kDrainLook{20};     // between two looks whether everything has ended
constexpr milliseconds kFileLook{2000};    // between two looks at the model's files
constexpr milliseconds kLastWords{1000};   // for answers to go out after the engine died
constexpr milliseconds kDrainWords{5000};  // the same after a drain: until the last is out, or a client takes no more
constexpr milliseconds kLastStep{10000};   // for the engine to end what it does at the deadline of a drain
constexpr size_t kProbeBytes = size_t{256} << 20;
constexpr int kProbePasses = 3;

// Of models that have no chat template of their own: dummies.
constexpr const char* kPlainChat = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ";

// A model with its texts, whatever kind it is.
struct Parts {
  std::unique_ptr<LanguageModel> model;
  Tokenizer tokenizer;
  TokenizerConfig config;
  std::string memory_text;
  MemorySizes sizes;
};

// GB/s of reading memory, the best of a few short passes; 0 when there is no room for the buffer.
double probe_bandwidth(Ops& ops) {
  try {
    BenchProbe probe(std::max(kProbeBytes, 2 * cpu_info().l3_bytes));
    double best = 0;
    for (int i = 0; i < kProbePasses; ++i) best = std::max(best, probe.pass(ops));
    return best;
  } catch (const Error&) {
    return 0;
  }
}

MemorySizes sizes_of(Model& model) {
  return {static_cast<double>(model.weights().bytes_per_expert()),
          static_cast<double>(model.weights().dense_bytes_per_step()), probe_bandwidth(model.ops())};
}

// ",context=4096,step_us=0" behind dummy:canary.
CanaryOptions canary_options(const std::string& model) {
  CanaryOptions options;
  const auto number = [&](const std::string& item, const std::string& key, int low, int high) -> std::optional<int> {
    if (item.rfind(key + "=", 0) != 0) return std::nullopt;
    const std::string digits = item.substr(key.size() + 1);
    const bool good = !digits.empty() && digits.size() < 9 &&
                      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    const int value = good ? std::stoi(digits) : -1;
    if (value < low || value > high) {
      throw Error(ErrorKind::kConfig, fmt::format("{}: {} must be {} to {}", escape(model), key, low, high));
    }
    return value;
  };
  for (size_t at = model.find(','); at != std::string::npos;) {
    const size_t next = model.find(',', at + 1);
    const std::string item = model.substr(at + 1, next == std::string::npos ? next : next - at - 1);
    if (const auto context = number(item, "context", 64, 1 << 20)) {
      options.context = *context;
    } else if (const auto step = number(item, "step_us", 0, 10'000'000)) {
      options.step_us = *step;
    } else {
      throw Error(ErrorKind::kConfig,
                  fmt::format("{}: the arguments of dummy:canary are context and step_us", escape(model)));
    }
    at = next;
  }
  return options;
}

Parts load_canary(const std::string& name) {
  auto model = std::make_unique<CanaryModel>(canary_options(name));
  Tokenizer tokenizer = make_dummy_tokenizer(model->config().vocab);
  TokenizerConfig config;
  config.chat_template = kPlainChat;
  return {std::move(model), std::move(tokenizer), std::move(config), "none", {}};
}

Parts load_dummy(const ModelOptions& options, const LoadObserver& observer) {
  Progress progress(options.quiet);
  LoadOptions load = options.load_options();
  load.progress = [&](double share) {
    progress.show("making random weights", share);
    observer("making random weights", share);
  };
  auto model = std::make_unique<Model>(Model::load(options.model, load));
  Tokenizer tokenizer = make_dummy_tokenizer(model->config().vocab);
  TokenizerConfig config;
  config.chat_template = kPlainChat;
  const std::string memory = model->memory_text();
  const MemorySizes sizes = sizes_of(*model);
  return {std::move(model), std::move(tokenizer), std::move(config), memory, sizes};
}

Parts load_parts(const ModelOptions& options, const LoadObserver& observer) {
  if (is_canary(options.model)) return load_canary(options.model);
  if (is_dummy(options.model)) return load_dummy(options, observer);
  LoadedModel loaded = load_model(options, observer);
  auto model = std::make_unique<Model>(std::move(loaded.model));
  const std::string memory = model->memory_text();
  const MemorySizes sizes = sizes_of(*model);
  return {std::move(model), std::move(loaded.tokenizer), std::move(loaded.tokenizer_config), memory, sizes};
}

std::string url_of(const HttpOptions& http, int port) {
  const bool v6 = http.host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", http.host, v6 ? "]" : "", port);
}

class Server {
 public:
  Server(ServePlan plan, ModelOptions model)
      : plan_(std::move(plan)),
        model_options_(std::move(model)),
        log_(plan_.log_level, plan_.log_format),
        service_(plan_.service, log_),
        http_(
            plan_.http, [this](Exchange& exchange) { return answer(exchange, service_); },
            HttpObserver{[this](int delta) { service_.metrics().connections(delta); },
                         [this](int status, const char* code) {
                           service_.metrics().http("other", status);
                           if (status == 503) service_.metrics().refused(code);
                         }}) {}

  void run();

 private:
  void load();
  LoadProgress progress_of(const std::string& stage, double share);
  std::unique_ptr<Served> serve_parts();
  void wait_for_signal();
  void on_signal(int signal);
  void look_drained();
  void finish() { control_.stop(); }
  void look_at_files();
  void announce(const RequestLimits& limits, const EngineLoop& loop);

  const ServePlan plan_;
  ModelOptions model_options_;
  Log log_;
  asio::io_context control_{1};  // of the main thread
  asio::signal_set signals_{control_, SIGTERM, SIGINT};
  asio::steady_timer timer_{control_}, files_timer_{control_};
  double load_started_ = 0;
  std::exception_ptr load_error_;
  bool draining_ = false, died_ = false;
  std::chrono::steady_clock::time_point drain_end_, give_up_;

  std::unique_ptr<TraceRecorder> recorder_;  // outlives the engine, too
  std::optional<Parts> parts_;               // outlives the engine in service_
  Service service_;
  HttpServer http_;  // its handlers use all of the above
};

void Server::run() {
  for (const std::string& warning : plan_.warnings) log_.warn(warning);
  log_.info(fmt::format("listening on {}, loading {}", url_of(plan_.http, http_.port()), escape(plan_.model, 400)));
  service_.on_death([this] {
    asio::post(control_, [this] {
      died_ = true;
      timer_.expires_after(kLastWords);
      timer_.async_wait([this](boost::system::error_code) { finish(); });
    });
  });
  service_.loading({"opening", 0, -1});
  http_.start();
  wait_for_signal();
  std::thread loader([this] { load(); });
  const auto work = asio::make_work_guard(control_);
  control_.run();
  loader.join();
  http_.stop();
  service_.stop();
  if (load_error_) std::rethrow_exception(load_error_);
  if (died_) throw Error(ErrorKind::kInternal, "the engine has stopped after an internal error");
  log_.info("stopped");
}

// On a thread of its own. Threads that the model makes inherit its priority.
void Server::load() {
  yield_to_io();
  load_started_ = now_seconds();
  try {
    const LoadObserver observer = [this](const std::string& stage, double share) {
      service_.loading(progress_of(stage, share));
    };
    parts_ = load_parts(model_options_, observer);
    service_.loading(progress_of("making the engine", 1));
    std::unique_ptr<Served> served = serve_parts();
    const EngineLoop& loop = *served->loop;
    service_.ready(std::move(served));
    announce(loop.limits(), loop);
    asio::post(control_, [this] { look_at_files(); });
  } catch (...) {
    load_error_ = std::current_exception();
    asio::post(control_, [this] { finish(); });
  }
}

LoadProgress Server::progress_of(const std::string& stage, double share) {
  const double passed = now_seconds() - load_started_;
  return {stage, share, share > 0.01 ? passed / share * (1 - share) : -1};
}

// The engine, its loop and what endpoints need, from the loaded parts.
std::unique_ptr<Served> Server::serve_parts() {
  std::vector<std::unique_ptr<Policy>> policies;
  Parts& p = *parts_;
  const auto* model = dynamic_cast<const Model*>(p.model.get());  // the canary has no layers to have tables of
  for (const std::string& spec : plan_.policies) {
    policies.push_back(model ? make_policy(spec, *model) : make_policy(spec));
  }
  for (const std::string& note : p.model->config().notes) log_.warn(note, {});
  auto served = std::make_unique<Served>(
      Served{p.model->config(), p.tokenizer, p.config, std::nullopt, p.memory_text, p.sizes, nullptr});
  if (p.config.chat_template) {
    try {
      served->chat_template = ChatTemplate::parse(*p.config.chat_template);
    } catch (const Error& e) {
      log_.warn("the model's chat template cannot be used, so there is no chat", {{"error", e.what()}});
    }
  }
  auto engine = std::make_unique<Engine>(*p.model, &p.tokenizer, std::move(policies), plan_.engine);
  recorder_ = plan_.record.recorder(TraceRecorder::Writing::kAppend, plan_.model, *p.model, plan_.policies[0]);
  engine->observe(recorder_.get());
  served->loop = std::make_unique<EngineLoop>(std::move(engine), plan_.loop);
  return served;
}

// Says once of each change that somebody has made to the files under the server. Most weights are copies of its own by
// now (model/weights.h); what is read where a file is mapped shows whatever is written there.
void Server::look_at_files() {
  const auto* model = dynamic_cast<const Model*>(parts_->model.get());
  if (!model || !model->weights().source) return;
  const FileChange change = model->weights().source->change();
  const bool written = change.kind == FileChange::Kind::kWritten;
  if (change.kind == FileChange::Kind::kNone) {
    service_.model_files({});
  } else if (service_.model_files().what != change.what) {
    service_.model_files({change.what, written});
    if (written) {
      log_.error(
          "a model file was written to: embedding rows are read from it, so answers may be wrong until a restart",
          {{"file", change.what}});
    } else {
      log_.warn("a model file was replaced: this server goes on with the old one", {{"file", change.what}});
    }
  }
  files_timer_.expires_after(kFileLook);
  files_timer_.async_wait([this](boost::system::error_code error) {
    if (!error) look_at_files();
  });
}

void Server::announce(const RequestLimits& limits, const EngineLoop& loop) {
  const LoopState state = loop.state();
  log_.info(fmt::format("ready: {} serves {}", url_of(plan_.http, http_.port()),
                        escape(plan_.service.served_model_name, 200)),
            {{"policy", state.policy},
             {"routing_scope", name(plan_.service.scope)},
             {"context_per_request", limits.context},
             {"kv_pool_tokens", limits.pool_positions},
             {"max_running_requests", plan_.engine.max_batch},
             {"max_queued_requests", plan_.loop.max_queued},
             {"keys", static_cast<int64_t>(plan_.service.keys.size())},
             {"read_gbps", parts_->sizes.read_gbps},
             {"load_s", now_seconds() - load_started_}});
}

void Server::wait_for_signal() {
  signals_.async_wait([this](boost::system::error_code error, int signal) {
    if (!error) on_signal(signal);
  });
}

void Server::on_signal(int signal) {
  if (draining_) {
    log_.warn("a second signal: ending now", {{"signal", signal}});
    return finish();
  }
  draining_ = true;
  const bool loaded = service_.served_if_loaded() != nullptr;
  if (loaded) {
    service_.drain();
    http_.stop_accepting();
  }
  // Said when it is so: who has read it is served no more.
  log_.info("draining: no new requests", {{"signal", signal}, {"drain_timeout_s", plan_.service.drain_s}});
  if (!loaded) {
    log_.info("stopped while loading");
    ::_exit(0);  // a load cannot be interrupted, and nobody has been promised anything yet
  }
  drain_end_ =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(plan_.service.drain_s * 1e3));
  give_up_ = drain_end_ + kDrainWords;  // unless the engine takes longer
  wait_for_signal();
  look_drained();
}

// Ends when every request has ended and its answer is out, or when somebody does not take his. The time for that begins
// when the engine has told the last request of its end, which may be a long step after the deadline.
void Server::look_drained() {
  const auto now = std::chrono::steady_clock::now();
  const bool drained = service_.served_if_loaded()->loop->drained();
  if (drained && http_.connections() == 0) return finish();
  if (!drained) give_up_ = std::max(now, drain_end_) + kDrainWords;
  if (now > (drained ? give_up_ : drain_end_ + kLastStep)) {
    log_.warn("clients are left without the end of their answers",
              {{"why", drained ? "they do not read it" : "the engine's step takes too long"},
               {"connections", http_.connections()}});
    return finish();
  }
  timer_.expires_after(kDrainLook);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) look_drained();
  });
}

void serve(ServeOptions options) {
  ::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more is no reason to end
  ServePlan plan = plan_serve(options);
  options.model.model = plan.model;
  Server(std::move(plan), options.model).run();
}

void add_model_and_policy(CLI::App& c, ServeOptions& o) {
  o.model.add_to(c);
  c.get_option("MODEL")->required(false);
  c.add_option("--model,--model-path", o.model_flag, "the same as MODEL, for launch scripts");
  c.add_option("--served-model-name", o.served_model_name, "what clients call the model (default: its folder or file)");
  c.add_flag("--any-model-name", o.any_model, "answer requests that name another model, too");
  o.policy.add_to(c);
  c.add_option("--allow-policy", o.allowed_policies,
               "a policy that requests may ask for with their \"routing\" field, besides topk and isolated; repeatable")
      ->allow_extra_args(false)
      ->take_all();
  c.add_option("--routing-scope", o.scope,
               "whose requests share experts: isolated = nobody's, tenant = those of one key, shared = all "
               "(default: tenant, with several keys isolated)")
      ->check(CLI::IsMember({"isolated", "tenant", "shared"}));
}

std::string words_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

void add_parsers(CLI::App& c, ServeOptions& o) {
  c.add_option("--reasoning-parser", o.reasoning_parser,
               "how reasoning is told from content: " + words_of(reasoning_parser_names()) +
                   " (auto: as the model's chat template shows)")
      ->capture_default_str();
  c.add_option("--tool-call-parser", o.tool_call_parser,
               "how the model writes calls of tools: " + words_of(tool_call_parser_names()) +
                   " (auto: as the model's chat template shows)")
      ->capture_default_str();
}

void add_network(CLI::App& c, ServeOptions& o) {
  c.add_option("--host", o.host, "address to listen at")->capture_default_str();
  c.add_option("--port", o.port, "port; 0 = any free one")->capture_default_str();
  c.add_option("--api-key", o.keys, "key that requests must bring; repeatable, one per tenant (or CARPOOL_API_KEY)")
      ->allow_extra_args(false)
      ->take_all();
  c.add_option("--api-key-file", o.key_file, "file with one key per line, not seen in the list of processes");
  c.add_option("--admin-key", o.admin_key, "key of operators, for /admin (or CARPOOL_ADMIN_KEY)");
  c.add_flag("--insecure", o.insecure, "listen at a public address without any key");
  c.add_option("--cors-origin", o.cors_origins, "pages of this origin may call; repeatable, * = all")
      ->allow_extra_args(false)
      ->take_all();
  c.add_option("--allowed-host", o.allowed_hosts, "a name that requests may use for this server; repeatable")
      ->allow_extra_args(false)
      ->take_all();
  c.add_option("--max-body-bytes", o.max_body_bytes, "largest request")->capture_default_str();
  c.add_option("--max-connections", o.max_connections, "open connections")->capture_default_str();
  c.add_option("--http-threads", o.http_threads, "threads that serve connections")->capture_default_str();
  c.add_option("--ping-interval", o.ping_interval, "seconds of silence in a stream after which a comment is sent")
      ->capture_default_str();
  c.add_option("--drain-timeout", o.drain_timeout, "seconds that open requests have after SIGTERM")
      ->capture_default_str();
  c.add_option("--log-format", o.log_format, "text or json")->check(CLI::IsMember({"text", "json"}));
  c.add_option("--log-level", o.log_level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "warning", "error"}));
}

void add_engine(CLI::App& c, ServeOptions& o) {
  c.add_option("--max-running-requests,--max-batch", o.max_batch, "requests decoded at once")->capture_default_str();
  c.add_option("--max-queued-requests", o.max_queued, "requests that may wait; further ones get 503")
      ->capture_default_str();
  c.add_option("--chunked-prefill-size,--chunk", o.chunk, "most prompt tokens per step, beside the decode rows")
      ->capture_default_str();
  c.add_option("--kv-tokens,--max-total-tokens", o.kv_tokens,
               "positions in the key-value pool; 0 = all that the running requests can need, at most 65536")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str();
  c.add_option("--step-target-ms", o.step_target_ms,
               "prompts are cut so that a step with decode rows stays below this; 0 = only by --chunk")
      ->capture_default_str();
  o.record.add_to(c);
  c.add_flag("--disable-radix-cache", o.no_prefix_cache, "do not keep computed prompts for later requests");
}

// Options of SGLang's launch scripts that have nothing to act on here. Given, they are named in one warning.
void add_without_effect(CLI::App& c, ServeOptions& o) {
  for (const char* names : {"--tp-size,--tp,--tensor-parallel-size",
                            "--dp-size,--dp,--data-parallel-size",
                            "--ep-size,--ep,--expert-parallel-size",
                            "--attention-backend",
                            "--sampling-backend",
                            "--moe-runner-backend",
                            "--moe-a2a-backend",
                            "--fp8-gemm-backend",
                            "--nsa-decode-backend",
                            "--nsa-prefill-backend",
                            "--num-continuous-decode-steps",
                            "--mem-fraction-static",
                            "--quantization",
                            "--cuda-graph-max-bs",
                            "--max-prefill-tokens",
                            "--schedule-policy",
                            "--schedule-conservativeness",
                            "--page-size",
                            "--stream-interval",
                            "--watchdog-timeout",
                            "--device"}) {
    const std::string shown = std::string(names).substr(0, std::string(names).find(','));
    c.add_option_function<std::string>(
         names, [&o, shown](const std::string&) { o.without_effect.push_back(shown); }, "no effect here")
        ->group("Accepted for launch scripts");
  }
  for (const char* names :
       {"--disable-cuda-graph", "--trust-remote-code", "--disable-overlap-schedule", "--enable-mixed-chunk",
        "--enable-metrics", "--enable-cache-report", "--disable-custom-all-reduce", "--skip-server-warmup"}) {
    c.add_flag_callback(
         names, [&o, names] { o.without_effect.emplace_back(names); }, "no effect here")
        ->group("Accepted for launch scripts");
  }
}

}  // namespace

void add_serve(CLI::App& app, const Invocation&) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App& c = *app.add_subcommand("serve", "serve a model over HTTP, as OpenAI's API and others have it");
  c.footer("Example: carpool serve models/books-qwen3 --policy oea:k0=5");
  add_model_and_policy(c, *options);
  add_parsers(c, *options);
  add_network(c, *options);
  add_engine(c, *options);
  add_without_effect(c, *options);
  c.callback([options] { serve(*options); });
}

}  // namespace carpool
