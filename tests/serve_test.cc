// `carpool serve` as a process: its life from the first answer to the exit code, its options, and the embedded model
// behind it.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <string>

#include "end_to_end_util.h"
#include "model/canary.h"
#include "serve_process_util.h"

namespace carpool::end_to_end {
namespace {

// What the canary says after `prompt`.
std::string song(const std::string& prompt, int n) {
  const std::vector<int> tokens = CanaryModel::expected(std::vector<int>(prompt.begin(), prompt.end()), n);
  return {tokens.begin(), tokens.end()};
}

std::string completion(const std::string& prompt, int max_tokens, bool stream = false) {
  return json::serialize(json::object{{"prompt", prompt}, {"max_tokens", max_tokens}, {"stream", stream}});
}

TEST(Serve, AnswersForTheEmbeddedModelAndDrainsOnSigterm) {
  ServeProcess server({kBooks, "--policy", "oea:k0=5"});
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(json_of(server.get("/v1/models")).at("data").at(0).at("id"), "books-qwen3");
  const RawResponse reply = server.post("/v1/completions", completion("The old lighthouse keeper", 8));
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("x-carpool-routing"), "oea:k0=5; scope=tenant");
  const json::object info = json_of(server.get("/server_info"));
  EXPECT_EQ(info.at("internal_states").at(0).at("policy"), "oea:k0=5");
  EXPECT_GT(info.at("bytes_per_expert").as_double(), 0);
  EXPECT_GT(info.at("read_gbps").as_double(), 0) << "the bandwidth was probed";
  EXPECT_NE(server.err().find("context_per_request=1024"), std::string::npos) << server.err();
  EXPECT_NE(server.err().find("kv_pool_tokens="), std::string::npos);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.err();
  EXPECT_NE(server.err().find("stopped"), std::string::npos);
}

TEST(Serve, OpenStreamsEndWellWhenTheServerDrains) {
  ServeProcess server({"dummy:canary,step_us=1000", "--drain-timeout", "60"});
  RawClient client(server.port());
  client.send(request_text("POST", "/v1/completions", completion("drain me", 200, true)));
  EXPECT_EQ(client.read_head().status, 200);
  std::string text;
  std::string last;
  bool signalled = false;
  while (const auto event = client.read_event()) {
    if (!std::exchange(signalled, true)) server.signal(SIGTERM);
    if (event->data.empty()) continue;
    last = event->data;
    if (last == "[DONE]") continue;
    const json::object chunk = parse_json(last, "a chunk").as_object();
    if (!chunk.at("choices").as_array().empty()) text += chunk.at("choices").at(0).at("text").as_string().c_str();
  }
  EXPECT_EQ(last, "[DONE]");
  EXPECT_EQ(text, song("drain me", 200));
  EXPECT_EQ(server.wait(), 0) << server.err();
}

TEST(Serve, StreamsThatOutlastTheDrainGetAnErrorAndNoDone) {
  for (const char* step_us : {"20000", "2500000"}) {  // also when the engine notices the deadline late
    SCOPED_TRACE(step_us);
    ServeProcess server({std::string("dummy:canary,step_us=") + step_us, "--drain-timeout", "0"});
    RawClient client(server.port());
    client.send(request_text("POST", "/v1/completions", completion("too long", 4000, true)));
    EXPECT_EQ(client.read_head().status, 200);
    std::string last;
    bool signalled = false;
    while (const auto event = client.read_event()) {
      if (!std::exchange(signalled, true)) server.signal(SIGINT);
      if (!event->data.empty()) last = event->data;
    }
    ASSERT_NE(last, "[DONE]");
    EXPECT_EQ(parse_json(last, "the last event").at("error").at("code"), "draining");
    EXPECT_EQ(server.wait(), 0) << server.err();
  }
}

TEST(Serve, ASecondSignalEndsAtOnce) {
  ServeProcess server({"dummy:canary,step_us=20000", "--drain-timeout", "3600"});
  RawClient client(server.port());
  client.send(request_text("POST", "/v1/completions", completion("for ever", 4000, true)));
  EXPECT_EQ(client.read_head().status, 200);
  EXPECT_TRUE(client.read_event().has_value());
  server.signal(SIGTERM);
  server.wait_for_line("draining");
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.err();
}

TEST(Serve, KeysScopesPoliciesAndLimitsDoWhatTheirOptionsSay) {
  ServeProcess server({"--model",
                       "dummy:canary",
                       "--api-key",
                       "alpha",
                       "--api-key",
                       "beta",
                       "--admin-key",
                       "root",
                       "--routing-scope",
                       "shared",
                       "--allow-policy",
                       "oea:k0=4",
                       "--served-model-name",
                       "bird",
                       "--max-body-bytes",
                       "2048",
                       "--max-connections",
                       "64",
                       "--http-threads",
                       "1",
                       "--max-running-requests",
                       "4",
                       "--max-queued-requests",
                       "8",
                       "--chunked-prefill-size",
                       "32",
                       "--kv-tokens",
                       "2048",
                       "--step-target-ms",
                       "50",
                       "--disable-radix-cache",
                       "--log-format",
                       "json",
                       "--log-level",
                       "debug",
                       "--ping-interval",
                       "5",
                       "--cors-origin",
                       "https://chat.example",
                       "--allowed-host",
                       "bird.example"});
  const std::string alpha = "x-api-key: alpha\r\n", beta = "Authorization: Bearer beta\r\n",
                    root = "x-api-key: root\r\n";
  EXPECT_EQ(server.get("/v1/models").status, 401);
  EXPECT_EQ(json_of(server.get("/v1/models", alpha)).at("data").at(0).at("id"), "bird");
  const RawResponse wish =
      server.post("/v1/completions", R"({"prompt":"a","max_tokens":3,"routing":"oea:k0=4"})", beta);
  EXPECT_EQ(wish.status, 200) << wish.body;
  EXPECT_EQ(wish.header("x-carpool-routing"), "oea:k0=4; scope=shared");
  EXPECT_EQ(server.post("/v1/completions", completion(std::string(3000, 'a'), 1), alpha).status, 413);
  EXPECT_EQ(server.post("/admin/policy", R"({"policy":"oea:k0=2"})", alpha).status, 403);
  EXPECT_EQ(json_of(server.post("/admin/policy", R"({"policy":"oea:k0=2"})", root)).at("new"), "oea:k0=2");
  const json::object info = json_of(server.get("/server_info", alpha));
  EXPECT_EQ(info.at("max_running_requests"), 4);
  EXPECT_EQ(info.at("max_total_num_tokens"), 2048);
  EXPECT_EQ(info.at("disable_radix_cache"), true);
  EXPECT_EQ(info.at("api_keys"), 2);
  EXPECT_EQ(server.get("/v1/models", alpha + "Origin: https://chat.example\r\n").status, 200);
  EXPECT_EQ(server.get("/v1/models", alpha + "Origin: https://other.example\r\n").status, 403);
  EXPECT_EQ(RawClient(server.port()).ask("GET /health HTTP/1.1\r\nHost: bird.example\r\n\r\n").status, 200);
  EXPECT_EQ(RawClient(server.port()).ask("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 403);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
  EXPECT_EQ(server.err().find("alpha"), std::string::npos) << "keys are not logged";
  EXPECT_NE(server.err().find("{\"time\":"), std::string::npos);
}

TEST(Serve, TakesTheLaunchLineOfAnSglangScript) {
  ServeProcess server({"--model-path",
                       "dummy:canary",
                       "--served-model-name",
                       "glm",
                       "--reasoning-parser",
                       "glm45",
                       "--tool-call-parser",
                       "glm47",
                       "--trust-remote-code",
                       "--tp-size",
                       "8",
                       "--mem-fraction-static",
                       "0.92",
                       "--max-running-requests",
                       "2048",
                       "--kv-cache-dtype",
                       "auto",
                       "--quantization",
                       "modelopt_fp4",
                       "--attention-backend",
                       "flashinfer",
                       "--fp8-gemm-backend",
                       "cutlass",
                       "--nsa-decode-backend",
                       "trtllm",
                       "--nsa-prefill-backend",
                       "trtllm",
                       "--moe-runner-backend",
                       "flashinfer_cutlass",
                       "--disable-cuda-graph",
                       "--disable-radix-cache",
                       "--num-continuous-decode-steps",
                       "16",
                       "--host",
                       "127.0.0.1",
                       "--oea-k0",
                       "5",
                       "--max-total-tokens",
                       "65536",
                       "--chunk",
                       "64",
                       "--any-model-name"});
  EXPECT_EQ(json_of(server.get("/v1/models")).at("data").at(0).at("id"), "glm");
  const RawResponse other = server.post("/v1/completions", R"({"model":"another","prompt":"a","max_tokens":2})");
  EXPECT_EQ(other.status, 200) << other.body;
  EXPECT_EQ(other.header("x-carpool-routing"), "oea:k0=5; scope=tenant");
  const std::string err = server.err();
  EXPECT_NE(err.find("have no effect here"), std::string::npos) << err;
  for (const char* flag : {"--trust-remote-code", "--tp-size", "--mem-fraction-static", "--quantization",
                           "--nsa-decode-backend", "--disable-cuda-graph", "--num-continuous-decode-steps"}) {
    EXPECT_NE(err.find(flag), std::string::npos) << flag;
  }
  EXPECT_EQ(err.find("have no effect here"), err.rfind("have no effect here")) << "one warning";
  server.signal(SIGINT);
  EXPECT_EQ(server.wait(), 0);
}

TEST(Serve, TakesWhatElseScriptsSay) {
  ServeProcess server({"dummy:canary",
                       "--tp",
                       "2",
                       "--tensor-parallel-size",
                       "2",
                       "--dp-size",
                       "1",
                       "--dp",
                       "1",
                       "--data-parallel-size",
                       "1",
                       "--ep-size",
                       "1",
                       "--ep",
                       "1",
                       "--expert-parallel-size",
                       "1",
                       "--sampling-backend",
                       "x",
                       "--moe-a2a-backend",
                       "none",
                       "--cuda-graph-max-bs",
                       "8",
                       "--max-prefill-tokens",
                       "16384",
                       "--schedule-policy",
                       "fcfs",
                       "--schedule-conservativeness",
                       "1",
                       "--page-size",
                       "1",
                       "--stream-interval",
                       "1",
                       "--watchdog-timeout",
                       "300",
                       "--device",
                       "cpu",
                       "--disable-overlap-schedule",
                       "--enable-mixed-chunk",
                       "--enable-metrics",
                       "--enable-cache-report",
                       "--disable-custom-all-reduce",
                       "--skip-server-warmup"});
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Serve, EndsWithTheRightCodeWhenItCannotStart) {
  const auto code = [](const std::string& arguments, const std::string& environment = "") {
    const Outcome outcome = carpool("serve " + arguments, "", environment);
    EXPECT_NE(outcome.err.find("error: "), std::string::npos) << arguments << "\n" << outcome.err;
    return outcome.code;
  };
  EXPECT_EQ(code(""), 64);
  EXPECT_EQ(code("dummy:canary --no-such-option"), 64);
  EXPECT_EQ(code("dummy:canary --port 65536"), 64);
  EXPECT_EQ(code("dummy:canary --host 0.0.0.0"), 78);
  EXPECT_EQ(code("dummy:canary --port 0 --policy oea:k0=99"), 78) << "does not fit the model";
  EXPECT_EQ(code("dummy:canary,step=1 --port 0"), 78);
  EXPECT_EQ(code("no/such/model --port 0"), 66);
  EXPECT_EQ(code("dummy:canary --api-key-file /no/such/file"), 66);
  ServeProcess first({"dummy:canary"});
  EXPECT_EQ(code("dummy:canary --port " + std::to_string(first.port())), 69);
  EXPECT_EQ(code("dummy:canary --api-key a --api-key b --policy oea:k0=4"), 78);
  EXPECT_EQ(code("dummy:canary --insecure --host not-an-address"), 64);
  EXPECT_EQ(code("dummy:canary --max-total-tokens 1000000000000 --port 0"), 71);
}

TEST(Serve, HealthAnswersWhileTheModelLoads) {
  // Whatever the moment, the answer is one of the two.
  ServeProcess server({kBooks, "--quiet"}, /*wait_ready=*/false);
  const RawResponse early = server.get("/health");
  EXPECT_TRUE(early.status == 503 || early.status == 200) << early.status;
  if (early.status == 503) {
    EXPECT_EQ(json_of(early).at("status"), "loading");
    EXPECT_TRUE(json_of(early).at("percent").is_int64());
  }
  server.wait_for_line("ready: ");
  EXPECT_EQ(server.get("/health").status, 200);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

TEST(Serve, ASignalAtAnyMomentEndsItWithCodeZero) {
  ServeProcess server({kBooks}, /*wait_ready=*/false);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.err();
}

}  // namespace
}  // namespace carpool::end_to_end
