// The endpoints that look and operate: health, models, info, load, metrics, aborts, policy, cache, expert records.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "server/canary_service_test_util.h"

namespace carpool {
namespace {

ServiceOptions with_admin() {
  ServiceOptions options;
  options.admin_key = "root";
  options.model_path = "dummy:canary";
  options.version = "1.2.3 (abc)";
  options.allowed_policies = {"oea:k0=5"};
  options.server_args["max_running_requests"] = 7;
  return options;
}

const Headers kRoot{{"x-api-key", "root"}};

TEST(Health, IsOkWhileTheEngineLooksForWorkAndWhileItWorks) {
  CanaryService s;
  const FakeReply idle = s.call("GET", "/health");
  EXPECT_EQ(idle.status, 200);
  EXPECT_EQ(idle.json().at("status"), "ok");
  EXPECT_EQ(s.call("GET", "/ping").status, 200);
  EXPECT_EQ(s.call("GET", "/health_generate").status, 200);
}

TEST(Health, SaysStuckWhenNoStepEnds) {
  ServiceOptions options;
  options.stall_s = 0;
  CanaryService s(options);
  s.model().close();
  auto sink = std::make_shared<CollectSink>();
  s->served().loop->submit(canary_request("hello", 4), sink);
  s.model().wait_held();
  const FakeReply stuck = s.call("GET", "/health");
  EXPECT_EQ(stuck.status, 503);
  EXPECT_EQ(stuck.code(), "engine_dead");
  EXPECT_EQ(stuck.json().at("status"), "stuck");
  s.model().open();
  EXPECT_EQ(sink->end(), "length");
}

TEST(Health, SaysDrainingAndDead) {
  CanaryService s;
  s->drain();
  EXPECT_EQ(s.call("GET", "/health").code(), "draining");
  EXPECT_EQ(s.call("POST", "/v1/completions", R"({"prompt":"a"})").code(), "draining");
  EXPECT_EQ(s.call("GET", "/server_info").json().at("status"), "draining") << "looking is allowed";
  s->died("a test");
  EXPECT_EQ(s.call("GET", "/health").code(), "engine_dead");
}

TEST(Models, ListTheServedOne) {
  ServiceOptions options;
  options.served_model_name = "org/canary";
  CanaryService s(options);
  const json::object list = s.call("GET", "/v1/models").json();
  EXPECT_EQ(list.at("object"), "list");
  ASSERT_EQ(list.at("data").as_array().size(), 1u);
  EXPECT_EQ(list.at("data").at(0).at("id"), "org/canary");
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), 4096);
  EXPECT_GT(list.at("data").at(0).at("created").as_int64(), 1'700'000'000);
  EXPECT_EQ(s.call("GET", "/v1/models/org/canary").json().at("id"), "org/canary");
  const FakeReply other = s.call("GET", "/v1/models/../../etc/passwd");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.code(), "model_not_found");
}

TEST(Info, HasWhatSglangsClientsRead) {
  CanaryService s(with_admin());
  s.call("POST", "/v1/completions", R"({"prompt":"hello","max_tokens":4})");
  const json::object info = s.call("GET", "/server_info").json();
  EXPECT_EQ(info.at("version"), "1.2.3 (abc)");
  EXPECT_EQ(info.at("model_path"), "dummy:canary");
  EXPECT_EQ(info.at("tokenizer_path"), "dummy:canary");
  EXPECT_EQ(info.at("max_running_requests"), 7);
  EXPECT_GT(info.at("max_total_num_tokens").as_int64(), 0);
  const json::object& state = info.at("internal_states").at(0).as_object();
  EXPECT_EQ(state.at("policy"), "topk");
  EXPECT_EQ(state.at("routing").at("layers"), 4) << "one layer, a prompt step and three more";
  EXPECT_EQ(state.at("routing_decode").at("layers"), 3);
  EXPECT_EQ(state.at("routing_decode").at("steps"), 3);
  EXPECT_EQ(state.at("routing_decode").at("distinct_experts"), 8.0);
  EXPECT_EQ(state.at("routing_decode").at("distinct_experts_sum"), 24);
  EXPECT_EQ(s.call("GET", "/get_server_info").json().at("version"), "1.2.3 (abc)");
  const json::object model = s.call("GET", "/model_info").json();
  EXPECT_EQ(model.at("is_generation"), true);
  EXPECT_EQ(model.at("model_type"), "canary");
  EXPECT_EQ(model.at("vocab_size"), 257);
  EXPECT_EQ(s.call("GET", "/version").json().at("version"), "1.2.3 (abc)");
  EXPECT_EQ(s.call("GET", "/props").json().at("total_slots"), 7);
}

TEST(Load, CountsRequestsInTheShapesOfItsNames) {
  CanaryService s;
  s.model().close();
  auto sink = std::make_shared<CollectSink>();
  for (int i = 0; i < 3; ++i) s->served().loop->submit(canary_request("hello", 4), sink);
  for (int step = 0; step < 2; ++step) {  // the first may have begun with one of them
    s.model().wait_held();
    s.model().pass();
  }
  s.model().wait_held();
  const json::object load = s.call("GET", "/load").json();
  EXPECT_EQ(load.at("server_load"), 3);
  EXPECT_EQ(load.at("num_running_reqs").as_int64() + load.at("num_waiting_reqs").as_int64(), 3);
  s.model().open();
  EXPECT_EQ(sink->end(), "length");
  EXPECT_TRUE(parse_json(s.call("GET", "/get_load").body, "the body").is_array());
  EXPECT_EQ(s.call("GET", "/v1/loads").json().at("loads").as_array().size(), 1u);
}

TEST(MetricsEndpoint, IsPrometheusText) {
  CanaryService s;
  const FakeReply reply = s.call("GET", "/metrics");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(reply.body.find("carpool:num_requests_running{model_name=\"canary\"} 0\n"), std::string::npos);
}

TEST(AdminPolicy, SwitchesBetweenStepsAndSaysFromWhatToWhat) {
  CanaryService s(with_admin());
  EXPECT_EQ(s.call("GET", "/admin/policy").json().at("policy"), "topk");
  EXPECT_EQ(s.call("GET", "/admin/policy").json().at("allowed").at(0), "oea:k0=5");
  const FakeReply reply = s.call("POST", "/admin/policy", R"({"policy":"oea:k0=3"})", kRoot);
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.json().at("old"), "topk");
  EXPECT_EQ(reply.json().at("new"), "oea:k0=3");
  EXPECT_EQ(s.call("GET", "/admin/policy").json().at("policy"), "oea:k0=3");
  const FakeReply completion = s.call("POST", "/v1/completions", R"({"prompt":"hello","max_tokens":4})");
  EXPECT_EQ(completion.header("x-carpool-routing"), "oea:k0=3; scope=tenant");
}

TEST(AdminPolicy, RefusesBadSpecsAndKeepsTheOldPolicy) {
  CanaryService s(with_admin());
  for (const char* body : {R"({"policy":"fast"})", R"({"policy":"oea:k0=9"})", R"({"policy":5})", "{}", "[",
                           R"({"policy":"oea:k0=3,speed=11"})"}) {
    const FakeReply reply = s.call("POST", "/admin/policy", body, kRoot);
    EXPECT_EQ(reply.status, 400) << body << reply.body;
  }
  EXPECT_EQ(s.call("POST", "/admin/policy", R"({"policy":"oea:k0=9"})", kRoot).json().at("error").at("param"),
            "policy");
  EXPECT_EQ(s.call("GET", "/admin/policy").json().at("policy"), "topk");
}

TEST(FlushCache, WorksWhenIdleOnly) {
  CanaryService s;
  EXPECT_EQ(s.call("POST", "/flush_cache").status, 200);
  EXPECT_EQ(s.call("GET", "/flush_cache").status, 200);
  s.model().close();  // or the request has ended before the call comes to the engine
  auto sink = std::make_shared<CollectSink>();
  const RequestId id = s->served().loop->submit(canary_request("hello", 4000), sink);
  s.model().wait_held();
  auto call = std::async(std::launch::async, [&] { return s.call("POST", "/flush_cache"); });
  // It is answered between two steps; with these pauses 4000 of them last for 40 seconds.
  while (call.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
    s.model().wait_held();
    s.model().pass();
  }
  const FakeReply busy = call.get();
  EXPECT_EQ(busy.status, 400);
  EXPECT_EQ(busy.code(), "not_idle");
  s->served().loop->cancel(id);
  s.model().open();
  EXPECT_EQ(sink->end(), "cancelled");
}

TEST(ExpertRecord, CountsBetweenStartAndStop) {
  CanaryService s;
  EXPECT_EQ(s.call("POST", "/dump_expert_distribution_record").json().at("counts").as_array().size(), 0u);
  const auto total = [&] {
    const json::object dump = s.call("POST", "/dump_expert_distribution_record", R"({"path":"/tmp/x"})").json();
    EXPECT_EQ(dump.at("counts").as_array().size(), 1u);
    EXPECT_EQ(dump.at("counts").at(0).as_array().size(), 64u);
    int64_t sum = 0;
    for (const json::value& n : dump.at("counts").at(0).as_array()) sum += n.as_int64();
    return sum;
  };
  const auto generate = [&] { s.call("POST", "/v1/completions", R"({"prompt":"hello","max_tokens":4})"); };
  EXPECT_EQ(s.call("POST", "/start_expert_distribution_record").status, 200);
  EXPECT_EQ(total(), 0);
  generate();
  EXPECT_EQ(total(), 8 * (5 + 3)) << "eight experts for each of five prompt rows and three more";
  EXPECT_EQ(s.call("POST", "/stop_expert_distribution_record").status, 200);
  generate();
  EXPECT_EQ(total(), 8 * (5 + 3));
  EXPECT_EQ(s.call("POST", "/start_expert_distribution_record").status, 200);
  EXPECT_EQ(total(), 0) << "a new start forgets";
}

TEST(AbortRequest, IsIdempotentAndNeedsAName) {
  CanaryService s;
  EXPECT_EQ(s.call("POST", "/abort_request", R"({"rid":"nobody"})").json().at("aborted"), 0);
  EXPECT_EQ(s.call("POST", "/abort_request", R"({"abort_all":true})").status, 200);
  EXPECT_EQ(s.call("POST", "/abort_request", "{}").code(), "missing_field");
  EXPECT_EQ(s.call("POST", "/abort_request", R"({"rid":5})").status, 400);
  EXPECT_EQ(s.call("POST", "/abort_request", "nonsense").code(), "invalid_json");
}

TEST(AbortRequest, EndsARunningRequestByItsRid) {
  CanaryService s;
  s.model().close();
  int aborted = -1;
  bool asked = false;
  std::thread first([&] {
    s.model().wait_held();
    s.model().pass();
  });
  std::thread other;
  const FakeReply reply = s.call(
      "POST", "/generate", R"({"text":"hello","rid":"mine","stream":true,"sampling_params":{"max_new_tokens":4000}})",
      {}, [&](FakeExchange& exchange) {
        exchange.on_event = [&] {
          if (std::exchange(asked, true)) return;
          other = std::thread([&] {
            aborted =
                static_cast<int>(s.call("POST", "/abort_request", R"({"rid":"mine"})").json().at("aborted").as_int64());
            s.model().open();
          });
        };
      });
  first.join();
  ASSERT_TRUE(other.joinable());
  other.join();
  EXPECT_EQ(aborted, 1);
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.ended);
  ASSERT_GE(reply.events.size(), 2u);
  EXPECT_EQ(reply.events.back().second, "[DONE]");
  const json::value last = json::parse(reply.events[reply.events.size() - 2].second);
  EXPECT_EQ(last.at("meta_info").at("finish_reason").at("type"), "abort");
  EXPECT_LE(last.at("meta_info").at("completion_tokens").as_int64(), 2) << "the step that was under way is the last";
}

}  // namespace
}  // namespace carpool
