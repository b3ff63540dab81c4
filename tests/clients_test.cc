// Stock client packages against `carpool serve`: the scripts of python/clients, each of which checks a running server
// and fails at the first difference. The `openai` and `anthropic` packages are optional; without them their tests are
// skipped. The interpreter is $CARPOOL_PYTHON, else that of .venv, else python3.
#include "client_scripts.h"
#include "programs.h"
#include "server_process.h"

namespace carpool::end_to_end {
namespace {

void expect_script_passes(const ServerProcess& server, const std::string& script, const std::string& options = "") {
  ASSERT_TRUE(server.ready());
  expect_script_passes_at(server.url(), script, options);
}

std::vector<std::string> serve(const std::string& model, const std::vector<std::string>& options = {}) {
  std::vector<std::string> command = {carpool_binary(), "serve", model, "--port", "0"};
  command.insert(command.end(), options.begin(), options.end());
  return command;
}

TEST(Clients, ThePageChatsAndShowsWhatAPolicySaves) {
  if (std::system((python() + " -c 'import playwright' >/dev/null 2>&1 && command -v chromium >/dev/null").c_str())) {
    GTEST_SKIP() << "the package playwright or the program chromium is not installed";
  }
  ServerProcess server(serve(kBooks, {"--admin-key", "root", "--kv-tokens", "32768"}));
  expect_script_passes(server, "page_check.py", "--admin-key root");
  EXPECT_EQ(server.stop(), 0);
}

// Steps that take so long that nothing ends by itself while a test looks at it.
constexpr const char* kSlowCanary = "dummy:canary,step_us=20000";

TEST(Clients, LmEvalGetsTheScoresThatStepsDecodingAndTransformersGive) {
  ServerProcess server(serve(kBooks, {"--policy", "oea:k0=5"}));
  expect_script_passes(server, "lm_eval_shape.py", "--golden " + kSource + "/tests/golden/books-qwen3.json");
  EXPECT_EQ(server.stop(), 0);
}

TEST(Clients, TheOpenAiPackageGetsWhatItAsksFor) {
  if (!has_packages()) GTEST_SKIP() << kSkipped;
  ServerProcess server(serve(kBooks, {"--policy", "oea:k0=5", "--api-key", "first"}));
  expect_script_passes(server, "openai_client.py",
                       "--api-key first --only models,chat,choices,completions,structure,errors,keys");
  EXPECT_EQ(server.stop(), 0);
}

TEST(Clients, TheAnthropicPackageGetsWhatItAsksFor) {
  if (!has_packages()) GTEST_SKIP() << kSkipped;
  ServerProcess server(serve(kBooks, {"--policy", "oea:k0=5", "--api-key", "first"}));
  expect_script_passes(server, "anthropic_client.py", "--api-key first --only messages,stream,errors");
  EXPECT_EQ(server.stop(), 0);
}

TEST(Clients, LeavingEndsTheWork) {
  if (!has_packages()) GTEST_SKIP() << kSkipped;
  ServerProcess server(serve(kSlowCanary));
  expect_script_passes(server, "openai_client.py", "--only keys,cancel");
  expect_script_passes(server, "anthropic_client.py", "--only cancel");
  EXPECT_EQ(server.stop(), 0);
}

TEST(Clients, AFullQueueRefusesTheNextWith503AndRetryAfter) {
  if (!has_packages()) GTEST_SKIP() << kSkipped;
  ServerProcess server(serve(kSlowCanary, {"--max-running-requests", "2", "--max-queued-requests", "4"}));
  expect_script_passes(server, "openai_client.py", "--only overload");
  EXPECT_EQ(server.stop(), 0);
}

TEST(Clients, AFullShareOfOneKeyRefusesItsNextWith429AndLeavesRoomForOthers) {
  if (!has_packages()) GTEST_SKIP() << kSkipped;
  ServerProcess server(serve(kSlowCanary, {"--max-running-requests", "2", "--max-queued-requests", "8", "--api-key",
                                           "first", "--api-key", "second"}));
  expect_script_passes(server, "openai_client.py", "--api-key first --other-key second --only overload");
  EXPECT_EQ(server.stop(), 0);
}

}  // namespace
}  // namespace carpool::end_to_end
