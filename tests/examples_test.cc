// The launch scripts of examples/: the two sides of a campaign differ in the routing alone, and serve what they name.
#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include "programs.h"
#include "server_process.h"

namespace carpool::end_to_end {
namespace {

const std::string kExamples = kSource + "/examples/";

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::istringstream text(slurp(path));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// One of the scripts on a free port. The environment names a policy that neither script means.
std::vector<std::string> script_environment() {
  return {std::string("CARPOOL=") + carpool_binary(), "PORT=0", "CARPOOL_OEA_K0=3", "CARPOOL_OEA_MIN_BATCH=1"};
}

const json::object& routing_of(const json::object& info) {
  return info.at("internal_states").as_array().at(0).as_object();
}

int64_t counter(const json::object& info, const char* name) {
  return routing_of(info).at("routing_decode").as_object().at(name).to_number<int64_t>();
}

bool is_option(const std::string& word) { return word.rfind("--", 0) == 0; }

// What `expression` finds in the guide; of each find its first group.
std::set<std::string> named_in_guide(const char* expression) {
  const std::string guide = slurp(kSource + "/docs/from-sglang.md");
  const std::regex regex(expression);
  std::set<std::string> found;
  for (std::sregex_iterator it(guide.begin(), guide.end(), regex), end; it != end; ++it) found.insert((*it)[1].str());
  return found;
}

// Eight requests that decode side by side.
constexpr const char* kEight = R"({"prompt": "The old lighthouse keeper", "n": 8, "max_tokens": 16, "seed": 1})";

TEST(Examples, TheTwoSidesDifferInTheRoutingLineAlone) {
  const auto baseline = lines_of(kExamples + "serve-baseline.sh"), oea = lines_of(kExamples + "serve-oea.sh");
  ASSERT_EQ(baseline.size(), oea.size());
  std::vector<std::string> differing;
  for (size_t i = 0; i < oea.size(); ++i) {
    if (baseline[i] == oea[i]) continue;
    differing.push_back(baseline[i]);
    differing.push_back(oea[i]);
  }
  EXPECT_EQ(differing,
            (std::vector<std::string>{"routing=(--policy topk)", "routing=(--policy oea:k0=5,min_batch=2)"}));
}

TEST(Examples, EachSideServesWhatItNamesAndItsCountersProveIt) {
  json::object infos[2];
  const char* scripts[] = {"serve-baseline.sh", "serve-oea.sh"};
  const char* policies[] = {"topk", "oea:k0=5"};  // canonical: 2 is the default of min_batch
  for (int side = 0; side < 2; ++side) {
    ServerProcess server({"/bin/bash", kExamples + scripts[side]}, script_environment());
    ASSERT_TRUE(server.ready()) << scripts[side];
    EXPECT_EQ(routing_of(server.json_of("GET", "/server_info")).at("policy"), policies[side]);
    const RawResponse answer = server.ask("POST", "/v1/completions", kEight);
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.header("x-carpool-routing").substr(0, std::string(policies[side]).size()), policies[side]);
    infos[side] = server.json_of("GET", "/server_info");
    EXPECT_EQ(server.stop(), 0);
  }
  const json::object &baseline = infos[0], &oea = infos[1];
  EXPECT_GT(counter(baseline, "layers"), 0);
  EXPECT_EQ(counter(baseline, "distinct_experts_sum"), counter(baseline, "distinct_experts_plain_sum"));
  EXPECT_EQ(counter(baseline, "rerouted_tokens"), 0);
  EXPECT_LT(counter(oea, "distinct_experts_sum"), counter(oea, "distinct_experts_plain_sum"));
  EXPECT_GT(counter(oea, "rerouted_tokens"), 0);
  // What else the servers say of themselves is the same.
  for (json::object& info : infos) {
    for (const char* differs : {"internal_states", "policy", "read_gbps", "memory"})
      EXPECT_EQ(info.erase(differs), 1u) << differs;
  }
  EXPECT_EQ(infos[0], infos[1]);
  EXPECT_EQ(infos[0].at("max_running_requests"), 2048);
  EXPECT_EQ(infos[0].at("disable_radix_cache"), true);
}

TEST(Examples, TheLaunchLineOfAnSglangCampaignIsTakenAsItStands) {
  const std::vector<std::string> silent = {"--served-model-name",
                                           "glm-5",
                                           "--reasoning-parser",
                                           "glm45",
                                           "--tool-call-parser",
                                           "glm47",
                                           "--max-running-requests",
                                           "2048",
                                           "--kv-cache-dtype",
                                           "auto",
                                           "--disable-radix-cache",
                                           "--host",
                                           "127.0.0.1",
                                           "--port",
                                           "0"};
  const std::vector<std::string> told = {"--trust-remote-code",
                                         "--tp-size",
                                         "8",
                                         "--mem-fraction-static",
                                         "0.92",
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
                                         "--num-continuous-decode-steps",
                                         "16"};
  std::vector<std::string> command = {carpool_binary(), "serve", "--model", kBooks};
  command.insert(command.end(), silent.begin(), silent.end());
  command.insert(command.end(), told.begin(), told.end());
  ServerProcess server(command, {"CARPOOL_OEA_K0=5", "CARPOOL_OEA_MIN_BATCH=2"});
  ASSERT_TRUE(server.ready());
  const json::object info = server.json_of("GET", "/server_info");
  EXPECT_EQ(routing_of(info).at("policy"), "oea:k0=5");
  EXPECT_EQ(info.at("served_model_name"), "glm-5");
  const std::string log = server.log();
  for (const std::string& word : told) {
    if (is_option(word)) {
      EXPECT_NE(log.find(word), std::string::npos) << word << "\n" << log;
    }
  }
  for (const std::string& word : silent) {
    if (is_option(word)) {
      EXPECT_EQ(log.find(word), std::string::npos) << word << "\n" << log;
    }
  }
}

TEST(Examples, TheGuideNamesEveryOptionThatIsTakenWithoutEffect) {
  const std::string guide = slurp(kSource + "/docs/from-sglang.md");
  std::istringstream help(carpool("serve --help").out);
  std::set<std::string> options;
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (line.rfind("Accepted for launch scripts", 0) == 0) listed = true;
    const size_t at = line.find("--");
    if (listed && at != std::string::npos) options.insert(line.substr(at, line.find_first_of(" ,", at) - at));
  }
  EXPECT_GT(options.size(), 20u);
  for (const std::string& option : options) EXPECT_NE(guide.find("`" + option), std::string::npos) << option;
}

TEST(Examples, TheGuideNamesEndpointsAndMetricsThatThereAre) {
  ServerProcess server({"/bin/bash", kExamples + "serve-oea.sh"}, script_environment());
  ASSERT_TRUE(server.ready());
  const std::string metrics = server.ask("GET", "/metrics").body;
  const std::set<std::string> names = named_in_guide("`(carpool:[a-z0-9_]+)`");
  EXPECT_GT(names.size(), 20u);
  for (const std::string& name : names) EXPECT_NE(metrics.find("# TYPE " + name + " "), std::string::npos) << name;
  const std::set<std::string> endpoints = named_in_guide("`((?:GET|POST) /[a-z0-9_/]+)`");
  EXPECT_GT(endpoints.size(), 20u);
  for (const std::string& endpoint : endpoints) {
    const size_t space = endpoint.find(' ');
    const std::string method = endpoint.substr(0, space);
    const int status = server.ask(method, endpoint.substr(space + 1), method == "POST" ? "{}" : "").status;
    EXPECT_TRUE(status != 404 && status != 405 && status < 500) << endpoint << " " << status;
  }
}

TEST(Examples, TheAbScriptMeasuresBothSidesOnOneServer) {
  const TemporaryFolder folder;
  const std::string command = std::string("CARPOOL=") + carpool_binary() +
                              " CONCURRENCY=4 REPEAT=1 INPUT_LEN=8 OUTPUT_LEN=8 /bin/bash " + kExamples +
                              "ab.sh --num-prompts 8 --json " + (folder / "ab.json") + " >" + (folder / "out") + " 2>" +
                              (folder / "err");
  ASSERT_EQ(std::system(command.c_str()), 0) << slurp(folder / "err");
  std::set<std::string> policies;
  const json::value result = parse_json(slurp(folder / "ab.json"), "ab.json");
  for (const json::value& row : result.at("results").as_array()) {
    policies.emplace(row.at("policy").as_string());
  }
  EXPECT_EQ(policies, (std::set<std::string>{"topk", "oea:k0=5,min_batch=2"}));
}

TEST(Examples, TheAbScriptFailsWithItsServer) {
  const TemporaryFolder folder;
  const std::string command = std::string("CARPOOL=") + carpool_binary() + " MODEL=" + (folder / "none") +
                              " /bin/bash " + kExamples + "ab.sh >" + (folder / "out") + " 2>" + (folder / "err");
  EXPECT_NE(std::system(command.c_str()), 0);
  EXPECT_NE(slurp(folder / "err").find("error: "), std::string::npos) << slurp(folder / "err");
}

}  // namespace
}  // namespace carpool::end_to_end
