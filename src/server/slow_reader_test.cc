// Clients that take their time: what waits for them is bounded, and they miss nothing.
#include <gtest/gtest.h>

#include <string>

#include "server/live_server_test_util.h"

namespace carpool {
namespace {

constexpr int kTokens = 4000, kSmallBuffer = 16 << 10;

// The text of the canary that follows "x".
std::string song() {
  const std::vector<int> prompt{'x'};
  const std::vector<int> tokens = CanaryModel::expected(prompt, kTokens);
  return {tokens.begin(), tokens.end()};
}

// Every chunk of this stream repeats all before it: one for each of 4000 tokens would be 40 MB.
TEST(SlowReader, OfACumulativeStreamGetsOneChunkForManyTokensAndTheWholeText) {
  LiveServer server(LiveServer::canary());
  RawClient client(server.port(), 60, kSmallBuffer);
  client.send(request_text(
      "POST", "/generate",
      R"({"text":"x","stream":true,"sampling_params":{"temperature":0,"max_new_tokens":4000,"ignore_eos":true}})"));
  EXPECT_EQ(client.read_head().status, 200);
  server.wait_idle();  // all is generated, and little of it taken
  std::string last;
  int chunks = 0;
  bool done = false;
  while (const auto event = client.read_event()) {
    done = event->data == "[DONE]";
    if (done || event->data.empty()) continue;
    ++chunks;
    last = event->data;
  }
  EXPECT_TRUE(done);
  EXPECT_LT(chunks, kTokens);
  const json::object answer = parse_json(last, "the last chunk").as_object();
  EXPECT_EQ(answer.at("text"), json::value(song()));
  EXPECT_EQ(answer.at("meta_info").at("completion_tokens"), kTokens);
}

TEST(SlowReader, OfOpenAisStreamGetsAChunkForEachToken) {
  LiveServer server(LiveServer::canary());
  RawClient client(server.port(), 60, kSmallBuffer);
  client.send(request_text("POST", "/v1/completions",
                           R"({"prompt":"x","stream":true,"temperature":0,"max_tokens":4000,"ignore_eos":true})"));
  EXPECT_EQ(client.read_head().status, 200);
  server.wait_idle();
  std::string text;
  int chunks = 0;
  while (const auto event = client.read_event()) {
    if (event->data == "[DONE]" || event->data.empty()) continue;
    ++chunks;
    text += std::string(parse_json(event->data, "a chunk").at("choices").at(0).at("text").as_string());
  }
  EXPECT_EQ(chunks, kTokens);
  EXPECT_EQ(text, song());
}

}  // namespace
}  // namespace carpool
