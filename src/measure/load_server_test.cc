// What the load client asks a server besides requests, of servers that have it and of others.
#include "measure/load_server.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"
#include "measure/load_fake_server_test_util.h"

namespace carpool {
namespace {

using fake::FakeServer;
using fake::Got;
using fake::json_reply;
using fake::Reply;

constexpr const char* kMetrics = R"(# HELP carpool:moe_layer_steps_total pairs
# TYPE carpool:moe_layer_steps_total counter
carpool:moe_layer_steps_total{model_name="a \"b\", c",steps="decode"} 10
carpool:moe_layer_steps_total{model_name="a \"b\", c",steps="mixed"} 4
carpool:moe_distinct_experts_total{model_name="m",steps="decode"} 150
carpool:moe_distinct_experts_total{model_name="m",steps="mixed"} 90
carpool:moe_distinct_experts_plain_total{model_name="m",steps="decode"} 200
carpool:moe_rerouted_tokens_total{model_name="m",steps="decode"} 7
carpool:moe_rerouted_tokens_total{model_name="m",steps="mixed"} 2
carpool:moe_underfilled_tokens_total{model_name="m",steps="decode"} 1
carpool:moe_plain_steps_total{model_name="m",reason="min_batch"} 12
carpool:moe_plain_steps_total{model_name="m",reason="something_new"} 3
carpool:steps_total{steps="decode"} 5
carpool:steps_total{steps="mixed"} 2
carpool:forward_seconds_total{steps="decode"} 0.25
carpool:forward_seconds_total{steps="mixed"} 1.5e+01
carpool:generation_tokens_total{model_name="m"} 1.25e+02
other:thing 9
)";

TEST(ServerCounters, AreReadFromPrometheusText) {
  const auto c = parse_counters(kMetrics);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->decode.layers, 10);
  EXPECT_EQ(c->mixed.layers, 4);
  EXPECT_EQ(c->decode.distinct_experts, 150);
  EXPECT_EQ(c->mixed.distinct_experts, 90);
  EXPECT_EQ(c->decode.distinct_plain, 200);
  EXPECT_EQ(c->rerouted(), 9);
  EXPECT_EQ(c->decode.underfilled_tokens, 1);
  EXPECT_EQ(c->decode.plain_steps[static_cast<size_t>(PlainReason::kMinBatch)], 12);
  EXPECT_EQ(c->decode_steps, 5);
  EXPECT_EQ(c->mixed_steps, 2);
  EXPECT_DOUBLE_EQ(c->decode_seconds, 0.25);
  EXPECT_EQ(c->generation_tokens, 125);
}

TEST(ServerCounters, OfAnotherServerAreNone) {
  EXPECT_FALSE(parse_counters("vllm:num_requests_running 3\n"));
  EXPECT_FALSE(parse_counters(""));
  EXPECT_FALSE(parse_counters("carpool:moe_distinct_experts_total{steps=\"decode\" 3\ncarpool:\ncarpool:x{\n"));
}

TEST(ServerCounters, OfARunAreADifference) {
  ServerCounters before = *parse_counters(kMetrics), after = before;
  after.decode.layers += 6;
  after.decode.distinct_experts += 60;
  after.mixed.rerouted_tokens += 5;
  after.decode.plain_steps[2] += 4;
  after.decode_steps += 3;
  after.generation_tokens += 20;
  after.decode_seconds += 0.5;
  const ServerCounters d = difference(after, before);
  EXPECT_EQ(d.decode.layers, 6);
  EXPECT_EQ(d.decode.distinct_experts, 60);
  EXPECT_EQ(d.rerouted(), 5);
  EXPECT_EQ(d.decode.plain_steps[2], 4);
  EXPECT_EQ(d.decode_steps, 3);
  EXPECT_EQ(d.generation_tokens, 20);
  EXPECT_DOUBLE_EQ(d.decode_seconds, 0.5);
  EXPECT_EQ(d.mixed.layers, 0);
}

struct Fixture {
  explicit Fixture(FakeServer::Handler handler, std::string admin_key = "")
      : fake(std::move(handler)), client(parse_url(fake.url()), {}, 10), server(client, std::move(admin_key)) {}
  FakeServer fake;
  LoadClient client;
  LoadServer server;
};

TEST(LoadServer, WaitsUntilTheServerIsReady) {
  std::atomic<int> asked{0};
  Fixture f([&](const Got&) { return ++asked < 3 ? json_reply("{\"status\": \"loading\"}", 503) : json_reply("{}"); });
  f.server.wait_ready(30);
  EXPECT_EQ(asked, 3);
  f.server.wait_ready(0);
  EXPECT_EQ(asked, 3) << "0 = does not ask";
}

// The sentence with which wait_ready() gives up on a server.
std::string refusal(LoadServer& server, double seconds) {
  try {
    server.wait_ready(seconds);
    ADD_FAILURE() << "it is not ready";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnavailable);
    return e.what();
  }
  return "";
}

// On a busy machine a short time may be too short for any answer: then with more.
std::string never_ready(LoadServer& server) {
  std::string text;
  for (const double seconds : {0.1, 3.0, 30.0}) {
    text = refusal(server, seconds);
    if (text.find("HTTP") != std::string::npos) break;
  }
  return text;
}

TEST(LoadServer, ThatNeverGetsReadyIsNamedWithItsLastAnswer) {
  Fixture f([](const Got&) { return json_reply("{\"error\": {\"code\": \"loading\", \"message\": \"40 %\"}}", 503); });
  const std::string text = never_ready(f.server);
  EXPECT_NE(text.find("HTTP 503 loading: 40 %"), std::string::npos) << text;
}

TEST(LoadServer, ThatAnsweredAndThenKeepsSilentIsNamedWithItsLastAnswer) {
  std::atomic<int> asked{0};
  Fixture f([&](const Got&) {
    Reply reply = json_reply("{}", 503);
    reply.never = ++asked > 1;
    return reply;
  });
  const std::string text = refusal(f.server, 3);
  EXPECT_NE(text.find("HTTP 503"), std::string::npos) << text;
  EXPECT_EQ(asked, 2);
}

TEST(LoadServer, ThatAnswersNonsenseInTheEndIsNamedWithThat) {
  std::atomic<int> asked{0};
  Fixture f([&](const Got&) {
    Reply reply = json_reply("{}", 503);
    if (++asked > 1) reply.raw = "nonsense";
    return reply;
  });
  const std::string text = refusal(f.server, 2);
  EXPECT_NE(text.find("malformed reply"), std::string::npos) << text;
}

TEST(LoadServer, WithoutHealthIsReadyWhenItAnswers) {
  Fixture f([](const Got&) { return json_reply("{}", 404); });
  f.server.wait_ready(30);
  EXPECT_EQ(f.fake.got().size(), 1u);
}

TEST(LoadServer, KnowsItsModelVocabularyAndTokens) {
  Fixture f([](const Got& got) {
    if (got.target == "/v1/models") return json_reply("{\"data\": [{\"id\": \"books\"}]}");
    if (got.target == "/tokenizer_info") return json_reply("{\"tokenizer\": {\"vocab_size\": 4096}}");
    if (got.target == "/tokenize") {
      return json_reply(json::serialize(json::object{{"count", got.json().at("prompt").as_string().size()}}));
    }
    return json_reply("not JSON", got.target == "/model_info" ? 200 : 404);
  });
  EXPECT_EQ(f.server.model(), "books");
  EXPECT_EQ(f.server.vocab(), 4096);
  const TokenCounter count = f.server.token_counter("books");
  ASSERT_TRUE(count);
  EXPECT_EQ(count("abcde"), 5);
  EXPECT_EQ(f.fake.got("/tokenize").back().json().at("add_special_tokens"), false);
  EXPECT_EQ(f.server.count_tokens("books", {"a", "bc", "def"}), 6);
  EXPECT_TRUE(f.server.info().is_null());
}

TEST(LoadServer, ThatHasNoneOfThatIsUsedAnyway) {
  Fixture f([](const Got&) { return json_reply("{\"detail\": \"Not Found\"}", 404); });
  EXPECT_EQ(f.server.model(), "");
  EXPECT_EQ(f.server.vocab(), 0);
  EXPECT_FALSE(f.server.token_counter(""));
  EXPECT_FALSE(f.server.count_tokens("", {"a"}));
  EXPECT_FALSE(f.server.counters());
  EXPECT_EQ(f.server.policy(), "");
  EXPECT_NE(f.server.flush_cache(), "");
}

TEST(LoadServer, CountsOnlyWhenTheCountersHaveSettled) {
  std::atomic<int> asked{0};
  Fixture f([&](const Got&) {
    const int steps = std::min(++asked, 3);
    return json_reply("carpool:moe_distinct_experts_total{steps=\"decode\"} 1\ncarpool:steps_total{steps=\"decode\"} " +
                      std::to_string(steps) + "\n");
  });
  EXPECT_EQ(f.server.counters()->decode_steps, 3);
  EXPECT_EQ(asked, 4) << "the third answer, twice";
}

TEST(LoadServer, OperatorsCallsCarryTheAdminKey) {
  Fixture f(
      [](const Got& got) {
        if (got.method == "GET") return json_reply("{\"policy\": \"topk\"}");
        const bool bad = got.target == "/admin/policy" && got.json().at("policy") == "nonsense";
        return bad ? json_reply("{\"error\": {\"code\": \"invalid_value\", \"message\": \"no such policy\"}}", 400)
                   : json_reply("{}");
      },
      "secret");
  EXPECT_EQ(f.server.policy(), "topk");
  f.server.set_policy("oea:k0=5");
  EXPECT_EQ(f.server.flush_cache(), "");
  for (const Got& got : f.fake.got()) EXPECT_EQ(got.header("Authorization"), "Bearer secret") << got.target;
  try {
    f.server.set_policy("nonsense");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no such policy"), std::string::npos) << e.what();
  }
}

TEST(LoadServer, AsksAgainWhileTheServerIsNotIdle) {
  std::atomic<int> asked{0};
  Fixture f([&](const Got&) { return json_reply("{}", ++asked < 3 ? 400 : 200); });
  EXPECT_EQ(f.server.flush_cache(), "");
  EXPECT_EQ(asked, 3);
}

TEST(FindNumber, SearchesObjectsAndListsToADepth) {
  const json::value v = parse_json("{\"a\": [{\"b\": {\"n_experts\": 64}}], \"top\": 3}", "x");
  EXPECT_EQ(find_number(v, {"num_experts", "n_experts"}), 64);
  EXPECT_EQ(find_number(v, {"top"}), 3);
  EXPECT_FALSE(find_number(v, {"none"}));
  std::string deep = "{\"n\": 1}";
  for (int i = 0; i < 20; ++i) deep = "[" + deep + "]";
  EXPECT_FALSE(find_number(parse_json(deep, "x"), {"n"}));
}

}  // namespace
}  // namespace carpool
