// Everything a handler may use: the model's names and tokenizer, the engine loop, metrics, log, options.
//
// Owns Service and its life: loading (the port already answers /health with percent and 503), ready, draining, dead.
// Handlers get it by reference; all members are safe to use from I/O threads. Read next: router.h, engine_loop.h.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/engine_loop.h"
#include "server/fair_workers.h"
#include "server/http.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/parameters.h"
#include "text/chat_template.h"
#include "text/parsers/output.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace carpool {

enum class RoutingScope { kIsolated, kTenant, kShared };
const char* name(RoutingScope scope);

struct ServiceOptions {
  std::string served_model_name;  // what /v1/models says and requests name
  std::string model_path;         // as typed; shown by /model_info to holders of a key
  std::vector<std::string> keys;  // tenant i is the holder of key i; empty = one tenant, no key needed
  std::string admin_key;          // "" = the admin routes are closed
  RoutingScope scope = RoutingScope::kTenant;
  std::vector<std::string> allowed_policies;  // besides the default, topk and isolated; engine policy 1 + i
  bool allow_any_model = false;               // answer requests that name another model
  double ping_s = 15;                         // of silence in a stream
  double drain_s = 30;
  int max_waiting_work = 4096;            // requests that may wait for a worker thread; see Service::offload
  json::object server_args;               // the options that apply, for /server_info
  std::string version;                    // "0.1.0 (commit)"
  double stall_s = 60;                    // without a step or an idle look the engine counts as stuck: /health says 503
  std::vector<std::string> cors_origins;  // "https://host[:port]" pages that may call, or "*"; others get 403
  std::string reasoning_parser = "auto", tool_call_parser = "auto";  // text/parsers/output.h
  std::vector<std::string> hosts;  // what the Host header may name; empty = anything (not bound to loopback)
};

// The model's side, complete once the state is kReady.
struct Served {
  ModelConfig config;
  Tokenizer tokenizer;
  TokenizerConfig tokenizer_config;
  std::optional<ChatTemplate> chat_template;
  std::string memory_text;
  MemorySizes sizes;
  std::unique_ptr<EngineLoop> loop;  // not yet started
  // Chosen by ready() from the options and the chat template.
  OutputFormat format = {};
  // Special tokens that are tags of the format, ascending: of reasoning alone, and of reasoning and calls.
  std::vector<int> reasoning_tokens = {}, format_tokens = {};
};

enum class ServiceState { kLoading, kReady, kDraining, kDead };

struct LoadProgress {
  std::string stage;  // "reading tensors"
  double share = 0;   // 0..1
  double eta_s = -1;  // -1 = unknown
};

// Who asks, after the key was checked.
struct Caller {
  int tenant = 0;
  bool admin = false;
};

class ConstraintCache;

class Service {
 public:
  Service(ServiceOptions options, Log& log);
  ~Service();

  const ServiceOptions& options() const { return options_; }
  Log& log() { return log_; }
  Metrics& metrics() { return metrics_; }

  ServiceState state() const { return state_.load(); }
  void loading(const LoadProgress& progress);  // from the loading thread
  LoadProgress load_progress() const;
  void ready(std::unique_ptr<Served> served);  // connects metrics and log with the loop and starts it
  void drain();                                // SIGTERM: refuse new work, let open streams end until the deadline
  // Ends the engine and the worker threads; every open request is told. Between HttpServer::stop(), after which no
  // handler asks for more, and the end of the HttpServer, whose executors the workers come back to.
  void stop();
  void died(const std::string& why);
  void on_death(std::function<void()> callback);  // after died(), on the engine thread; before ready()

  // What has become of the model's files: "unchanged", or a sentence; `written` when a mapped one has other bytes now.
  struct ModelFiles {
    std::string what = "unchanged";
    bool written = false;
  };
  void model_files(ModelFiles files);
  ModelFiles model_files() const;

  // The model's side. Throws ApiError 503 loading / draining / engine_dead unless the state is kReady.
  Served& served();
  // The same while draining, for work that is under way. Null while loading.
  Served* served_if_loaded();

  // Checks the key in constant time over all keys. Throws ApiError 401. `admin` routes need the admin key.
  Caller authenticate(const HttpRequest& request, bool admin) const;

  // Fills tenant, group, isolated and policy of `request` from the caller and the wish; returns what applies, as the
  // x-carpool-routing header says it: "oea:k0=5; scope=tenant", "topk", "isolated". Throws ApiError 400.
  std::string route(const Caller& caller, const RoutingWish& wish, Request& request);
  // The `carpool` object of a response.
  json::object routing_report(const std::string& routing, const RequestStats& stats) const;

  // 404 model_not_found unless `model` is absent, empty, or served.
  void check_model(const std::optional<std::string>& model) const;
  [[noreturn]] void refuse_model(const std::string& model) const;
  int64_t started() const { return started_; }  // seconds since 1970

  // What requests that want this structure share. For worker threads. Throws ApiError 400 with the path of what is
  // wrong, and as served() does.
  std::shared_ptr<Constraint> constraint(const StructureSpec& spec);

  // While the returned guard lives, POST /abort_request of the same tenant that names `rid` (what the client called its
  // request, or the id that we answered with) cancels `id`. Every generating endpoint takes one per engine request.
  [[nodiscard]] std::shared_ptr<void> abortable(const Caller& caller, const std::string& rid, RequestId id);
  // The same for a request that the engine does not know yet: an abort sets `aborted`.
  [[nodiscard]] std::shared_ptr<void> abortable(const Caller& caller, const std::string& rid,
                                                std::shared_ptr<std::atomic<bool>> aborted);
  // Cancels what is named so; how many that were. Empty `rid`: all of the tenant, or everybody's for the admin.
  int abort(const Caller& caller, const std::string& rid);

  // Slots of each expert that rows used since POST /start_expert_distribution_record, [MoE layers, E]. Only for the
  // engine thread (EngineLoop::between_steps).
  std::vector<std::vector<int64_t>>& expert_counts();

  // Runs `work` on the worker threads (tokenising, templates: nothing slow on an I/O thread) when it is the caller's
  // turn (fair_workers.h) and comes back to the coroutine's executor. Exceptions come through; and those of
  // FairWorkers::post, 429 and 503, when too much waits already.
  template <class F>
  boost::asio::awaitable<std::invoke_result_t<F>> offload(Caller caller, F work,
                                                          FairWorkers::Entry entry = FairWorkers::Entry::kRefusable);

  int waiting_work() const { return workers_.waiting(); }  // that offload() has taken and no thread has begun

 private:
  const ServiceOptions options_;
  const int64_t started_;
  Log& log_;
  Metrics metrics_;
  std::atomic<ServiceState> state_{ServiceState::kLoading};
  struct Impl;
  std::unique_ptr<Impl> impl_;
  FairWorkers workers_;
};

// Without a cancellation slot: when a server ends, Asio's way of cancelling work on another executor would touch what
// the work has freed by ending meanwhile. The coroutine, and with it `result`, stays until its handler is called.
template <class F>
boost::asio::awaitable<std::invoke_result_t<F>> Service::offload(Caller caller, F work, FairWorkers::Entry entry) {
  namespace asio = boost::asio;
  std::optional<std::invoke_result_t<F>> result;
  std::exception_ptr error;
  const auto start = [this, &caller, &work, entry, &result, &error](auto handler) {
    struct Back {  // shared, because a handler may only be moved and a std::function is copied
      decltype(handler) resume;
      asio::executor_work_guard<asio::any_io_executor> executor;
    };
    const asio::any_io_executor executor = asio::get_associated_executor(handler);
    auto back = std::make_shared<Back>(Back{std::move(handler), asio::make_work_guard(executor)});
    const auto come_back = [](std::shared_ptr<Back> to) {
      const asio::any_io_executor at = to->executor.get_executor();
      asio::post(at, [to = std::move(to)] { std::move(to->resume)(); });
    };
    try {
      workers_.post(caller.tenant, entry, [&work, &result, &error, back, come_back](bool go) mutable {
        try {
          if (!go) throw unavailable("draining", "the server is shutting down", 1);
          result = work();
        } catch (...) {
          error = std::current_exception();
        }
        come_back(std::move(back));  // from here on none of this may be touched
      });
    } catch (...) {
      error = std::current_exception();
      come_back(std::move(back));
    }
  };
  // A variable, because GCC 12 destroys temporaries of an expression with co_await twice.
  auto token = asio::bind_cancellation_slot(asio::cancellation_slot(), asio::use_awaitable);
  co_await asio::async_initiate<decltype(token), void()>(start, token);
  if (error) std::rethrow_exception(error);
  co_return std::move(*result);
}

}  // namespace carpool
