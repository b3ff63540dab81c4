// A whole server on a real socket, around the embedded model or the canary: what tests of endpoints share.
//
// Owns LiveServer. It listens on 127.0.0.1 at a free port and ends with its scope; clients are RawClient.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/source_dir_test_util.h"
#include "model/model.h"
#include "server/canary_service_test_util.h"
#include "server/http_client_test_util.h"
#include "server/http_server.h"

namespace carpool {

class LiveServer {
 public:
  struct Parts {
    std::unique_ptr<LanguageModel> model;
    Tokenizer tokenizer;
    TokenizerConfig tokens;
  };
  static Parts books() {
    const std::string dir = source_dir() + "/models/books-qwen3";
    LoadOptions load;
    load.threads = 1;
    return {std::make_unique<Model>(Model::load(dir, load)), Tokenizer::load(dir + "/tokenizer.json"),
            TokenizerConfig::load(dir + "/tokenizer_config.json")};
  }
  static Parts canary(std::unique_ptr<LanguageModel> model = std::make_unique<CanaryModel>()) {
    TokenizerConfig tokens;
    tokens.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    Tokenizer tokenizer = make_dummy_tokenizer(model->config().vocab);
    return {std::move(model), std::move(tokenizer), std::move(tokens)};
  }

  explicit LiveServer(Parts parts, ServiceOptions options = {}, const EngineOptions& engine = {})
      : log_(LogLevel::kError, LogFormat::kText, [](std::string_view) {}),
        parts_(std::move(parts)),
        service_(named(std::move(options)), log_),
        http_(http_options(), [this](Exchange& exchange) { return answer(exchange, service_); }) {
    auto served = std::make_unique<Served>(Served{parts_.model->config(), parts_.tokenizer, parts_.tokens,
                                                  ChatTemplate::parse(*parts_.tokens.chat_template), "none",
                                                  MemorySizes{}, nullptr});
    std::vector<std::string> policies = {"oea:k0=2"};
    for (const std::string& spec : service_.options().allowed_policies) policies.push_back(spec);
    served->loop =
        std::make_unique<EngineLoop>(canary_engine(*parts_.model, &parts_.tokenizer, engine, policies), LoopLimits{});
    service_.ready(std::move(served));
    http_.start();
  }
  ~LiveServer() {
    http_.stop();
    service_.stop();
  }

  int port() const { return http_.port(); }
  int connections() const { return http_.connections(); }
  Service& service() { return service_; }
  const Tokenizer& tokenizer() const { return parts_.tokenizer; }

  RawResponse post(const std::string& path, const std::string& body) const {
    return RawClient(port(), kPatience).ask(request_text("POST", path, body));
  }
  // The JSON of an answer that must be 200.
  json::value ask(const std::string& path, const json::value& body) const {
    const RawResponse response = post(path, json::serialize(body));
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }
  json::value get(const std::string& path) const {
    return json::parse(RawClient(port(), kPatience).ask(request_text("GET", path)).body);
  }
  // All events of a stream.
  std::vector<RawEvent> stream(const std::string& path, const json::value& body) const {
    RawClient client(port(), kPatience);
    client.send(request_text("POST", path, json::serialize(body)));
    const RawResponse head = client.read_head();
    EXPECT_EQ(head.status, 200);
    EXPECT_TRUE(head.has("x-carpool-routing"));
    std::vector<RawEvent> events;
    while (std::optional<RawEvent> event = client.read_event()) events.push_back(std::move(*event));
    return events;
  }
  // Waits until nothing runs or waits.
  void wait_idle() {
    const auto deadline = std::chrono::steady_clock::now() + kTestPatience;
    for (;;) {
      const LoopState state = service_.served().loop->state();
      if (state.running + state.waiting == 0) return;
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "requests of clients that left still run";
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  static constexpr double kPatience = 60;  // seconds

 private:
  static ServiceOptions named(ServiceOptions options) {
    options.served_model_name = "m";
    return options;
  }
  static HttpOptions http_options() {
    HttpOptions options;
    options.port = 0;
    return options;
  }

  Log log_;
  Parts parts_;
  Service service_;
  HttpServer http_;
};

}  // namespace carpool
