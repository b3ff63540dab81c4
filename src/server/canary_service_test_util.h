// A whole service around the canary model, without sockets: what tests of the loop, the router and endpoints share.
//
// Owns GatedModel (a canary whose steps a test can hold and break), CollectSink, CanaryService and FakeExchange.
// Waiting ends at a deadline with a failed expectation, so that a test never hangs.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/canary.h"
#include "server/engine_loop.h"
#include "server/router.h"
#include "server/service.h"
#include "text/dummy_tokenizer.h"

namespace carpool {

inline constexpr std::chrono::seconds kTestPatience{60};

// A canary that sings when it is let.
class GatedModel final : public LanguageModel {
 public:
  explicit GatedModel(const CanaryOptions& options = {}) : inner_(options) {}

  // Steps begin but do not end until open().
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    held_ = pass_ = false;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }
  // After close(): waits until the engine is held within a step.
  void wait_held() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kTestPatience, [this] { return held_; })) << "no step began";
  }
  // Lets the step that is held end; the next is held again.
  void pass() {
    const std::lock_guard lock(mutex_);
    pass_ = true;
    held_ = false;
    changed_.notify_all();
  }
  // The next step throws.
  void break_down() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
  }

  const ModelConfig& config() const override { return inner_.config(); }
  KvFormat kv_format() const override { return inner_.kv_format(); }
  uint64_t step_bytes(int rows, int logit_rows) const override { return inner_.step_bytes(rows, logit_rows); }
  void reserve(int rows, int logit_rows) override { inner_.reserve(rows, logit_rows); }
  Matrix forward(const Rows& rows, KvCache& kv, const Policy& policy, const StepRecord& record) override {
    {
      std::unique_lock lock(mutex_);
      held_ = true;
      changed_.notify_all();
      changed_.wait_for(lock, kTestPatience, [this] { return !closed_ || pass_; });
      pass_ = false;
      if (broken_) throw std::runtime_error("the canary fell off its perch");
    }
    return inner_.forward(rows, kv, policy, record);
  }

 private:
  CanaryModel inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false, held_ = false, pass_ = false, broken_ = false;
};

// Keeps what one request was told.
class CollectSink final : public EventSink {
 public:
  void on_event(const Event& event) override {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    changed_.notify_all();
  }
  void on_lost(const char* code) override {
    const std::lock_guard lock(mutex_);
    lost_ = code;
    changed_.notify_all();
  }

  // Waits for the end and returns how it came: a finish reason's name, or the code of a loss.
  std::string end() {
    std::unique_lock lock(mutex_);
    const bool ended = changed_.wait_for(lock, kTestPatience, [this] { return !lost_.empty() || finished(); });
    if (!ended) return "never";
    return lost_.empty() ? name(events_.back().finish) : lost_;
  }
  void wait_for_tokens(size_t n) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kTestPatience, [&] { return tokens_locked().size() >= n; }));
  }
  std::vector<int> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_locked();
  }
  std::vector<Event> events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }

 private:
  bool finished() const { return !events_.empty() && events_.back().finish != FinishReason::kNone; }
  std::vector<int> tokens_locked() const {
    std::vector<int> tokens;
    for (const Event& e : events_)
      if (e.token >= 0) tokens.push_back(e.token);
    return tokens;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> events_;
  std::string lost_;
};

inline Request canary_request(const std::string& prompt, int max_tokens, int tenant = 0) {
  Request request;
  request.prompt.assign(prompt.begin(), prompt.end());
  request.max_tokens = max_tokens;
  request.tenant = tenant;
  return request;
}

inline std::unique_ptr<Engine> canary_engine(LanguageModel& model, const Tokenizer* tokenizer,
                                             const EngineOptions& options,
                                             const std::vector<std::string>& policies = {"topk"}) {
  std::vector<std::unique_ptr<Policy>> made;
  for (const std::string& spec : policies) made.push_back(make_policy(spec));
  return std::make_unique<Engine>(model, tokenizer, std::move(made), options);
}

// What the handler of one request did.
struct FakeReply {
  int status = 0;
  std::string body, content_type;
  Headers headers;
  std::vector<std::pair<std::string, std::string>> events;  // name, data
  bool streamed = false, ended = false;

  json::object json() const { return parse_json(body, "the body").as_object(); }
  std::string header(std::string_view wanted) const {
    for (const auto& [key, value] : headers)
      if (key == wanted) return value;
    return "";
  }
  std::string code() const { return std::string(json().at("error").at("code").as_string()); }
};

class FakeExchange final : public Exchange {
 public:
  FakeExchange(HttpRequest request, asio::any_io_executor executor)
      : request_(std::move(request)), executor_(std::move(executor)) {}
  FakeReply reply;
  std::function<void()> on_event;  // for the test, after every event

  const HttpRequest& request() const override { return request_; }
  asio::any_io_executor executor() const override { return executor_; }
  asio::awaitable<void> respond(Response response) override {
    EXPECT_FALSE(begun()) << "answered twice";
    reply.status = response.status;
    reply.body = std::move(response.body);
    reply.content_type = std::move(response.content_type);
    reply.headers = std::move(response.headers);
    co_return;
  }
  asio::awaitable<void> begin_events(Headers headers) override {
    EXPECT_FALSE(begun()) << "answered twice";
    reply.status = 200;
    reply.streamed = true;
    reply.headers = std::move(headers);
    co_return;
  }
  asio::awaitable<void> event(std::string_view data, std::string_view event_name) override {
    EXPECT_TRUE(reply.streamed && !reply.ended);
    reply.events.emplace_back(event_name, data);
    if (on_event) on_event();
    co_return;
  }
  asio::awaitable<void> ping() override { co_return; }
  asio::awaitable<void> end_events() override {
    reply.ended = true;
    co_return;
  }
  bool begun() const override { return reply.status != 0; }
  void on_gone(std::function<void()>) override {}

 private:
  HttpRequest request_;
  asio::any_io_executor executor_;
};

// A ready service of the canary, and the log that it wrote.
class CanaryService {
 public:
  explicit CanaryService(ServiceOptions options = {}, const EngineOptions& engine = {}, bool load = true)
      : log_(LogLevel::kDebug, LogFormat::kText, [this](std::string_view line) { lines_ += line; }),
        tokenizer_(make_dummy_tokenizer(kDummyEndToken + 1)) {
    if (options.served_model_name.empty()) options.served_model_name = "canary";
    policies_ = {"topk"};
    for (const std::string& spec : options.allowed_policies) policies_.push_back(spec);
    service_ = std::make_unique<Service>(std::move(options), log_);
    if (load) this->load(engine);
  }
  ~CanaryService() { model_.open(); }

  void load(const EngineOptions& engine = {}) {
    auto served = std::make_unique<Served>(
        Served{model_.config(), tokenizer_, {}, std::nullopt, "none", MemorySizes{1000, 500, 10}, nullptr});
    LoopLimits limits;
    limits.tenants = static_cast<int>(service_->options().keys.size());
    served->loop = std::make_unique<EngineLoop>(canary_engine(model_, &tokenizer_, engine, policies_), limits);
    service_->ready(std::move(served));
  }

  // The answer to one request, through the router.
  FakeReply call(const std::string& method, const std::string& path, const std::string& body = "",
                 const Headers& headers = {}, const std::function<void(FakeExchange&)>& prepare = {}) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = body;
    request.headers = headers;
    request.request_id = "req-1";
    asio::io_context io(1);
    FakeExchange exchange(std::move(request), io.get_executor());
    if (prepare) prepare(exchange);
    asio::co_spawn(io, answer(exchange, *service_), asio::detached);
    io.run_for(kTestPatience);
    EXPECT_TRUE(exchange.begun()) << "no answer";
    return std::move(exchange.reply);
  }

  Service& operator*() { return *service_; }
  Service* operator->() { return service_.get(); }
  GatedModel& model() { return model_; }
  const std::string& log_text() const { return lines_; }

 private:
  std::string lines_;
  Log log_;
  GatedModel model_;
  Tokenizer tokenizer_;
  std::vector<std::string> policies_;
  std::unique_ptr<Service> service_;
};

}  // namespace carpool
