// Promise 3 through the whole server: an isolated request's text is the same bytes whatever else runs. The same request
// without `isolated` shows that the neighbours would have changed it.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "end_to_end_util.h"
#include "serve_canary_util.h"

namespace carpool::end_to_end {
namespace {

constexpr int kNeighbours = 10, kRounds = 4, kAtOnce = 5;

// Keeps generating other texts, never the same one, until it is destroyed.
class Neighbours {
 public:
  Neighbours(int port, uint64_t seed) {
    for (int i = 0; i < kNeighbours; ++i) {
      threads_.emplace_back([this, port, seed, i] {
        try {
          run(port, seed + static_cast<uint64_t>(i) * 1000);
        } catch (const std::runtime_error& e) {
          ADD_FAILURE() << e.what();
        }
      });
    }
  }
  ~Neighbours() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t tokens() const { return tokens_; }

 private:
  void run(int port, uint64_t seed) {
    while (!stop_) {
      json::array ids;
      for (uint64_t k = 0; k < 24; ++k) ids.push_back((seed * 7919 + k * k * 31 + k * 577) % 4000 + 16);
      const json::object body{{"prompt", ids}, {"max_tokens", 160},  {"temperature", 1},
                              {"seed", seed},  {"ignore_eos", true}, {"stream", true}};
      RawClient client(port, 300);
      client.send(request_text("POST", "/v1/completions", json::serialize(body)));
      if (client.read_head().status != 200) break;
      while (!stop_ && client.read_event()) ++tokens_;
      ++seed;
    }
  }
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> tokens_{0};
  std::vector<std::thread> threads_;
};

std::string ask(bool isolated) {
  json::object body{{"prompt", "When the train stopped at the little station, nobody got out, and"},
                    {"max_tokens", 64},
                    {"temperature", 0},
                    {"ignore_eos", true}};
  if (isolated) body["routing"] = "isolated";
  return request_text("POST", "/v1/completions", json::serialize(body));
}

// kRounds times kAtOnce texts.
std::vector<std::string> texts_under_load(ServeProcess& server, bool isolated) {
  std::vector<std::string> texts;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < kAtOnce; ++i) {
      clients.push_back(std::make_unique<RawClient>(server.port(), 300));
      clients.back()->send(ask(isolated));
    }
    for (auto& client : clients) {
      const RawResponse response = client->read_response();
      EXPECT_EQ(response.status, 200) << response.body;
      const json::object answer = json_of(response);
      texts.emplace_back(answer.at("choices").at(0).at("text").as_string());
      EXPECT_EQ(answer.at("usage").at("completion_tokens"), 64);
    }
  }
  return texts;
}

TEST(ServeIsolated, TheSameRequestGivesTheSameBytesUnderLoadAndWouldNotIfItShared) {
  ServeProcess server({kBooks, "--policy", "oea:k0=3", "--routing-scope", "shared", "--max-running-requests", "16"});
  const RawResponse alone = RawClient(server.port(), 300).ask(ask(true));
  ASSERT_EQ(alone.status, 200) << alone.body;
  EXPECT_EQ(alone.header("x-carpool-routing"), "isolated");
  const std::string text(json_of(alone).at("choices").at(0).at("text").as_string());
  {
    const Neighbours neighbours(server.port(), 1);
    wait_for(server, "under load", [](const EngineState& s) { return s.running >= kNeighbours; });
    const std::vector<std::string> isolated = texts_under_load(server, true);
    ASSERT_EQ(isolated.size(), 20u);
    for (const std::string& other : isolated) EXPECT_EQ(other, text);
    EXPECT_GT(neighbours.tokens(), 0);
    const std::vector<std::string> shared = texts_under_load(server, false);
    EXPECT_GT(std::set<std::string>(shared.begin(), shared.end()).size(), 1u)
        << "the control: neighbours change what is not isolated";
  }
  expect_nothing_left(server);
}

}  // namespace
}  // namespace carpool::end_to_end
