// carpool routing, through the functions that the command calls: JSON in, JSON out.
#include "cli/routing.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include "base/source_dir_test_util.h"

namespace carpool {
namespace {

json::value ask(const std::string& text) { return score_request(text, "request"); }

std::string error(const std::string& text, ErrorKind kind = ErrorKind::kMalformed) {
  try {
    ask(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << text;
    return e.what();
  }
  return "accepted";
}

json::value parsed(const std::string& text) { return parse_json(text, "expected"); }

TEST(RoutingCommand, RoutesTheHandCheckedBatch) {
  // Three tokens with k0 = 1: the union is {0, 1, 3}.
  const json::value answer = ask(R"({"scoring": "sigmoid", "top_k": 3, "policy": "oea:k0=1", "logits": [
      [30, 25, 15, 10, 8, 6, 4, 2], [5, 40, 2, 3, 30, 10, 6, 4], [10, 5, 10, 35, 5, 20, 10, 5]], "bias":
      [0, 0, 0, 0, 0, 0, 0, 0]})");
  // Sigmoids of such logits are all 1 in float32 from 17 up: ties go to the lower id.
  EXPECT_EQ(answer.at("experts").at(0), parsed("[0, 1, 3]"));
  const json::value softmax = ask(R"({"top_k": 3, "policy": "oea:k0=1", "logits": [
      [30, 25, 15, 10, 8, 6, 4, 2], [5, 40, 2, 3, 30, 10, 6, 4], [10, 5, 10, 35, 5, 20, 10, 5]]})");
  EXPECT_EQ(softmax.at("experts"), parsed("[[0, 1, 3], [1, 0, 3], [3, 0, 1]]"));
  EXPECT_EQ(softmax.at("active"), parsed("[0, 1, 3]"));
  EXPECT_EQ(softmax.at("active_plain"), parsed("[0, 1, 2, 3, 4, 5]"));
  EXPECT_EQ(softmax.at("plain_reason"), parsed("[null, null, null]"));
}

TEST(RoutingCommand, TheDefaultIsPlainRoutingOfDecodeRows) {
  const json::value answer = ask(R"({"logits": [[0, 0, -1]], "top_k": 2})");
  EXPECT_EQ(answer, parsed(R"({"experts": [[0, 1]], "weights": [[0.5, 0.5]], "active": [0, 1],
                               "active_plain": [0, 1], "plain_reason": ["policy"]})"));
}

TEST(RoutingCommand, RowsSayWhoTakesPart) {
  const json::value answer = ask(R"({"logits": [[3, 2, 1], [1, 2, 3], [1, 3, 2], [3, 2, 1], [1, 2, 3]], "top_k": 2,
      "policy": "oea:k0=1,guard=off", "rows": [{}, {"phase": "decode", "group": 0}, {"phase": "prefill"},
      {"isolated": true}, {"phase": "pad"}]})");
  EXPECT_EQ(answer.at("experts"), parsed("[[0, 2], [2, 0], [1, 2], [0, 1], []]"));
  EXPECT_EQ(answer.at("plain_reason"), parsed(R"([null, null, "phase", "isolated", "phase"])"));
  EXPECT_EQ(answer.at("weights").at(4), parsed("[]"));
}

TEST(RoutingCommand, GroupsAreScopes) {
  const json::value answer = ask(R"({"logits": [[3, 2, 1], [1, 2, 3]], "top_k": 2, "policy":
      "oea:k0=1,guard=off,min_batch=1", "rows": [{"group": 1}, {"group": -2}]})");
  EXPECT_EQ(answer.at("experts"), parsed("[[0], [2]]"));
}

TEST(RoutingCommand, EveryScoringKeyChangesTheAnswer) {
  const std::string logits = R"("logits": [[2, 1, 0, 1.5]], "top_k": 2)";
  const json::value plain = ask("{" + logits + "}");
  for (const char* extra : {R"("bias": [0, 0, 9, 0])", R"("scoring": "sigmoid")", R"("renormalize": false)",
                            R"("n_group": 2, "topk_group": 1)", R"("routed_scaling_factor": 2.5)"}) {
    EXPECT_NE(ask("{" + logits + "," + extra + "}"), plain) << extra;
  }
  const std::string grouped = R"({"logits": [[2, 2, 3, -9]], "top_k": 2, "n_group": 2, "scoring": "sigmoid")";
  EXPECT_EQ(ask(grouped + "}").at("experts"), parsed("[[0, 1]]"));
  EXPECT_EQ(ask(grouped + R"(, "group_score": "max"})").at("experts"), parsed("[[2, 3]]"));
  EXPECT_EQ(ask(grouped + R"(, "group_score": "top2"})").at("experts"), parsed("[[0, 1]]"));
  const std::string unnormalised = "{" + logits + R"(, "renormalize": false, "scoring": )";
  EXPECT_NE(ask(unnormalised + R"("softmax"})"), ask(unnormalised + R"("softmax_topk"})"));
}

TEST(RoutingCommand, TablesComeWithTheRequestInPlaceOfTheFile) {
  const std::string logits = R"({"top_k": 2, "logits": [[3, 2, 1], [1, 2, 3]], "policy": )";
  const auto with = [&](const char* policy, const char* tables) {
    return ask(logits + '"' + policy + R"(", "tables": )" + tables + "}").at("experts");
  };
  const char* kAlike = R"({"similarity": [[1, 0, 0], [0.5, 1, 0.9], [0, 0, 1]]})";
  EXPECT_EQ(with("sere:table=f,k0=1", kAlike), parsed("[[0, 2], [2]]")) << "1 goes to 2 and becomes its slot";
  EXPECT_EQ(with("oea:k0=table,table=f,guard=off", R"({"k0": 1})"), parsed("[[0, 2], [2, 0]]"));
  EXPECT_EQ(with("cache_prior:table=f,lambda=9", R"({"resident": [0, 0, 1], "rank_range": 1})"),
            parsed("[[0, 2], [2, 1]]"));
  EXPECT_EQ(ask(logits + R"("sere:table=f,k0=1", "layer": 3, "tables": )" + kAlike + "}").at("experts"),
            parsed("[[0, 2], [2]]"));
  EXPECT_EQ(ask(logits + R"("oea:k0=2/1,guard=off", "layer": 1})").at("experts"), parsed("[[0, 2], [2, 0]]"));
  EXPECT_NE(error(logits + R"("oea:k0=2/1", "layer": 2})").find("values for 2 layers"), std::string::npos);
  EXPECT_NE(error(logits + R"("topk", "tables": {"k0": 1}})").find("the policy needs none"), std::string::npos);
  const std::pair<const char*, const char*> cases[] = {
      {R"({"similarity": [[1, 0], [0, 1]]})", "similarity has 4 entries, not 9"},
      {R"({"similarity": [1, 0]})", "must be an array of numbers"},
      {R"({"similarity": [[1, 0, "nan"], [0, 1, 0], [0, 0, 1]]})", "entry 2 of similarity is nan"},
      {R"({"alike": []})", "unknown key"},
      {R"({"resident": [2, 0, 0]})", "must hold 0 and 1"},
      {R"({"k0": 3})", "must be 1 to 2"}};
  for (const auto& [tables, what] : cases) {
    EXPECT_NE(error(logits + R"("sere:table=f,k0=1", "tables": )" + tables + "}").find(what), std::string::npos)
        << tables;
  }
  EXPECT_NE(error(logits + R"("sere:table=f,k0=1", "tables": {"k0": 1}})", ErrorKind::kConfig).find("has no table"),
            std::string::npos);
  EXPECT_NE(error(logits + R"("sere:table=/nowhere/f,k0=1"})", ErrorKind::kMissing).find("/nowhere/f"),
            std::string::npos);
}

TEST(RoutingCommand, NumbersThatAreNotFiniteAreStrings) {
  const json::value answer =
      ask(R"({"logits": [["nan", "inf", "-inf", 1], ["nan", "nan", "-inf", "nan"]], "top_k": 3})");
  EXPECT_EQ(answer.at("experts"), parsed("[[1, 3], []]"));
  EXPECT_EQ(answer.at("weights"), parsed("[[1.0, 0.0], []]"));
  const json::value huge = ask(R"({"logits": [[0, 0]], "top_k": 2, "renormalize": false, "scoring": "sigmoid",
                                   "routed_scaling_factor": 3e38})");
  EXPECT_EQ(huge.at("weights"), json::value({{1.5e38f, 1.5e38f}}));
}

TEST(RoutingCommand, WeightsRoundTripThroughText) {
  const json::value answer = ask(R"({"logits": [[0.1, 0.2, 0.3, 0.7]], "top_k": 4})");
  const json::value again = parsed(json::serialize(answer));
  for (size_t i = 0; i < 4; ++i) {
    const double d = again.at("weights").at(0).at(i).to_number<double>();
    EXPECT_EQ(static_cast<double>(static_cast<float>(d)), d);
    EXPECT_EQ(d, answer.at("weights").at(0).at(i).as_double());
  }
}

TEST(RoutingCommand, EveryBadRequestEndsInOneSentenceWithItsKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"top_k": 1})", "request: \"logits\": missing"},
      {R"({"logits": [], "top_k": 1})", "request: \"logits\": must have 1 to 65536 rows, got 0"},
      {R"({"logits": [[]], "top_k": 1})", "request: \"logits[0]\": must have 1 to 4096 experts, got 0"},
      {R"({"logits": [1], "top_k": 1})", "request: \"logits[0]\": must be an array of numbers"},
      {R"({"logits": [[1, 2], [1]], "top_k": 1})", "request: \"logits[1]\": has 1 experts, the first row has 2"},
      {R"({"logits": [[1, null]], "top_k": 1})",
       "request: \"logits[0][1]\": must be a number, \"nan\", \"inf\" or \"-inf\""},
      {R"({"logits": [[1, "NaN"]], "top_k": 1})",
       "request: \"logits[0][1]\": must be a number, \"nan\", \"inf\" or \"-inf\""},
      {R"({"logits": [[1, 1e39]], "top_k": 1})", "request: \"logits[0][1]\": is too large for float32"},
      {R"({"logits": [[1, 2]]})", "request: \"top_k\": missing"},
      {R"({"logits": [[1, 2]], "top_k": 0})", "request: \"top_k\": must be 1 to 2, got 0"},
      {R"({"logits": [[1, 2]], "top_k": 3})", "request: \"top_k\": must be 1 to 2, got 3"},
      {R"({"logits": [[1, 2]], "top_k": 1, "scoring": "softmin"})",
       "request: \"scoring\": must be softmax or softmax_topk or sigmoid, got \"softmin\""},
      {R"({"logits": [[1, 2]], "top_k": 1, "group_score": "sum"})",
       "request: \"group_score\": must be top2 or max, got \"sum\""},
      {R"({"logits": [[1, 2]], "top_k": 1, "n_group": 3})", "request: n_group 3 does not divide 2 experts"},
      {R"({"logits": [[1, 2]], "top_k": 1, "topk_group": 2})", "request: topk_group 2 must be 1 to n_group 1"},
      {R"({"logits": [[1, 2]], "top_k": 1, "bias": [1]})", "request: the selection bias has 1 values for 2 experts"},
      {R"({"logits": [[1, 2]], "top_k": 1, "bias": []})", "request: \"bias\": has 0 values for 2 experts"},
      {R"({"logits": [[1, 2]], "top_k": 1, "bias": [1, "inf"]})",
       "request: the selection bias of expert 1 is not finite"},
      {R"({"logits": [[1, 2]], "top_k": 1, "rows": []})", "request: \"rows\": has 0 entries, logits has 1 rows"},
      {R"({"logits": [[1, 2]], "top_k": 1, "rows": [{"phase": "verify"}]})",
       "request: rows[0]: \"phase\": must be decode or prefill or pad, got \"verify\""},
      {R"({"logits": [[1, 2]], "top_k": 1, "rows": [{"fase": "pad"}]})",
       "request: rows[0]: \"fase\": unknown key; known keys: phase, isolated, group"},
      {R"({"logits": [[1, 2]], "top_k": 1, "k": 1})",
       "request: \"k\": unknown key; known keys: logits, bias, scoring, top_k, renormalize, n_group, topk_group, "
       "group_score, routed_scaling_factor, rows, policy, layer, tables"},
  };
  for (const auto& [text, sentence] : cases) EXPECT_EQ(error(text), sentence) << text;
  for (const char* text : {"", "[]", "{", R"({"top_k": 1, "top_k": 1})", R"({"logits": [[1e999]], "top_k": 1})"}) {
    EXPECT_EQ(error(text).rfind("request", 0), 0u) << text;
  }
}

TEST(RoutingCommand, APolicyThatDoesNotExistOrFitIsASettingsError) {
  EXPECT_EQ(error(R"({"logits": [[1, 2]], "top_k": 1, "policy": "oea:k0=2"})", ErrorKind::kConfig),
            "request: \"policy\": policy oea:k0=2: k0 2 is more than the model's 1 experts per token");
  EXPECT_EQ(error(R"({"logits": [[1, 2]], "top_k": 1, "policy": "none"})", ErrorKind::kConfig)
                .rfind("request: \"policy\": unknown policy \"none\"; known policies: topk", 0),
            0u);
}

TEST(RoutingCommand, LimitsOnSizesAreChecked) {
  std::string wide = R"({"top_k": 1, "logits": [[0)";
  for (int i = 0; i < 4096; ++i) wide += ",0";
  EXPECT_EQ(error(wide + "]]}"), "request: \"logits[0]\": must have 1 to 4096 experts, got 4097");
  std::string tall = R"({"top_k": 1, "logits": [[0])";
  for (int i = 0; i < 65536; ++i) tall += ",[0]";
  EXPECT_EQ(error(tall + "]}"), "request: \"logits\": must have 1 to 65536 rows, got 65537");
}

// A weight is a quotient of sums of up to E exponentials, each within 2 units of its last place on either side; every
// addition and the quotient round once more. All terms are positive, so errors stay relative.
double weight_tolerance(size_t n_experts, size_t top_k) {
  return static_cast<double>(n_experts + top_k + 8) * std::numeric_limits<float>::epsilon();
}

double weight_of(const json::value& v) { return v.is_string() ? std::nan("") : v.to_number<double>(); }

void expect_close_weights(const json::value& got, const json::value& want, double tolerance) {
  ASSERT_EQ(got.as_array().size(), want.as_array().size());
  for (size_t t = 0; t < want.as_array().size(); ++t) {
    const json::array& row = want.at(t).as_array();
    ASSERT_EQ(got.at(t).as_array().size(), row.size());
    for (size_t i = 0; i < row.size(); ++i) {
      const double w = weight_of(row[i]);
      EXPECT_NEAR(weight_of(got.at(t).at(i)), w, tolerance * w) << "row " << t << " slot " << i;
    }
  }
}

// A router whose method was not told apart chose wrong experts or gave NaN: every method, with groups, biases and
// scales, against a definition in numpy. model/known_problems_test.cc says which family has which.
TEST(KnownProblemT4, EveryRoutingMethodGivesTheAnswersOfThePythonReference) {
  for (const char* scoring : {"softmax", "softmax_topk", "sigmoid"}) {
    const std::string path = source_dir() + "/tests/golden/routing/" + scoring + ".json";
    const json::value golden = parse_json(read_text_file(path), path);
    const json::array& cases = golden.at("cases").as_array();
    ASSERT_GE(cases.size(), 100u);
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(std::string(scoring) + " case " + std::to_string(i));
      const json::value& request = cases[i].at("request");
      const json::value& want = cases[i].at("answer");
      const json::value got = score_request(json::serialize(request), path);
      for (const char* key : {"experts", "active", "active_plain", "plain_reason"}) {
        ASSERT_EQ(got.at(key), want.at(key)) << key;
      }
      const size_t n_experts = request.at("logits").at(0).as_array().size();
      const auto top_k = request.at("top_k").to_number<size_t>();
      expect_close_weights(got.at("weights"), want.at("weights"), weight_tolerance(n_experts, top_k));
    }
  }
}

// Runs the command line `words` and returns what it printed.
std::string run(std::vector<std::string> words) {
  CLI::App app;
  add_routing(app);
  std::reverse(words.begin(), words.end());
  testing::internal::CaptureStdout();
  try {
    app.parse(words);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  return testing::internal::GetCapturedStdout();
}

TEST(RoutingCommand, ListNamesEveryPolicyInTextAndJson) {
  const std::string text = run({"routing", "list"});
  const json::value list = parsed(run({"routing", "list", "--json", "-"}));
  EXPECT_EQ(list, list_policies());
  EXPECT_GE(list.at("policies").as_array().size(), 3u);
  for (const json::value& policy : list.at("policies").as_array()) {
    EXPECT_NE(text.find(policy.at("name").as_string()), std::string::npos);
    EXPECT_FALSE(policy.at("summary").as_string().empty());
    EXPECT_TRUE(policy.at("properties").at("at_most_plain").is_bool());
  }
}

TEST(RoutingCommand, ScoreReadsAFileAndListWritesOne) {
  const std::string path = testing::TempDir() + "routing_command_test_" + std::to_string(::getpid()) + ".json";
  std::ofstream(path) << R"({"logits": [[0, 1]], "top_k": 1})";
  EXPECT_EQ(parsed(run({"routing", "score", path})).at("experts"), parsed("[[1]]"));
  EXPECT_EQ(run({"routing", "list", "--json", path}), "");
  EXPECT_EQ(parse_json(read_text_file(path), path), list_policies());
  std::remove(path.c_str());
  EXPECT_THROW(run({"routing", "score", path}), Error);
  EXPECT_THROW(run({"routing", "list", "--json", "/nowhere/list.json"}), Error);
}

TEST(RoutingCommand, UnknownWordsAreUsageErrors) {
  EXPECT_THROW(run({"routing"}), CLI::ParseError);
  EXPECT_THROW(run({"routing", "score"}), CLI::ParseError);
  EXPECT_THROW(run({"routing", "list", "--jsn", "-"}), CLI::ParseError);
}

}  // namespace
}  // namespace carpool
