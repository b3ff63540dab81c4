// What `carpool serve` refuses before it loads anything, and what its options decide. The running server is tested in
// tests/serve_test.cc.
#include "cli/serve.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/error.h"

namespace carpool {
namespace {

ServeOptions canary() {
  ServeOptions options;
  options.model.model = "dummy:canary";
  return options;
}

// "kind: sentence" of the refusal; "" when there is none.
std::string refusal(const ServeOptions& options) {
  try {
    plan_serve(options);
    return "";
  } catch (const Error& e) {
    return std::to_string(e.exit_code()) + ": " + e.what();
  }
}

TEST(ServePlan, ServesThisMachineAloneByDefault) {
  const ServePlan plan = plan_serve(canary());
  EXPECT_EQ(plan.http.host, "127.0.0.1");
  EXPECT_EQ(plan.http.port, 8080);
  EXPECT_EQ(plan.policies, std::vector<std::string>{"topk"});
  EXPECT_EQ(plan.service.scope, RoutingScope::kTenant);
  EXPECT_EQ(plan.loop.max_queued, 4096);
  EXPECT_EQ(plan.service.max_waiting_work, 4096 + 64);
  EXPECT_TRUE(plan.engine.prefix_cache);
  EXPECT_TRUE(plan.engine.preempt);
  EXPECT_NE(std::find(plan.service.hosts.begin(), plan.service.hosts.end(), "localhost"), plan.service.hosts.end());
  EXPECT_TRUE(plan.service.keys.empty());
  EXPECT_TRUE(plan.warnings.empty());
}

TEST(ServePlan, KnowsWhichAddressesOnlyThisMachineReaches) {
  for (const char* host : {"localhost", "127.0.0.1", "127.1.2.3", "::1"}) EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "192.168.0.1", "12.7.0.1", ""}) EXPECT_FALSE(is_loopback(host)) << host;
}

TEST(ServePlan, RefusesAPublicAddressWithoutAKey) {
  ServeOptions options = canary();
  options.host = "0.0.0.0";
  EXPECT_EQ(refusal(options).substr(0, 4), "78: ");
  ServeOptions keyed = options;
  keyed.keys = {"alpha"};
  EXPECT_EQ(refusal(keyed), "");
  options.insecure = true;
  const ServePlan plan = plan_serve(options);
  ASSERT_EQ(plan.warnings.size(), 1u);
  EXPECT_NE(plan.warnings[0].find("--insecure"), std::string::npos);
  EXPECT_TRUE(plan.service.hosts.empty()) << "any name may lead here";
}

TEST(ServePlan, SeveralKeysIsolateUnlessAScopeIsChosen) {
  ServeOptions options = canary();
  options.keys = {"alpha", "beta"};
  EXPECT_EQ(plan_serve(options).service.scope, RoutingScope::kIsolated);
  EXPECT_EQ(plan_serve(options).loop.tenants, 2);
  options.scope = "tenant";
  EXPECT_EQ(plan_serve(options).service.scope, RoutingScope::kTenant);
  options.scope = "shared";
  EXPECT_EQ(plan_serve(options).service.scope, RoutingScope::kShared);
}

TEST(ServePlan, RefusesAPolicyThatWouldNeverApply) {
  ServeOptions options = canary();
  options.keys = {"alpha", "beta"};
  options.policy.spec = "oea:k0=5";
  EXPECT_NE(refusal(options).find("78: oea:k0=5 would never apply, because with several keys"), std::string::npos)
      << refusal(options);
  options.policy.spec = "topk";
  options.allowed_policies = {"oea:k0=4"};
  EXPECT_NE(refusal(options).find("oea:k0=4 would never apply"), std::string::npos);
  options.scope = "tenant";
  EXPECT_EQ(refusal(options), "");
}

TEST(ServePlan, PoliciesAreCanonicalAndDistinct) {
  ServeOptions options = canary();
  options.policy.oea_k0 = 5;
  options.allowed_policies = {"oea:min_batch=4,k0=3", "prune:k0=2"};
  const ServePlan plan = plan_serve(options);
  EXPECT_EQ(plan.policies, (std::vector<std::string>{"oea:k0=5", "oea:k0=3,min_batch=4", "prune:k0=2"}));
  EXPECT_EQ(plan.service.allowed_policies, (std::vector<std::string>{"oea:k0=3,min_batch=4", "prune:k0=2"}));
  options.allowed_policies = {"prune:k0=2", "prune:k0=2"};
  EXPECT_EQ(refusal(options).substr(0, 4), "78: ");
  options.allowed_policies = {"topk"};
  EXPECT_EQ(refusal(options).substr(0, 4), "78: ");
  options.allowed_policies = {"fast"};
  EXPECT_EQ(refusal(options).substr(0, 4), "78: ");
}

TEST(ServePlan, KeysComeFromOptionsFileAndEnvironment) {
  char name[] = "/tmp/carpool_keys_XXXXXX";
  ASSERT_GE(::mkstemp(name), 0);
  std::ofstream(name) << "file-one\n\nfile-two\r\n";
  ServeOptions options = canary();
  options.scope = "tenant";
  options.keys = {"typed"};
  options.key_file = name;
  EXPECT_EQ(plan_serve(options).service.keys, (std::vector<std::string>{"typed", "file-one", "file-two"}));
  ::setenv("CARPOOL_API_KEY", "from-environment", 1);
  ::setenv("CARPOOL_ADMIN_KEY", "root-environment", 1);
  EXPECT_EQ(plan_serve(options).service.keys.size(), 3u) << "options come before the environment";
  const ServePlan plan = plan_serve(canary());
  EXPECT_EQ(plan.service.keys, std::vector<std::string>{"from-environment"});
  EXPECT_EQ(plan.service.admin_key, "root-environment");
  options.admin_key = "root-typed";
  EXPECT_EQ(plan_serve(options).service.admin_key, "root-typed");
  ::unsetenv("CARPOOL_API_KEY");
  ::unsetenv("CARPOOL_ADMIN_KEY");
  std::ofstream(name, std::ios::trunc) << "\n";
  EXPECT_EQ(refusal(options).substr(0, 4), "78: ") << "a file without keys";
  options.key_file = std::string(name) + ".absent";
  EXPECT_EQ(refusal(options).substr(0, 4), "66: ");
  ::unlink(name);
}

TEST(ServePlan, RefusesKeysThatNoHeaderCarriesAndNeverSaysThem) {
  for (const std::string bad : {"", "two words", "tab\tkey", "caf\xc3\xa9"}) {
    ServeOptions options = canary();
    options.keys = {bad};
    const std::string sentence = refusal(options);
    EXPECT_EQ(sentence.substr(0, 4), "64: ") << bad;
    if (!bad.empty()) {
      EXPECT_EQ(sentence.find(bad), std::string::npos);
    }
  }
  ServeOptions twice = canary();
  twice.keys = {"alpha", "alpha"};
  EXPECT_EQ(refusal(twice).substr(0, 4), "78: ");
  ServeOptions same = canary();
  same.keys = {"alpha"};
  same.admin_key = "alpha";
  EXPECT_EQ(refusal(same).substr(0, 4), "78: ");
}

TEST(ServePlan, TheModelIsGivenOnce) {
  ServeOptions options;
  EXPECT_EQ(refusal(options), "64: MODEL is required");
  options.model_flag = "dummy:canary";
  EXPECT_EQ(plan_serve(options).model, "dummy:canary");
  options.model.model = "dummy:other";
  EXPECT_EQ(refusal(options).substr(0, 4), "64: ");
}

TEST(ServePlan, TheModelsNameIsItsFolderFileOrShape) {
  const auto name_of = [](const std::string& model, const std::string& given = "") {
    ServeOptions options;
    options.model.model = model;
    options.served_model_name = given;
    return plan_serve(options).service.served_model_name;
  };
  EXPECT_EQ(name_of("models/books-qwen3"), "books-qwen3");
  EXPECT_EQ(name_of("models/books-qwen3/"), "books-qwen3");
  EXPECT_EQ(name_of("/a/b/Model-Q4_0.gguf"), "Model-Q4_0");
  EXPECT_EQ(name_of("dummy:qwen3-30b-a3b,layers=2"), "qwen3-30b-a3b,layers=2");
  EXPECT_EQ(name_of("."), "model");
  EXPECT_EQ(name_of("models/books-qwen3", "org/name"), "org/name");
}

TEST(ServePlan, NumbersHaveRanges) {
  const auto bad = [](const auto& change) {
    ServeOptions options = canary();
    change(options);
    return refusal(options).substr(0, 4);
  };
  EXPECT_EQ(bad([](ServeOptions& o) { o.port = 65536; }), "64: ");
  EXPECT_EQ(bad([](ServeOptions& o) { o.port = -1; }), "64: ");
  EXPECT_EQ(bad([](ServeOptions& o) { o.max_queued = 0; }), "64: ");
  EXPECT_EQ(bad([](ServeOptions& o) { o.max_batch = 0; }), "64: ");
  EXPECT_EQ(bad([](ServeOptions& o) { o.chunk = 0; }), "64: ");
  EXPECT_EQ(bad([](ServeOptions& o) { o.drain_timeout = -1; }), "64: ");
  EXPECT_EQ(bad([](ServeOptions& o) { o.ping_interval = 0; }), "64: ");
  EXPECT_EQ(bad([](ServeOptions& o) { o.max_body_bytes = 1; }), "64: ");
}

TEST(ServePlan, WhatHasNoEffectIsNamedInOneWarning) {
  ServeOptions options = canary();
  options.without_effect = {"--tp-size", "--disable-cuda-graph"};
  EXPECT_EQ(plan_serve(options).warnings,
            (std::vector<std::string>{"--tp-size, --disable-cuda-graph have no effect here"}));
}

TEST(ServePlan, ParsersAreNamesOfTheLists) {
  ServeOptions options = canary();
  EXPECT_EQ(plan_serve(options).service.reasoning_parser, "auto");
  options.reasoning_parser = "glm45";
  options.tool_call_parser = "glm47";
  EXPECT_EQ(plan_serve(options).service.reasoning_parser, "glm45");
  EXPECT_EQ(plan_serve(options).service.tool_call_parser, "glm47");
  EXPECT_TRUE(plan_serve(options).warnings.empty());
  options.tool_call_parser = "glm48";
  EXPECT_THROW(plan_serve(options), Error);
  options.tool_call_parser = "gpt-oss";
  EXPECT_THROW(plan_serve(options), Error) << "not beside glm45";
}

TEST(ServePlan, ServerArgsTellNoKeys) {
  ServeOptions options = canary();
  options.keys = {"alpha-secret"};
  options.admin_key = "root-secret";
  const std::string args = json::serialize(plan_serve(options).service.server_args);
  EXPECT_EQ(args.find("secret"), std::string::npos);
  EXPECT_NE(args.find("\"api_keys\":1"), std::string::npos);
}

}  // namespace
}  // namespace carpool
