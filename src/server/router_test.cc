// The way of every request: who may call what, pages of other sites, unknown paths and methods, errors of every kind.
#include "server/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "server/canary_service_test_util.h"

namespace carpool {
namespace {

const std::map<std::string, Access> kAccess = {
    {"GET /health", Access::kOpen},
    {"GET /v1/health", Access::kOpen},
    {"GET /ping", Access::kOpen},
    {"GET /health_generate", Access::kKey},
    {"GET /v1/models", Access::kKey},
    {"GET /v1/models/*", Access::kKey},
    {"POST /v1/completions", Access::kKey},
    {"POST /v1/chat/completions", Access::kKey},
    {"POST /v1/messages", Access::kKey},
    {"POST /v1/messages/count_tokens", Access::kKey},
    {"POST /generate", Access::kKey},
    {"PUT /generate", Access::kKey},
    {"POST /tokenize", Access::kKey},
    {"POST /v1/tokenize", Access::kKey},
    {"POST /detokenize", Access::kKey},
    {"POST /v1/detokenize", Access::kKey},
    {"GET /tokenizer_info", Access::kKey},
    {"POST /apply-template", Access::kKey},
    {"GET /", Access::kOpen},
    {"GET /page.js", Access::kOpen},
    {"GET /page.css", Access::kOpen},
    {"GET /live", Access::kKey},
    {"GET /metrics", Access::kKey},
    {"GET /version", Access::kKey},
    {"GET /props", Access::kKey},
    {"GET /server_info", Access::kKey},
    {"GET /get_server_info", Access::kKey},
    {"GET /model_info", Access::kKey},
    {"GET /get_model_info", Access::kKey},
    {"GET /load", Access::kKey},
    {"GET /get_load", Access::kKey},
    {"GET /v1/loads", Access::kKey},
    {"POST /abort_request", Access::kKey},
    {"GET /flush_cache", Access::kOperator},
    {"POST /flush_cache", Access::kOperator},
    {"POST /start_expert_distribution_record", Access::kOperator},
    {"POST /stop_expert_distribution_record", Access::kOperator},
    {"POST /dump_expert_distribution_record", Access::kOperator},
    {"GET /admin/policy", Access::kOperator},
    {"POST /admin/policy", Access::kAdmin},
};

std::string key_of(const Route& route) { return std::string(route.method) + " " + route.path; }

// The route's answer to a caller with this key, as a status.
int status(CanaryService& s, const Route& route, const std::string& api_key) {
  std::string path = route.path;
  if (path.ends_with("*")) path.replace(path.size() - 1, 1, "canary");
  const Headers headers = api_key.empty() ? Headers{} : Headers{{"x-api-key", api_key}};
  return s.call(route.method, path, "", headers).status;
}

bool refused(int status) { return status == 401 || status == 403; }

TEST(RouteTable, EveryRouteHasItsAccessClassWrittenDownHere) {
  std::set<std::string> seen;
  for (const Route& route : routes()) {
    ASSERT_EQ(kAccess.count(key_of(route)), 1u) << key_of(route) << " is new: say here who may call it";
    EXPECT_EQ(kAccess.at(key_of(route)), route.access) << key_of(route);
    EXPECT_TRUE(seen.insert(key_of(route)).second) << key_of(route) << " is there twice";
  }
  EXPECT_EQ(seen.size(), kAccess.size());
}

TEST(RouteTable, WithoutAKeyOnlyLivenessIsOpen) {
  ServiceOptions options;
  options.keys = {"alpha"};
  options.admin_key = "root";
  CanaryService s(options);
  for (const Route& route : routes()) {
    const int without = status(s, route, ""), wrong = status(s, route, "wrong");
    if (route.access == Access::kOpen) {
      EXPECT_EQ(without, 200) << key_of(route);
    } else {
      EXPECT_EQ(without, 401) << key_of(route);
      EXPECT_EQ(wrong, 401) << key_of(route);
    }
  }
  EXPECT_EQ(s.call("GET", "/no/such/path").status, 401) << "what is not there is not told to strangers";
}

TEST(RouteTable, AUsersKeyOpensEverythingButOperatorsRoutes) {
  ServiceOptions options;
  options.keys = {"alpha"};
  options.admin_key = "root";
  CanaryService s(options);
  for (const Route& route : routes()) {
    const int user = status(s, route, "alpha"), admin = status(s, route, "root");
    const bool operators = route.access == Access::kOperator || route.access == Access::kAdmin;
    EXPECT_EQ(user == 403, operators) << key_of(route) << " " << user;
    EXPECT_NE(user, 401) << key_of(route);
    EXPECT_FALSE(refused(admin)) << key_of(route) << " " << admin;
  }
}

TEST(RouteTable, WithoutKeysOnlyTheAdminsRouteIsClosed) {
  CanaryService s;
  for (const Route& route : routes()) {
    EXPECT_EQ(refused(status(s, route, "")), route.access == Access::kAdmin) << key_of(route);
  }
}

TEST(Router, UnknownPathsAndMethodsAreJsonErrors) {
  CanaryService s;
  const FakeReply unknown = s.call("GET", "/etc/passwd\"\n");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.code(), "route_not_found");
  EXPECT_EQ(unknown.content_type, "application/json");
  EXPECT_EQ(s.call("GET", "/v1/models/").status, 404);
  const FakeReply method = s.call("DELETE", "/v1/models");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.code(), "method_not_allowed");
  EXPECT_EQ(method.header("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(s.call("GET", "/generate").header("allow"), "POST, PUT, OPTIONS");
  EXPECT_EQ(s.call("OPTIONS", "/no/such/path").status, 404);
  EXPECT_EQ(s.call("BREW", "/health").status, 405);
}

TEST(Router, HeadIsGetAndOptionsListsMethods) {
  CanaryService s;
  EXPECT_EQ(s.call("HEAD", "/health").status, 200);
  EXPECT_EQ(s.call("HEAD", "/v1/completions").status, 405);
  const FakeReply options = s.call("OPTIONS", "/v1/models");
  EXPECT_EQ(options.status, 200);
  EXPECT_EQ(options.header("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(options.header("access-control-allow-origin"), "") << "no page may call by default";
}

TEST(Router, PagesOfOtherSitesAreRefused) {
  CanaryService s;
  for (const char* origin : {"https://evil.example", "http://127.0.0.1.evil.example", "null", "file://"}) {
    const FakeReply reply = s.call("POST", "/v1/completions", "{}", {{"host", "127.0.0.1:8080"}, {"origin", origin}});
    EXPECT_EQ(reply.status, 403) << origin;
    EXPECT_EQ(reply.code(), "origin_not_allowed");
    EXPECT_EQ(reply.header("access-control-allow-origin"), "");
  }
  EXPECT_EQ(s.call("GET", "/health", "", {{"origin", "https://evil.example"}}).status, 403);
  EXPECT_EQ(s.call("GET", "/health", "", {{"host", "127.0.0.1:8080"}, {"origin", "http://127.0.0.1:8080"}}).status, 200)
      << "a page of this server itself";
}

TEST(Router, ListedOriginsMayCallAndAreToldSo) {
  ServiceOptions options;
  options.cors_origins = {"https://chat.example"};
  options.keys = {"alpha"};
  CanaryService s(options);
  const Headers page{{"origin", "https://chat.example"}, {"x-api-key", "alpha"}};
  const FakeReply reply = s.call("GET", "/v1/models", "", page);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(reply.header("vary"), "Origin");
  EXPECT_EQ(reply.header("access-control-allow-credentials"), "");
  const FakeReply preflight = s.call("OPTIONS", "/v1/completions", "", {{"origin", "https://chat.example"}});
  EXPECT_EQ(preflight.status, 200) << "a browser asks without the key";
  EXPECT_NE(preflight.header("access-control-allow-methods").find("POST"), std::string::npos);
  EXPECT_NE(preflight.header("access-control-allow-headers").find("authorization"), std::string::npos);
  EXPECT_EQ(s.call("GET", "/v1/models", "", {{"origin", "https://chat.example"}}).header("access-control-allow-origin"),
            "https://chat.example")
      << "errors can be read by the page, too";
  EXPECT_EQ(s.call("GET", "/v1/models", "", {{"origin", "https://chat.example.evil"}, {"x-api-key", "alpha"}}).status,
            403);
}

TEST(Router, AHostThatIsNotOursIsRefusedWhenOnlyThisMachineIsServed) {
  ServiceOptions options;
  options.hosts = {"localhost", "127.0.0.1", "[::1]"};
  CanaryService s(options);
  for (const char* host : {"localhost", "localhost:8080", "LocalHost:1", "127.0.0.1:8080", "[::1]:8080"}) {
    EXPECT_EQ(s.call("GET", "/health", "", {{"host", host}}).status, 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"}) {
    const FakeReply reply = s.call("GET", "/health", "", {{"host", host}, {"origin", std::string("http://") + host}});
    EXPECT_EQ(reply.status, 403) << host;
    EXPECT_EQ(reply.code(), "origin_not_allowed");
  }
}

TEST(Router, WhileLoadingEverythingSaysSoWithRetryAfter) {
  CanaryService s({}, {}, /*load=*/false);
  s->loading({"reading tensors", 0.25, 12.5});
  const FakeReply health = s.call("GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json().at("status"), "loading");
  EXPECT_EQ(health.json().at("stage"), "reading tensors");
  EXPECT_EQ(health.json().at("percent"), 25);
  EXPECT_EQ(health.json().at("eta_s"), 12.5);
  EXPECT_EQ(health.code(), "loading");
  EXPECT_EQ(health.header("retry-after"), "13");
  for (const char* path : {"/v1/models", "/server_info", "/load", "/health_generate"}) {
    const FakeReply reply = s.call("GET", path);
    EXPECT_EQ(reply.status, 503) << path;
    EXPECT_EQ(reply.code(), "loading") << path;
  }
  EXPECT_EQ(s.call("GET", "/metrics").status, 200);
}

TEST(Router, AnErrorAfterAStreamBeganIsOneEventWithoutDone) {
  CanaryService s;
  s.model().close();  // or all 4000 are there before it breaks down
  std::thread two_steps([&] {
    for (int step = 0; step < 2; ++step) {
      s.model().wait_held();
      s.model().pass();
    }
  });
  int events = 0;
  const FakeReply reply = s.call("POST", "/v1/completions", R"({"prompt":"hello","max_tokens":4000,"stream":true})", {},
                                 [&](FakeExchange& exchange) {
                                   exchange.on_event = [&] {
                                     if (++events != 2) return;
                                     s.model().break_down();
                                     s.model().open();
                                   };
                                 });
  two_steps.join();
  EXPECT_TRUE(reply.streamed);
  EXPECT_TRUE(reply.ended);
  ASSERT_EQ(reply.events.size(), 3u) << "two tokens and the error";
  const json::object last = parse_json(reply.events.back().second, "the event").as_object();
  EXPECT_EQ(last.at("error").at("code"), "engine_dead");
  for (const auto& [name, data] : reply.events) EXPECT_NE(data, "[DONE]");
  EXPECT_EQ(s.call("GET", "/health").status, 503);
  EXPECT_EQ(s.call("GET", "/health").code(), "engine_dead");
  EXPECT_EQ(s.call("GET", "/health").header("retry-after"), "");
}

TEST(Router, LogsOneLinePerRequestWithoutPromptOrText) {
  CanaryService s;
  const FakeReply reply = s.call("POST", "/v1/completions", R"({"prompt":"my secret words","max_tokens":5})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::string text(reply.json().at("choices").at(0).at("text").as_string());
  const std::string& log = s.log_text();
  EXPECT_NE(log.find("id=req-1"), std::string::npos) << log;
  EXPECT_NE(log.find("path=/v1/completions"), std::string::npos);
  EXPECT_NE(log.find("status=200"), std::string::npos);
  EXPECT_NE(log.find("prompt_tokens=15 completion_tokens=5"), std::string::npos) << log;
  EXPECT_NE(log.find("routing=topk"), std::string::npos) << log;
  EXPECT_EQ(log.find("secret"), std::string::npos);
  EXPECT_EQ(log.find(text), std::string::npos);
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
}

TEST(Router, NeitherKeysNorForgedLinesReachTheLog) {
  ServiceOptions options;
  options.keys = {"alpha-secret"};
  CanaryService s(options);
  s.call("GET", "/x\nlevel=error forged", "", {{"x-api-key", "alpha-secret"}});
  s.call("GET", "/y", "", {{"authorization", "Bearer alpha-secrex"}});
  EXPECT_EQ(s.log_text().find("alpha-secre"), std::string::npos) << s.log_text();
  EXPECT_EQ(std::count(s.log_text().begin(), s.log_text().end(), '\n'), 2);
}

}  // namespace
}  // namespace carpool
