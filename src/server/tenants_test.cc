// What the users of one server may learn of each other, and take from each other: nothing but time.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "server/canary_service_test_util.h"
#include "server/slow_work_test_util.h"

namespace carpool {
namespace {

const Headers kAlpha{{"x-api-key", "alpha"}}, kBeta{{"x-api-key", "beta"}}, kRoot{{"x-api-key", "root"}};

ServiceOptions two_users(RoutingScope scope = RoutingScope::kTenant) {
  ServiceOptions options;
  options.keys = {"alpha", "beta"};
  options.admin_key = "root";
  options.scope = scope;
  return options;
}

EngineOptions with_prefix_cache() {
  EngineOptions engine;
  engine.prefix_cache = true;
  return engine;
}

std::string completion(const std::string& prompt) {
  return json::serialize(json::object{{"prompt", prompt}, {"max_tokens", 2}, {"temperature", 0}});
}

std::string prefix_of(const FakeReply& reply) {
  return std::string(reply.json().at("carpool").at("prefix").as_string());
}

// The counter of requests with this reason, as the holder of a key sees it.
int counted(CanaryService& s, const Headers& key, const std::string& reason) {
  const std::string text = s.call("GET", "/metrics", "", key).body;
  const std::string mark = "carpool:prefix_reuse_total{model_name=\"canary\",reason=\"" + reason + "\"} ";
  const size_t at = text.find(mark);
  EXPECT_NE(at, std::string::npos) << reason;
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + mark.size());
}

TEST(Tenants, NeitherAnswersNorMetricsTellAUserWhatPromptsOthersSend) {
  CanaryService s(two_users(), with_prefix_cache());
  const std::string secret(64, 'a'), half = std::string(32, 'a') + std::string(32, 'b');
  EXPECT_EQ(prefix_of(s.call("POST", "/v1/completions", completion(secret), kAlpha)), "no_match");
  // Beta guesses: right as a whole, right in its beginning, wrong.
  for (const std::string& guess : {secret, half, std::string(64, 'z')}) {
    const int before = counted(s, kBeta, "no_match");
    const FakeReply reply = s.call("POST", "/v1/completions", completion(guess), kBeta);
    EXPECT_EQ(reply.json().at("usage").at("prompt_tokens_details").at("cached_tokens"), guess == half ? 32 : 0);
    EXPECT_EQ(prefix_of(reply), guess == half ? "diverged" : "no_match") << "its own blocks, at most";
    EXPECT_EQ(counted(s, kBeta, "no_match"), before + 1);
    EXPECT_EQ(counted(s, kBeta, "other_tenant"), 0);
    EXPECT_EQ(counted(s, kBeta, "diverged"), 0);
  }
  EXPECT_GT(counted(s, kRoot, "other_tenant"), 0) << "the operator may know";
}

TEST(Tenants, WithoutKeysTheMetricsSayAllReasons) {
  CanaryService s({}, with_prefix_cache());
  const std::string half = std::string(32, 'a') + std::string(32, 'b');
  s.call("POST", "/v1/completions", completion(std::string(64, 'a')));
  s.call("POST", "/v1/completions", completion(half));
  EXPECT_EQ(counted(s, {}, "no_match"), 1);
  EXPECT_EQ(counted(s, {}, "diverged"), 1);
}

TEST(Tenants, APolicyThatWouldNeverApplyIsRefusedByTheLiveSwitchToo) {
  CanaryService s(two_users(RoutingScope::kIsolated));
  const FakeReply reply = s.call("POST", "/admin/policy", R"({"policy":"oea:k0=3"})", kRoot);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.code(), "invalid_value");
  EXPECT_EQ(s.call("GET", "/admin/policy", "", kRoot).json().at("policy"), "topk");
  EXPECT_EQ(s.call("POST", "/admin/policy", R"({"policy":"topk"})", kRoot).status, 200);
}

TEST(Tenants, MoreCompletionsThanMayEverWaitAreTheClientsMistakeAndNotOverload) {
  CanaryService s(two_users());  // a queue of 4096, of which each key may have 1024
  json::array prompts;
  for (int i = 0; i < 129; ++i) prompts.emplace_back("p");
  const std::string body = json::serialize(json::object{{"prompt", prompts}, {"n", 8}, {"max_tokens", 1}});
  const FakeReply reply = s.call("POST", "/v1/completions", body, kAlpha);
  EXPECT_EQ(reply.status, 400) << "asking again would not help";
  EXPECT_EQ(reply.code(), "too_many_items");
  prompts.pop_back();
  const std::string fits = json::serialize(json::object{{"prompt", prompts}, {"n", 8}, {"max_tokens", 1}});
  EXPECT_EQ(s.call("POST", "/v1/completions", fits, kAlpha).status, 200);
}

TEST(Tenants, ARequestOfManyIsTakenAsAWholeOrNotAtAll) {
  GatedModel model;
  EngineOptions engine;
  engine.max_batch = 1;
  EngineLoop loop(canary_engine(model, nullptr, engine), {.max_queued = 8, .key_share = 0.5, .tenants = 2});
  const auto refusal = [&](int tenant, int requests) {
    try {
      loop.require_room(tenant, requests);
    } catch (const ApiError& e) {
      return std::to_string(e.status()) + " " + e.code();
    }
    return std::string();
  };
  EXPECT_EQ(refusal(0, 4), "");
  EXPECT_EQ(refusal(0, 5), "400 too_many_items");
  auto sink = std::make_shared<CollectSink>();
  loop.submit(canary_request("one", 2, 0), sink);
  EXPECT_EQ(refusal(0, 3), "");
  EXPECT_EQ(refusal(0, 4), "429 key_queue_full");
  EXPECT_EQ(refusal(1, 4), "") << "another key's share is untouched";
  for (int i = 0; i < 3; ++i) loop.submit(canary_request("more", 2, 0), sink);
  for (int i = 0; i < 3; ++i) loop.submit(canary_request("others", 2, 1), sink);
  EXPECT_EQ(refusal(2, 1), "");
  EXPECT_EQ(refusal(2, 2), "503 overloaded");
}

TEST(Tenants, AnAbortReachesNobodyElse) {
  CanaryService s(two_users());
  s.model().close();
  auto sink = std::make_shared<CollectSink>();
  const RequestId id = s->served().loop->submit(canary_request("hello", 4, 0), sink);
  const auto named = s->abortable({0, false}, "job", id);
  for (const char* body : {R"({"rid":"job"})", R"({"abort_all":true})"}) {
    EXPECT_EQ(s.call("POST", "/abort_request", body, kBeta).json().at("aborted"), 0) << body;
  }
  s.model().open();
  EXPECT_EQ(sink->end(), "length");
}

TEST(Tenants, TheLogSaysWhatCameFromThePrefixCacheAndWhyNotMore) {
  CanaryService s({}, with_prefix_cache());
  s.call("POST", "/v1/completions", completion(std::string(40, 'a')));
  EXPECT_NE(s.log_text().find("cached_tokens=0 prefix=no_match"), std::string::npos) << s.log_text();
  s.call("POST", "/v1/completions", completion(std::string(40, 'a')));
  EXPECT_NE(s.log_text().find("cached_tokens=32 prefix=whole"), std::string::npos) << s.log_text();
}

TEST(Tenants, ScoresOfOneAnswerAreBoundedBeforeTheyAreComputed) {
  CanaryService s;
  json::array ids, prompts;
  for (int i = 0; i < 4000; ++i) ids.emplace_back(5);
  for (int i = 0; i < 30; ++i) prompts.push_back(ids);
  json::object body{{"prompt", prompts}, {"echo", true}, {"logprobs", 20}, {"max_tokens", 1}};
  const FakeReply reply = s.call("POST", "/v1/completions", json::serialize(body));
  EXPECT_EQ(reply.status, 400) << "30 prompts of 4000 tokens with 21 scores each";
  EXPECT_EQ(reply.code(), "too_many_items");
  EXPECT_EQ(reply.json().at("error").at("param"), "logprobs");
  EXPECT_EQ(s.call("POST", "/v1/completions", R"({"prompt":"a","n":8,"logprobs":20,"max_tokens":2147483647})").code(),
            "too_many_items");
  prompts.resize(2);
  body["prompt"] = prompts;
  EXPECT_EQ(s.call("POST", "/v1/completions", json::serialize(body)).status, 200);
}

TEST(Tenants, APictureInAPageOfAnotherSiteFlushesNoCache) {
  CanaryService s;
  for (const char* site : {"cross-site", "same-site"}) {
    const FakeReply reply = s.call("GET", "/flush_cache", "", {{"sec-fetch-site", site}, {"sec-fetch-dest", "image"}});
    EXPECT_EQ(reply.status, 403) << site;
    EXPECT_EQ(reply.code(), "origin_not_allowed");
    EXPECT_EQ(s.call("GET", "/health", "", {{"sec-fetch-site", site}}).status, 200);
  }
  for (const char* site : {"same-origin", "none"}) {
    EXPECT_EQ(s.call("GET", "/flush_cache", "", {{"sec-fetch-site", site}}).status, 200) << site;
  }
}

// What a request that is refused says in its error must never be what it said.
TEST(Tenants, ErrorsNeverRepeatWhatAPromptSays) {
  CanaryService s;
  for (const char* body :
       {R"({"prompt":"hunter2","max_tokens":-1})", R"({"prompt":["hunter2",5]})", R"({"prompt":{"hunter2":1}})",
        R"({"prompt":"hunter2","stop":["hunter2","a","b","c","d"]})", R"({"prompt":"hunter2","stop":[1]})",
        R"({"prompt":"hunter2","temperature":"hunter2"})", R"({"prompt":"hunter2","suffix":"hunter2"})",
        R"({"prompt":"hunter2","response_format":{"type":"hunter2"}})", R"({"prompt":"hunter2","user":5})",
        R"({"prompt":"hunter2","logit_bias":{"hunter2":1}})", R"({"prompt":"hunter2","prompt":"hunter2"})",
        "{\"prompt\":\"hunter2\xff\"}", R"({"prompt":"hunter2\ud800"})"}) {
    const FakeReply reply = s.call("POST", "/v1/completions", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(reply.body.find("hunter2"), std::string::npos) << reply.body;
  }
  EXPECT_EQ(s.log_text().find("hunter2"), std::string::npos);
}

// O7: two threads render templates, tokenise and make grammars for everybody.
TEST(Tenants, AFloodOfSlowWorkKeepsAnotherKeyWaitingForOneTurn) {
  CanaryService s(two_users());
  SlowWork flood(*s, /*tenant=*/0, 300);
  flood.wait_begun(2);
  EXPECT_EQ(s->waiting_work(), 298);
  auto answer = std::async(std::launch::async, [&] {
    return s.call("POST", "/tokenize", R"({"prompt":"short","add_special_tokens":false})", kBeta);
  });
  const auto deadline = std::chrono::steady_clock::now() + kTestPatience / 2;
  while (s->waiting_work() < 299 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(s->waiting_work(), 299) << "Beta's piece is in the queue";
  // A thread that is let go takes Alpha's next piece or Beta's, and then the other of the two.
  for (int begun = 3; begun <= 4; ++begun) {
    flood.let(1);
    flood.wait_begun(begun);
  }
  EXPECT_EQ(answer.wait_until(deadline), std::future_status::ready) << "it waits behind the flood";
  EXPECT_EQ(flood.begun(), 4);
  flood.let(300);
  const FakeReply reply = answer.get();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json().at("count"), 5);
}

TEST(Tenants, AKeyHasAShareOfTheWorkThatMayWait) {
  ServiceOptions options = two_users();
  options.max_waiting_work = 8;  // two of one key
  CanaryService s(std::move(options));
  SlowWork busy(*s, /*tenant=*/0, 4);
  busy.wait_begun(2);
  const std::string body = R"({"prompt":"short"})";
  for (const char* path : {"/tokenize", "/v1/completions"}) {
    const FakeReply refused = s.call("POST", path, body, kAlpha);
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(refused.code(), "key_queue_full") << path;
    EXPECT_EQ(refused.header("retry-after"), "1");
  }
  auto beta = std::async(std::launch::async, [&] { return s.call("POST", "/tokenize", body, kBeta).status; });
  busy.let(4);
  EXPECT_EQ(beta.get(), 200);
}

}  // namespace
}  // namespace carpool
