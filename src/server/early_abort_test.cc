// Requests that end before the engine knows them: while they wait to be read, and while their grammar waits to be made.
// Known problem T30.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "server/live_server_test_util.h"
#include "server/slow_work_test_util.h"

namespace carpool {
namespace {

constexpr int kTokens = 2000;  // that the request would have, were it not ended

// Steps take a millisecond: a request that goes on does so for seconds.
LiveServer::Parts slow_canary() { return LiveServer::canary(std::make_unique<CanaryModel>(CanaryOptions{4096, 1000})); }

std::string request_of(bool stream) {
  const json::object body{{"text", "The old lighthouse keeper"},
                          {"rid", "inner"},
                          {"stream", stream},
                          {"sampling_params", json::object{{"regex", "[a-z]{2000}"}, {"max_new_tokens", kTokens}}}};
  return request_text("POST", "/generate", json::serialize(body), "X-Request-Id: outer\r\n");
}

int64_t abort_request(const LiveServer& server, const json::object& whom) {
  return server.ask("/abort_request", whom).at("aborted").as_int64();
}

void wait_for(const std::function<bool()>& condition, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + kTestPatience;
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << what;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int64_t generated(const LiveServer& server) {
  const std::string text = RawClient(server.port()).ask(request_text("GET", "/metrics")).body;
  const size_t at = text.find("\ncarpool:generation_tokens_total{");
  EXPECT_NE(at, std::string::npos);
  return at == std::string::npos ? -1 : std::atoll(text.c_str() + text.find("} ", at) + 2);
}

// A request that stands still before the engine knows it.
class EarlyRequest {
 public:
  EarlyRequest(LiveServer& server, bool stream) : service_(server.service()), stream_(stream) {
    threads_.emplace(service_, 0, 2);
    threads_->wait_begun(2);
    client_ = std::make_unique<RawClient>(server.port(), 60);
    client_->send(request_of(stream));
    wait_for([&] { return service_.waiting_work() == 1; }, "it waits to be read");
  }
  // Lets it be read; its grammar then waits for its turn.
  void to_its_grammar() {
    before_grammar_.emplace(service_, 0, 1);
    threads_->let(1);
    before_grammar_->wait_begun(1);
    wait_for([&] { return service_.waiting_work() == 1; }, "its grammar waits to be made");
    EXPECT_EQ(service_.served().loop->state().running + service_.served().loop->state().waiting, 0);
  }
  void go_on() {
    before_grammar_.reset();
    threads_.reset();
  }
  RawClient& client() { return *client_; }

  // How it ended; it must not have come far.
  std::string end() {
    json::value last;
    if (stream_) {
      EXPECT_EQ(client_->read_head().status, 200);
      while (const auto event = client_->read_event()) {
        if (event->data.starts_with('{')) last = json::parse(event->data);
      }
    } else {
      const RawResponse response = client_->read_response();
      EXPECT_EQ(response.status, 200) << response.body;
      last = json::parse(response.body);
    }
    const json::value& meta = last.at("meta_info");
    EXPECT_LT(meta.at("completion_tokens").as_int64(), kTokens / 2);
    return std::string(meta.at("finish_reason").at("type").as_string());
  }

 private:
  Service& service_;
  const bool stream_;
  std::optional<SlowWork> threads_, before_grammar_;
  std::unique_ptr<RawClient> client_;
};

TEST(KnownProblemT30, AnAbortEndsARequestWhoseGrammarIsNotYetMade) {
  LiveServer server(slow_canary());
  for (const bool stream : {true, false}) {
    for (const json::object& whom :
         {json::object{{"rid", "inner"}}, json::object{{"rid", "outer"}}, json::object{{"abort_all", true}}}) {
      SCOPED_TRACE(json::serialize(whom));
      EarlyRequest request(server, stream);
      request.to_its_grammar();
      EXPECT_EQ(abort_request(server, {{"rid", "inn"}}), 0);
      EXPECT_EQ(abort_request(server, whom), 1) << "one request, whatever names it has";
      EXPECT_EQ(abort_request(server, whom), 0) << "that was it";
      request.go_on();
      EXPECT_EQ(request.end(), "abort");
      server.wait_idle();
      EXPECT_EQ(abort_request(server, {{"abort_all", true}}), 0) << "its names are free again";
    }
  }
}

TEST(KnownProblemT30, AnAbortEndsARequestThatIsNotYetRead) {
  LiveServer server(slow_canary());
  for (const bool stream : {true, false}) {
    EarlyRequest request(server, stream);
    EXPECT_EQ(abort_request(server, {{"rid", "outer"}}), 1);
    request.go_on();
    EXPECT_EQ(request.end(), "abort");
    server.wait_idle();
  }
}

TEST(KnownProblemT30, AClientThatLeavesWhileItsGrammarIsMadeIsNotServed) {
  LiveServer server(slow_canary());
  for (const bool stream : {true, false}) {
    const int64_t before = generated(server);
    EarlyRequest request(server, stream);
    request.to_its_grammar();
    request.client().close_abruptly();
    request.go_on();
    wait_for([&] { return server.connections() == 0; }, "the grammar is made, and who wanted it has gone");
    EXPECT_EQ(server.post("/v1/completions", R"({"prompt":"a","max_tokens":4,"ignore_eos":true})").status, 200);
    server.wait_idle();
    EXPECT_LT(generated(server) - before, kTokens / 2);
    EXPECT_EQ(abort_request(server, {{"abort_all", true}}), 0) << "its names are free again";
  }
}

// The request that is made while the server ends is told so, and nobody waits for it.
TEST(KnownProblemT30, AServerEndsWhileAGrammarWaits) {
  auto server = std::make_unique<LiveServer>(slow_canary());
  EarlyRequest request(*server, true);
  request.to_its_grammar();
  std::thread later([&] {
    EXPECT_TRUE(request.client().readable_within(60000)) << "a server that ends closes its connections";
    request.go_on();
  });
  server.reset();
  later.join();
  EXPECT_TRUE(request.client().read_to_end().find("200 OK") == std::string::npos);
}

}  // namespace
}  // namespace carpool
