// A server with less than it needs: too few key-value blocks, too many clients, a drain in the middle, a model file
// that shrinks. Known problems T29, T32, T33 and T35, catalogue O2, O3, F2 and F5.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "end_to_end_util.h"
#include "programs.h"
#include "serve_canary_util.h"

namespace carpool::end_to_end {
namespace {

// The report of carpool_soak on `server`, which must find nothing wrong. Memory is not judged: sanitizers keep it.
json::value soak(ServeProcess& server, const std::string& arguments) {
  const TemporaryFolder folder;
  const std::string command =
      soak_binary() + " http://127.0.0.1:" + std::to_string(server.port()) + " --pid " + std::to_string(server.pid()) +
      " --health-p99-ms 0 --refusal-p99-ms 0 --throughput-share 0 --rss-slack-mib 4096 --slow-pause 0.03 " + arguments +
      " --json - >" + (folder / "out") + " 2>" + (folder / "err");
  const int status = std::system(("timeout 300 " + command).c_str());
  const std::string out = slurp(folder / "out");
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0)
      << out.substr(0, 20000) << slurp(folder / "err") << server.err().substr(0, 4000);
  return out.empty() ? json::value(json::object{}) : parse_json(out, "report");
}

TEST(ServePressure, SixtyFourCarelessClientsGetTheirOwnTextsAndLeaveNothingBehind) {
  ServeProcess server({"dummy:canary", "--max-running-requests", "16", "--kv-tokens", "8192"});
  const json::value report = soak(server, "--streams 64 --seconds 5 --warmup 2 --seed 7");
  const json::value& load = report.at("load");
  EXPECT_EQ(load.at("wrong_texts"), 0);
  EXPECT_GT(load.at("right_texts").as_int64(), 16) << "hundreds, on an idle machine";
  int64_t left = 0;
  for (const auto& [outcome, n] : load.at("outcomes").as_object())
    left += outcome.starts_with("left_") ? n.as_int64() : 0;
  EXPECT_GT(left, 0);
  EXPECT_FALSE(load.at("statuses").as_object().contains("500"));
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.err();
}

TEST(ServePressure, TheEmbeddedModelGivesIsolatedTextsUnderLoadAsWhenIdle) {
  ServeProcess server({kBooks, "--policy", "oea:k0=3", "--routing-scope", "shared", "--max-running-requests", "8",
                       "--kv-tokens", "8192"});
  const json::value report = soak(server, "--streams 12 --seconds 4 --warmup 0 --cases 6 --seed 3");
  EXPECT_EQ(report.at("load").at("wrong_texts"), 0);
  EXPECT_GT(report.at("load").at("right_texts").as_int64(), 0);
}

TEST(ServePressure, WhoIsTooMuchIsRefusedWithRetryAfterAndTheRestIsServed) {
  ServeProcess server({"dummy:canary,step_us=1000", "--max-running-requests", "8", "--max-queued-requests", "16"});
  const json::value report = soak(server, "--overload 200 --saturation 16 --seconds 3");
  const json::value& overload = report.at("overload");
  EXPECT_GT(overload.at("first_refusal_ms").at("count").as_int64(), 0);
  EXPECT_GT(overload.at("overloaded").at("outcomes").at("refused_overloaded").as_int64(), 0);
  EXPECT_GT(overload.at("overloaded").at("outcomes").at("complete").as_int64(), 0);
  EXPECT_EQ(overload.at("overloaded").at("wrong_texts"), 0);
}

TEST(ServePressure, ManyLongRequestsInATinyPoolAllEndWithTheirOwnText) {
  // 64 blocks; each request comes to need 31 of them, and 16 may run.
  ServeProcess server({"dummy:canary", "--kv-tokens", "1024", "--max-running-requests", "16"});
  std::vector<Ask> asks;
  for (int i = 0; i < 40; ++i) {
    asks.push_back({canary_prompt(i % 20, 90), 400, i % 3 != 0, i % 2 == 0, ""});  // every prompt twice
  }
  std::vector<std::unique_ptr<RawClient>> clients;
  for (const Ask& ask : asks) {
    clients.push_back(std::make_unique<RawClient>(server.port(), 300));
    clients.back()->send(ask.bytes());
  }
  for (size_t i = 0; i < asks.size(); ++i) {
    const Got got = read_answer(*clients[i], asks[i]);
    EXPECT_EQ(got.status, 200);
    EXPECT_EQ(got.text, asks[i].text()) << i;
    EXPECT_EQ(got.finish, "length");
  }
  const std::string metrics = server.get("/metrics").body;
  const size_t at = metrics.find("\ncarpool:num_preemptions_total{");
  ASSERT_NE(at, std::string::npos) << metrics;
  const size_t value = metrics.find("} ", at);
  EXPECT_GT(std::atof(metrics.c_str() + value + 2), 0) << "the pool was too small";
  expect_nothing_left(server);
  const RawResponse never = server.post("/generate", R"({"text":")" + std::string(1100, 'a') + R"("})");
  EXPECT_EQ(never.status, 400) << "could not fit if it were alone";
  EXPECT_EQ(json_of(never).at("error").at("code"), "context_length_exceeded");
}

TEST(ServePressure, WhileDrainingNewRequestsAreRefusedAndTheOpenOneEndsWell) {
  ServeProcess server({"dummy:canary,step_us=2000", "--drain-timeout", "100"});
  const Ask ask{canary_prompt(1, 50), 3900, true, true, ""};
  RawClient open(server.port(), 120), half(server.port(), 120);
  open.send(ask.bytes());
  Got got = read_answer(open, ask, 2);
  const std::string body = R"({"prompt":"late"})";
  half.send("POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: " +
            std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(half.read_head().status, 100) << "the server has taken the head";
  server.signal(SIGTERM);
  server.wait_for_line("draining");
  bool taken = true;
  for (int looks = 0; taken && looks < 3000; ++looks) {
    try {
      EXPECT_EQ(RawClient(server.port()).ask(request_text("GET", "/health")).status, 503);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } catch (const std::runtime_error&) {
      taken = false;
    }
  }
  EXPECT_FALSE(taken) << "nobody is taken any more";
  half.send(body);
  const RawResponse refused = half.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(json_of(refused).at("error").at("code"), "draining");
  EXPECT_FALSE(refused.header("retry-after").empty());
  read_rest(open, ask, got);
  EXPECT_EQ(got.text, ask.text());
  EXPECT_TRUE(got.done);
  EXPECT_EQ(server.wait(), 0) << server.err();
}

TEST(ServePressure, AModelFileThatShrinksUnderAServerEndsItWithOneSentence) {
  const TemporaryFolder folder;
  const std::string model = folder / "model";
  fs::copy(kBooks, model, fs::copy_options::recursive);
  ServeProcess server({model, "--kv-tokens", "2048"});
  const std::string body = R"({"prompt":"The old lighthouse keeper","max_tokens":4,"temperature":0})";
  EXPECT_EQ(server.post("/v1/completions", body).status, 200);
  fs::resize_file(model + "/model.safetensors", 4096);
  // Rows of the embedding are read where the file is mapped.
  EXPECT_THROW(server.post("/v1/completions", R"({"prompt":"Another text altogether","max_tokens":4})"),
               std::runtime_error);
  server.wait_for_line("error: a mapped model file became shorter or unreadable (exit 74)");
  EXPECT_EQ(server.wait(), 74) << server.err();
}

}  // namespace
}  // namespace carpool::end_to_end
