// Stock client packages with tools and reasoning, against a model that says what they tell it to (client_scripts.h).
#include <fmt/format.h>

#include "client_scripts.h"
#include "server/scripted_model_test_util.h"

namespace carpool::end_to_end {
namespace {

TEST(Clients, ToolsAndReasoningArriveAsThePackagesExpectThem) {
  if (!has_packages()) GTEST_SKIP() << kSkipped;
  const LiveServer server(scripted(kGlmTemplate, kGlmTags));
  expect_script_passes_at(fmt::format("http://127.0.0.1:{}", server.port()), "tools_client.py");
}

}  // namespace
}  // namespace carpool::end_to_end
