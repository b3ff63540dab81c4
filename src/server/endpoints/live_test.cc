// GET /live and the page that shows it.
#include <gtest/gtest.h>

#include <string>

#include "server/canary_service_test_util.h"

namespace carpool {
namespace {

TEST(Live, SaysWhatTheBatchAndItsRoutingDo) {
  ServiceOptions options;
  options.allowed_policies = {"oea:k0=5"};
  CanaryService s(options);
  const json::object before = s.call("GET", "/live").json();
  EXPECT_EQ(before.at("steps"), 0);
  EXPECT_TRUE(before.at("experts").is_null()) << "nothing is known before the first step";
  EXPECT_TRUE(before.at("layers").as_array().empty());
  EXPECT_EQ(before.at("allowed").at(0), "oea:k0=5");

  ASSERT_EQ(s.call("POST", "/v1/completions", R"({"prompt":"hello","max_tokens":9})").status, 200);
  const json::object after = s.call("GET", "/live").json();
  EXPECT_EQ(after.at("policy"), "topk");
  EXPECT_GE(after.at("steps").to_number<int>(), 8);
  EXPECT_EQ(after.at("rows").to_number<double>(), 1);
  const double top_k = after.at("top_k").to_number<double>();
  EXPECT_NEAR(after.at("experts").to_number<double>(), top_k, 1e-9) << "one row has its own experts";
  EXPECT_NEAR(after.at("plain").to_number<double>(), top_k, 1e-9);
  EXPECT_EQ(after.at("rerouted_share").to_number<double>(), 0);
  ASSERT_EQ(after.at("layers").as_array().size(), 1u);
  EXPECT_NEAR(after.at("layers").at(0).at("experts").to_number<double>(), top_k, 1e-9);
}

TEST(Page, IsThreeFilesThatRunNothingOfOthers) {
  ServiceOptions options;
  options.keys = {"secret"};
  CanaryService s(options);
  for (const char* path : {"/", "/page.js", "/page.css"}) {
    const FakeReply reply = s.call("GET", path, "", {});
    EXPECT_EQ(reply.status, 200) << path << " holds nothing secret";
    EXPECT_GT(reply.body.size(), 1000u) << path;
    const std::string policy = reply.header("content-security-policy");
    EXPECT_NE(policy.find("default-src 'none'"), policy.npos);
    EXPECT_EQ(policy.find("unsafe"), policy.npos);
  }
  EXPECT_EQ(s.call("GET", "/live", "", {}).status, 401) << "what it shows needs the key";
  const std::string html = s.call("GET", "/", "", {}).body;
  EXPECT_EQ(html.find("http"), html.npos) << "no other machine is asked for anything";
  EXPECT_EQ(html.find("onclick"), html.npos);
  EXPECT_NE(html.find("src=\"page.js\""), html.npos);
}

}  // namespace
}  // namespace carpool
