// Keys, routing wishes and their refusals, states, aborts.
#include "server/service.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>

#include "server/api_error.h"
#include "server/canary_service_test_util.h"

namespace carpool {
namespace {

HttpRequest with_header(const std::string& name, const std::string& value) {
  HttpRequest request;
  if (!name.empty()) request.headers.emplace_back(name, value);
  return request;
}

// "tenant N", "admin", or "status code".
std::string who(const Service& service, const HttpRequest& request, bool admin = false) {
  try {
    const Caller caller = service.authenticate(request, admin);
    return caller.admin ? "admin" : "tenant " + std::to_string(caller.tenant);
  } catch (const ApiError& e) {
    return std::to_string(e.status()) + " " + e.code();
  }
}

TEST(Authenticate, KnowsTenantsByTheirKeysInBothHeaders) {
  Log log(LogLevel::kError, LogFormat::kText);
  ServiceOptions options;
  options.keys = {"alpha", "beta"};
  options.admin_key = "root";
  const Service service(options, log);
  EXPECT_EQ(who(service, with_header("authorization", "Bearer alpha")), "tenant 0");
  EXPECT_EQ(who(service, with_header("authorization", "bearer beta")), "tenant 1");
  EXPECT_EQ(who(service, with_header("x-api-key", "beta")), "tenant 1");
  EXPECT_EQ(who(service, with_header("x-api-key", "root")), "admin");
  EXPECT_EQ(who(service, with_header("authorization", "Bearer root"), true), "admin");
}

TEST(Authenticate, RefusesEverythingElse) {
  Log log(LogLevel::kError, LogFormat::kText);
  ServiceOptions options;
  options.keys = {"alpha", "beta"};
  const Service service(options, log);
  for (const char* key : {"", "a", "alph", "alphaa", "Alpha", "beta ", "alphabeta", "alphaalpha"}) {
    EXPECT_EQ(who(service, with_header("x-api-key", key)), "401 invalid_api_key") << key;
  }
  EXPECT_EQ(who(service, with_header("", "")), "401 invalid_api_key");
  EXPECT_EQ(who(service, with_header("authorization", "alpha")), "401 invalid_api_key");
  EXPECT_EQ(who(service, with_header("authorization", "Basic alpha")), "401 invalid_api_key");
  EXPECT_EQ(who(service, with_header("authorization", "Bearer ")), "401 invalid_api_key");
}

TEST(Authenticate, WithoutKeysEverybodyIsTenantZeroAndNobodyAdmin) {
  Log log(LogLevel::kError, LogFormat::kText);
  const Service service({}, log);
  EXPECT_EQ(who(service, with_header("", "")), "tenant 0");
  EXPECT_EQ(who(service, with_header("x-api-key", "anything")), "tenant 0");
  EXPECT_EQ(who(service, with_header("x-api-key", ""), true), "403 admin_disabled");
}

TEST(Authenticate, AUsersKeyIsNotTheAdmins) {
  Log log(LogLevel::kError, LogFormat::kText);
  ServiceOptions options;
  options.keys = {"alpha"};
  options.admin_key = "root";
  const Service service(options, log);
  EXPECT_EQ(who(service, with_header("x-api-key", "alpha"), true), "403 admin_key_required");
  EXPECT_EQ(who(service, with_header("x-api-key", "wrong"), true), "401 invalid_api_key");
}

// What route() answers and sets, as "HEADER | policy P, group G, isolated|shares, tenant T"; or the refusal's text.
std::string routed(Service& service, const std::string& wish, const Caller& caller = {}) {
  Request request;
  try {
    const std::string header = service.route(caller, {wish}, request);
    return header + " | policy " + std::to_string(request.policy) + ", group " + std::to_string(request.group) + ", " +
           (request.isolated ? "isolated" : "shares") + ", tenant " + std::to_string(request.tenant);
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 400);
    EXPECT_EQ(e.code(), "invalid_value");
    EXPECT_EQ(e.param(), "routing");
    return e.what();
  }
}

ServiceOptions with_scope(RoutingScope scope) {
  ServiceOptions options;
  options.scope = scope;
  options.keys = {"alpha", "beta"};
  options.allowed_policies = {"oea:k0=5", "oea:k0=4"};
  return options;
}

TEST(Route, PlainWishesNeitherLendNorBorrow) {
  CanaryService s(with_scope(RoutingScope::kTenant));
  EXPECT_EQ(routed(*s, "topk", {1, false}), "topk | policy 0, group 1, isolated, tenant 1");
  EXPECT_EQ(routed(*s, "isolated", {1, false}), "isolated | policy 0, group 1, isolated, tenant 1");
}

TEST(Route, TheScopeSaysWithWhomARequestShares) {
  CanaryService tenant(with_scope(RoutingScope::kTenant)), shared(with_scope(RoutingScope::kShared)),
      isolated(with_scope(RoutingScope::kIsolated));
  EXPECT_EQ(routed(*tenant, "oea:k0=4", {1, false}), "oea:k0=4; scope=tenant | policy 2, group 1, shares, tenant 1");
  EXPECT_EQ(routed(*shared, "oea:k0=4", {1, false}), "oea:k0=4; scope=shared | policy 2, group 0, shares, tenant 1");
  EXPECT_EQ(routed(*isolated, "", {1, false}), "isolated | policy 0, group 0, isolated, tenant 1");
  EXPECT_EQ(routed(*isolated, "oea:k0=4", {1, false}),
            "the server keeps all requests isolated; allowed here: topk, isolated");
}

TEST(Route, SpecsMayBeSpelledInAnyWayTheParserTakes) {
  CanaryService s(with_scope(RoutingScope::kShared));
  EXPECT_EQ(routed(*s, "oea:min_batch=2,k0=5"), routed(*s, "oea:k0=5,min_batch=2"));
  EXPECT_EQ(routed(*s, "oea:k0=05").substr(0, 8), "oea:k0=5");
}

TEST(Route, WhatIsNotAllowedIsRefusedWithTheList) {
  CanaryService s(with_scope(RoutingScope::kShared));
  EXPECT_EQ(routed(*s, "oea:k0=1"), "oea:k0=1 is not allowed; allowed here: topk, isolated, oea:k0=5, oea:k0=4");
  EXPECT_EQ(routed(*s, "fast\n"), "\"fast\\n\" is no routing policy; allowed here: topk, isolated, oea:k0=5, oea:k0=4");
}

TEST(Route, WithoutAWishTheDefaultAppliesAndFollowsALiveSwitch) {
  CanaryService s(with_scope(RoutingScope::kTenant));
  EXPECT_EQ(routed(*s, ""), "topk | policy 0, group 0, shares, tenant 0");
  std::promise<void> done;
  s->served().loop->between_steps([](Engine& engine) { engine.set_policy(make_policy("oea:k0=6")); },
                                  [&] { done.set_value(); });
  done.get_future().get();
  EXPECT_EQ(routed(*s, ""), "oea:k0=6; scope=tenant | policy 0, group 0, shares, tenant 0");
  EXPECT_EQ(routed(*s, "oea:k0=6"), "oea:k0=6; scope=tenant | policy 0, group 0, shares, tenant 0");
  EXPECT_EQ(routed(*s, "oea:k0=5").substr(0, 39), "oea:k0=5; scope=tenant | policy 1, grou") << "its own policy";

  RequestStats stats;
  stats.rows[static_cast<size_t>(PlainReason::kApplied)] = 3;
  EXPECT_EQ(s->routing_report("topk", stats).at("switched_to"), "oea:k0=6") << "a default request that was switched";
  EXPECT_FALSE(s->routing_report("oea:k0=5; scope=tenant", stats).contains("switched_to"));
}

TEST(RoutingReport, SaysWhatApplied) {
  CanaryService s(with_scope(RoutingScope::kTenant));
  RequestStats stats;
  stats.rerouted = 7;
  stats.underfilled = 2;
  stats.rows[static_cast<size_t>(PlainReason::kApplied)] = 30;
  stats.rows[static_cast<size_t>(PlainReason::kMinBatch)] = 5;
  stats.prefix = PrefixReason::kNoMatch;
  const json::object report = s->routing_report("oea:k0=5; scope=tenant", stats);
  EXPECT_EQ(json::serialize(report), R"({"routing":"oea:k0=5","scope":"tenant","rerouted":7,"underfilled":2,)"
                                     R"("rows":{"applied":30,"min_batch":5},"prefix":"no_match"})");
  EXPECT_EQ(s->routing_report("isolated", {}).at("scope"), "isolated");
}

TEST(CheckModel, TakesTheServedNameOrNone) {
  CanaryService s;
  s->check_model(std::nullopt);
  s->check_model("");
  s->check_model("canary");
  try {
    s->check_model("../../etc/passwd\n" + std::string(10'000, 'x'));
    FAIL();
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 404);
    EXPECT_EQ(e.code(), "model_not_found");
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    EXPECT_LE(std::string(e.what()).size(), 300u);
  }
  ServiceOptions options;
  options.allow_any_model = true;
  CanaryService any(options);
  any->check_model("gpt-4o");
}

TEST(Service, SaysItsStateUntilItIsReadyAndAfterwards) {
  const auto refusal = [](Service& service) -> std::string {
    try {
      service.served();
      return "ready";
    } catch (const ApiError& e) {
      return e.code();
    }
  };
  CanaryService s({}, {}, /*load=*/false);
  EXPECT_EQ(refusal(*s), "loading");
  EXPECT_EQ(s->served_if_loaded(), nullptr);
  s.load();
  EXPECT_EQ(refusal(*s), "ready");
  s->drain();
  EXPECT_EQ(refusal(*s), "draining");
  EXPECT_NE(s->served_if_loaded(), nullptr);
  s->died("a test");
  EXPECT_EQ(refusal(*s), "engine_dead");
  s->drain();
  EXPECT_EQ(refusal(*s), "engine_dead") << "the dead stay dead";
}

TEST(Service, DrainedWhileLoadingItDoesNotBecomeReady) {
  CanaryService s({}, {}, /*load=*/false);
  s->drain();
  s.load();
  EXPECT_EQ(s->state(), ServiceState::kDraining);
  while (!s->served_if_loaded()->loop->drained()) std::this_thread::yield();
}

TEST(Abort, EndsNamedRequestsOfTheCallersKeyOnly) {
  CanaryService s(with_scope(RoutingScope::kTenant));
  EngineLoop& loop = *s->served().loop;
  const Caller alice{0, false}, bob{1, false}, admin{2, true};
  const auto start = [&](const Caller& caller, const std::string& rid) {
    auto sink = std::make_shared<CollectSink>();
    const RequestId id = loop.submit(canary_request("running", 4000, caller.tenant), sink);
    return std::pair(sink, s->abortable(caller, rid, id));
  };
  s.model().close();  // or they have ended before their aborts
  auto one = start(alice, "one"), two = start(alice, "two"), other = start(bob, "one");
  for (int step = 0; step < 2; ++step) {  // the first may have begun with one of them
    s.model().wait_held();
    s.model().pass();
  }
  s.model().wait_held();
  for (const auto* request : {&one, &two, &other}) EXPECT_GE(request->first->tokens().size(), 1u) << "it runs";
  EXPECT_EQ(s->abort(bob, "two"), 0);
  EXPECT_EQ(s->abort(alice, "on"), 0) << "no prefixes";
  EXPECT_EQ(s->abort(alice, "one"), 1);
  one.second.reset();
  EXPECT_EQ(s->abort(alice, "one"), 0) << "ended requests are unknown";
  EXPECT_EQ(s->abort(alice, ""), 1);
  two.second.reset();
  EXPECT_EQ(s->abort(admin, ""), 1);
  s.model().open();
  for (const auto* request : {&one, &two, &other}) {
    EXPECT_EQ(request->first->end(), "cancelled");
    EXPECT_LE(request->first->tokens().size(), 3u) << "the step that was under way is the last";
  }
}

}  // namespace
}  // namespace carpool
