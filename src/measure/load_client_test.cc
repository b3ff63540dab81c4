// The load client against a server of this process: whole loads, and everything that can go wrong with a reply.
#include "measure/load_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "base/error.h"
#include "measure/load_fake_server_test_util.h"

namespace carpool {
namespace {

namespace asio = boost::asio;
using fake::FakeServer;
using fake::Got;
using fake::Reply;

LoadPlan plan_of(int count, int tokens = 4, LoadBackend backend = LoadBackend::kNative) {
  LoadPlan plan;
  plan.backend = backend;
  LoadSettings settings;
  settings.backend = backend;
  settings.model = "m";
  for (int i = 0; i < count; ++i) {
    LoadPrompt prompt;
    prompt.text = "prompt " + std::to_string(i);
    prompt.input_tokens = 2;
    prompt.output_tokens = tokens;
    plan.requests.push_back(make_request(settings, prompt, i));
  }
  return plan;
}

LoadClient client_of(const FakeServer& server, double timeout_s = 60, LoadHeaders headers = {}) {
  return LoadClient(parse_url(server.url()), std::move(headers), timeout_s);
}

LoadOutcome one(const Reply& reply, double timeout_s = 60, LoadBackend backend = LoadBackend::kNative) {
  FakeServer server([&](const Got&) { return reply; });
  LoadClient client = client_of(server, timeout_s);
  return client.run(plan_of(1, 4, backend)).outcomes.at(0);
}

TEST(LoadClient, FollowsManyStreamsAtOnceAndKeepsTheirOrder) {
  FakeServer server([](const Got& got) {
    Reply reply = fake::native_stream(5);
    reply.pause_ms = 2;
    reply.headers = {{"x-carpool-routing", "oea:k0=5; scope=tenant"}};
    const std::string text(got.json().at("text").as_string());
    reply.pieces.insert(reply.pieces.end() - 1, "data: {\"text\": \"" + text + "\"}\n\n");
    return reply;
  });
  LoadClient client = client_of(server);
  LoadPlan plan = plan_of(40, 5);
  plan.max_concurrency = 8;
  int done = 0;
  plan.progress = [&](int d, int total) {
    EXPECT_EQ(d, ++done);
    EXPECT_EQ(total, 40);
  };
  const LoadRun run = client.run(plan);
  EXPECT_EQ(done, 40);
  EXPECT_EQ(run.most_open, 8);
  EXPECT_FALSE(run.limited);
  EXPECT_LE(server.most_at_once("/generate"), 8);
  EXPECT_GT(run.duration, 0);
  for (int i = 0; i < 40; ++i) {
    const LoadOutcome& o = run.outcomes[static_cast<size_t>(i)];
    EXPECT_TRUE(o.success) << o.failure << o.message;
    EXPECT_EQ(o.text, "prompt " + std::to_string(i));
    EXPECT_EQ(o.output_tokens, 5);
    EXPECT_EQ(o.prompt_tokens, 3);
    EXPECT_EQ(o.itl.size(), 5u) << "a chunk without a token count is one gap";
    EXPECT_GT(o.ttft, 0);
    EXPECT_GE(o.latency, o.ttft);
    EXPECT_EQ(o.routing, "oea:k0=5; scope=tenant");
  }
  EXPECT_EQ(server.got().size(), 40u);
  EXPECT_EQ(server.got()[0].header("Connection"), "close") << "a connection of its own for every request";
}

TEST(LoadClient, AnOpenLoopSendsEveryRequestWhetherOthersAreDoneOrNot) {
  FakeServer server([](const Got&) { return fake::native_stream(2); });
  LoadClient client = client_of(server);
  LoadPlan plan = plan_of(30, 2);
  plan.request_rate = 1000;
  const LoadRun run = client.run(plan);
  double last = -1;
  for (const LoadOutcome& o : run.outcomes) {
    EXPECT_TRUE(o.success) << o.failure;
    EXPECT_GE(o.start, last) << "in order";
    last = o.start;
  }
  EXPECT_FALSE(run.limited);
}

TEST(LoadClient, AClockStartsWhenTheRequestGetsItsPlace) {
  FakeServer server([](const Got&) {
    Reply reply = fake::native_stream(2);
    reply.pause_ms = 20;
    return reply;
  });
  LoadClient client = client_of(server);
  LoadPlan plan = plan_of(3, 2);
  plan.max_concurrency = 1;
  const LoadRun run = client.run(plan);
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_GE(run.outcomes[i].start, run.outcomes[i - 1].start + run.outcomes[i - 1].latency);
  }
}

TEST(LoadClient, SpeaksTheOpenAiApis) {
  FakeServer server([](const Got& got) {
    const std::string usage = "{\"choices\": [], \"usage\": {\"prompt_tokens\": 6, \"completion_tokens\": 2}}";
    if (got.target == "/v1/completions") {
      return fake::event_stream({"{\"choices\": [{\"text\": \"a\"}]}", "{\"choices\": [{\"text\": \"b\"}]}", usage});
    }
    return fake::event_stream({"{\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}",
                               "{\"choices\": [{\"delta\": {\"content\": \"c\"}}]}", usage});
  });
  LoadClient client = client_of(server);
  const LoadOutcome completion = client.run(plan_of(1, 2, LoadBackend::kCompletions)).outcomes.at(0);
  EXPECT_TRUE(completion.success) << completion.failure << completion.message;
  EXPECT_EQ(completion.text, "ab");
  EXPECT_EQ(completion.output_tokens, 2);
  const LoadOutcome chat = client.run(plan_of(1, 2, LoadBackend::kChat)).outcomes.at(0);
  EXPECT_TRUE(chat.success) << chat.failure << chat.message;
  EXPECT_EQ(chat.text, "c");
  EXPECT_EQ(chat.prompt_tokens, 6);
}

TEST(LoadClient, WholeRepliesAreReadToo) {
  const LoadOutcome o = one(fake::json_reply(
      "{\"text\": \"abc\", \"meta_info\": {\"completion_tokens\": 3, \"prompt_tokens\": 2, \"finish_reason\": "
      "{\"type\": \"length\"}}}"));
  EXPECT_TRUE(o.success) << o.failure << o.message;
  EXPECT_EQ(o.text, "abc");
  EXPECT_EQ(o.output_tokens, 3);
  EXPECT_LT(o.ttft, 0);
}

TEST(LoadClient, EventsSplitAcrossChunksAndPacketsAreWhole) {
  Reply reply = fake::native_stream(3);
  std::string all;
  for (const std::string& piece : reply.pieces) all += piece;
  reply.pieces.clear();
  for (size_t at = 0; at < all.size(); at += 3) reply.pieces.push_back(all.substr(at, 3));
  for (const bool chunked : {true, false}) {
    reply.chunked = chunked;
    const LoadOutcome o = one(reply);
    EXPECT_TRUE(o.success) << o.failure << o.message;
    EXPECT_EQ(o.text, "aaa");
    EXPECT_EQ(o.output_tokens, 3);
  }
}

TEST(LoadClient, RefusalsAreOutcomesWithStatusCodeAndSentence) {
  const LoadOutcome o = one(fake::json_reply(
      "{\"error\": {\"message\": \"the queue is full\", \"type\": \"x\", \"code\": \"overloaded\"}}", 503));
  EXPECT_FALSE(o.success);
  EXPECT_EQ(o.failure, "HTTP 503 overloaded");
  EXPECT_EQ(o.message, "the queue is full");
}

TEST(LoadClient, AStreamThatIsCutIsAFailureWhateverItHadSent) {
  Reply cut = fake::native_stream(3);
  cut.pieces.pop_back();
  cut.cut = true;
  EXPECT_EQ(one(cut).failure, "disconnected");
  cut.cut = false;  // the end of the chunks comes, [DONE] does not
  EXPECT_EQ(one(cut).failure, "cut");
  Reply short_body;
  short_body.raw = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100\r\n\r\ndata: [DONE]\n\n";
  EXPECT_EQ(one(short_body).failure, "disconnected");
}

TEST(LoadClient, WhatIsNoHttpOrNoJsonIsMalformed) {
  Reply reply;
  reply.raw = "SSH-2.0-OpenSSH_9.2\r\n\r\n";
  EXPECT_EQ(one(reply).failure, "malformed reply");
  EXPECT_EQ(one(fake::event_stream({"{\"text\": "})).failure, "malformed reply");
  EXPECT_EQ(one(fake::json_reply("<html>")).failure, "malformed reply");
}

TEST(LoadClient, AServerThatNeverAnswersIsGivenUp) {
  Reply never;
  never.never = true;
  FakeServer server([&](const Got&) { return never; });
  LoadClient client = client_of(server, 0.2);
  const LoadRun run = client.run(plan_of(3));
  for (const LoadOutcome& o : run.outcomes) EXPECT_EQ(o.failure, "timeout") << o.message;
}

TEST(LoadClient, AStreamThatNeverEndsIsGivenUp) {
  Reply slow = fake::native_stream(4000);
  slow.pause_ms = 20;
  const LoadOutcome o = one(slow, 0.3);
  EXPECT_EQ(o.failure, "timeout");
  EXPECT_FALSE(o.success);
}

TEST(LoadClient, SeesEveryPieceWhenItComesAndNotWithTheNext) {
  Reply stalled = fake::native_stream(3);
  stalled.pieces.resize(2);
  stalled.stall = true;
  LoadOutcome o;
  for (const double limit : {0.5, 5.0, 30.0}) {  // the first may be short for a busy machine
    o = one(stalled, limit);
    EXPECT_EQ(o.failure, "timeout");
    if (o.text == "aa") break;
  }
  EXPECT_EQ(o.text, "aa") << "both events were seen although nothing followed";
  EXPECT_GE(o.ttft, 0);
  EXPECT_EQ(o.itl.size(), 1u);
}

TEST(LoadClient, APortWhereNobodyListensIsAnOutcomeToo) {
  // Held, so that nobody else gets it, but not listened at.
  asio::io_context io;
  asio::ip::tcp::socket held(io, {asio::ip::make_address("127.0.0.1"), 0});
  LoadClient client(parse_url("http://127.0.0.1:" + std::to_string(held.local_endpoint().port())), {}, 10);
  const LoadRun run = client.run(plan_of(2));
  for (const LoadOutcome& o : run.outcomes) EXPECT_EQ(o.failure, "connect") << o.message;
  EXPECT_EQ(client.call("GET", "/health").failure, "connect");
}

TEST(LoadClient, FailuresOfSomeLeaveTheOthersAlone) {
  std::atomic<int> count{0};
  FakeServer server([&](const Got&) {
    return ++count % 3 == 0 ? fake::json_reply("{\"error\": {\"code\": \"overloaded\"}}", 503) : fake::native_stream(2);
  });
  LoadClient client = client_of(server);
  LoadPlan plan = plan_of(30, 2);
  plan.max_concurrency = 4;
  const LoadRun run = client.run(plan);
  const LoadMetrics m = summarise(run.outcomes, run.duration, {99});
  EXPECT_EQ(m.completed, 20);
  EXPECT_EQ(m.failed, 10);
  EXPECT_EQ(failures(run.outcomes).at("HTTP 503 overloaded").count, 10);
}

TEST(LoadClient, SendsItsHeadersAndCallsReplaceTheKey) {
  FakeServer server([](const Got&) { return fake::json_reply("{}"); });
  LoadClient client = client_of(server, 60, {{"Authorization", "Bearer user"}, {"X-Team", "blue"}});
  EXPECT_TRUE(client.call("GET", "/a").ok());
  EXPECT_TRUE(client.call("POST", "/b", "{}", 5, "admin").ok());
  const auto got = server.got();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].header("Authorization"), "Bearer user");
  EXPECT_EQ(got[0].header("X-Team"), "blue");
  EXPECT_EQ(got[1].header("Authorization"), "Bearer admin");
  EXPECT_EQ(got[1].body, "{}");
}

TEST(LoadClient, PostsManyBodiesAndKeepsTheirOrder) {
  FakeServer server([](const Got& got) { return fake::json_reply(got.body); });
  LoadClient client = client_of(server);
  std::vector<std::string> bodies;
  for (int i = 0; i < 50; ++i) bodies.push_back(std::to_string(i));
  const auto answers = client.post_all("/echo", bodies);
  ASSERT_EQ(answers.size(), 50u);
  for (size_t i = 0; i < 50; ++i) EXPECT_EQ(answers[i].body, std::to_string(i));
  EXPECT_LE(server.most_at_once("/echo"), 16);
  EXPECT_TRUE(client.post_all("/echo", {}).empty());
}

TEST(ServerUrl, TakesHostsPortsAndPrefixes) {
  EXPECT_EQ(parse_url("http://127.0.0.1:8080").text(), "http://127.0.0.1:8080");
  EXPECT_EQ(parse_url("localhost:30000/").text(), "http://localhost:30000");
  EXPECT_EQ(parse_url("http://host/a/b//").text(), "http://host:80/a/b");
  EXPECT_EQ(parse_url("http://[::1]:8080").text(), "http://[::1]:8080");
  EXPECT_EQ(parse_url("http://[::1]:8080").host, "::1");
  for (const char* bad :
       {"", "http://", "https://a", "a:0", "a:65536", "a:x", "a:", "[::1", "[::1]8", "a b", "a\n:1"}) {
    EXPECT_THROW(parse_url(bad), Error) << bad;
  }
}

TEST(ServerUrl, PrefixesStandBeforeEveryPath) {
  FakeServer server([](const Got&) { return fake::json_reply("{}"); });
  LoadClient client(parse_url(server.url() + "/proxy/"), {}, 10);
  client.call("GET", "/health");
  EXPECT_EQ(server.got().at(0).target, "/proxy/health");
}

}  // namespace
}  // namespace carpool
