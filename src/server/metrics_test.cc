// The text of /metrics, read back by a parser that knows only the format's rules.
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "server/canary_service_test_util.h"

namespace carpool {
namespace {

struct Family {
  std::string type, help;
  std::vector<std::pair<std::string, double>> samples;  // name with labels
};

// Strict: HELP, TYPE, then samples of that family without others between them; every line fits the grammar.
std::map<std::string, Family> parse(const std::string& text) {
  static const std::regex kHelp(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+))"),
      kType(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram))"),
      kSample(R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} ([-+0-9.eE]+|\+Inf|NaN))re");
  std::map<std::string, Family> families;
  std::string current;
  std::istringstream lines(text);
  EXPECT_EQ(text.back(), '\n');
  for (std::string line; std::getline(lines, line);) {
    std::smatch m;
    if (std::regex_match(line, m, kHelp)) {
      current = m[1];
      EXPECT_EQ(families.count(current), 0u) << "twice: " << current;
      families[current].help = m[2];
    } else if (std::regex_match(line, m, kType)) {
      EXPECT_EQ(m[1], current);
      families[current].type = m[2];
    } else if (std::regex_match(line, m, kSample)) {
      std::string base = m[1];
      if (families[current].type == "histogram")
        base = std::regex_replace(base, std::regex("_(bucket|sum|count)$"), "");
      EXPECT_EQ(base, current) << line;
      families[current].samples.emplace_back(m[1].str() + "{" + m[2].str() + "}", std::stod(m[3]));
    } else {
      ADD_FAILURE() << "no line of the format: " << line;
    }
  }
  return families;
}

double value(const std::map<std::string, Family>& families, const std::string& family, const std::string& labels) {
  for (const auto& [key, v] : families.at(family).samples) {
    if (key.find(labels) != std::string::npos) return v;
  }
  ADD_FAILURE() << family << " has no sample with " << labels;
  return std::nan("");
}

// Metrics of a few requests of the canary, under `policy`.
std::map<std::string, Family> measured(const std::string& policy, int requests) {
  Metrics metrics("canary");
  metrics.set_sizes({1000, 500, 10});
  GatedModel model;
  EngineLoop loop(canary_engine(model, nullptr, {}, {policy}), {});
  LoopObserver observer;
  observer.step = [&](const Engine& e, const StepReport& r) { metrics.step(e, r); };
  observer.inter_token = [&](double s) { metrics.inter_token(s); };
  observer.finished = [&](FinishReason f, const RequestStats& s, const RequestTimes& t) { metrics.finished(f, s, t); };
  loop.observe(observer);
  model.close();
  loop.start();
  std::vector<std::shared_ptr<CollectSink>> sinks;
  for (int i = 0; i < requests; ++i) {
    sinks.push_back(std::make_shared<CollectSink>());
    loop.submit(canary_request("hello " + std::to_string(i), 11), sinks.back());
  }
  model.wait_held();
  model.open();
  for (auto& sink : sinks) EXPECT_EQ(sink->end(), "length");
  loop.stop();
  return parse(metrics.render(loop.state()));
}

TEST(Metrics, FollowTheFormat) {
  const auto families = measured("topk", 3);
  EXPECT_GT(families.size(), 40u);
  for (const auto& [name, family] : families) {
    EXPECT_EQ(name.substr(0, 8), "carpool:") << name;
    EXPECT_FALSE(family.type.empty()) << name;
    std::set<std::string> seen;
    for (const auto& [key, v] : family.samples) {
      EXPECT_TRUE(seen.insert(key).second) << "twice: " << key;
      EXPECT_NE(key.find("model_name=\"canary\""), std::string::npos);
      EXPECT_TRUE(std::isfinite(v)) << key;
    }
    if (family.type == "counter") {
      EXPECT_EQ(name.substr(name.size() - 6), "_total") << name;
    }
  }
}

TEST(Metrics, HistogramsAreCumulativeAndEndAtTheirCount) {
  int histograms = 0;
  for (const auto& [name, family] : measured("topk", 3)) {
    if (family.type != "histogram") continue;
    ++histograms;
    double last = 0, infinity = -1, count = -2;
    for (const auto& [key, v] : family.samples) {
      if (key.find("_bucket{") != std::string::npos) {
        EXPECT_GE(v, last) << key;
        last = v;
        if (key.find("le=\"+Inf\"") != std::string::npos) infinity = v;
      } else if (key.find("_count{") != std::string::npos) {
        count = v;
      }
    }
    EXPECT_EQ(infinity, count) << name;
  }
  EXPECT_EQ(histograms, 14);
}

TEST(Metrics, CountRequestsAndTokens) {
  const auto f = measured("topk", 3);
  EXPECT_EQ(value(f, "carpool:generation_tokens_total", ""), 33);
  EXPECT_EQ(value(f, "carpool:prompt_tokens_total", ""), 21);
  EXPECT_EQ(value(f, "carpool:request_success_total", "finished_reason=\"length\""), 3);
  EXPECT_EQ(value(f, "carpool:request_success_total", "finished_reason=\"abort\""), 0);
  EXPECT_EQ(value(f, "carpool:inter_token_latency_seconds", "_count"), 30);
  EXPECT_EQ(value(f, "carpool:time_to_first_token_seconds", "_count"), 3);
  EXPECT_EQ(value(f, "carpool:e2e_request_latency_seconds", "_count"), 3);
  EXPECT_EQ(value(f, "carpool:request_generation_tokens", "le=\"10.0\""), 0);
  EXPECT_EQ(value(f, "carpool:request_generation_tokens", "le=\"20.0\""), 3);
}

TEST(Metrics, TellWhichRoutingRan) {
  const auto plain = measured("topk", 4), shared = measured("oea:k0=2", 4);
  const auto of = [](const auto& f, const char* name, const char* labels) { return value(f, name, labels); };
  EXPECT_EQ(of(plain, "carpool:moe_distinct_experts_total", "decode"),
            of(plain, "carpool:moe_distinct_experts_plain_total", "decode"));
  EXPECT_EQ(of(plain, "carpool:moe_rerouted_tokens_total", "decode"), 0);
  EXPECT_EQ(of(plain, "carpool:policy_info", "policy=\"topk\""), 1);
  EXPECT_LT(of(shared, "carpool:moe_distinct_experts_total", "decode"),
            of(shared, "carpool:moe_distinct_experts_plain_total", "decode"));
  EXPECT_GT(of(shared, "carpool:moe_rerouted_tokens_total", "decode"), 0);
  EXPECT_GT(of(shared, "carpool:moe_rows_total", "reason=\"applied\""), 0);
  EXPECT_EQ(of(shared, "carpool:policy_info", "policy=\"oea:k0=2\""), 1);
}

TEST(Metrics, CountBytesAsExpertsTimesTheirSizeAndTheRestOncePerStep) {
  const auto f = measured("topk", 2);
  EXPECT_EQ(value(f, "carpool:weight_bytes_total", "kind=\"experts\",steps=\"decode\""),
            1000 * value(f, "carpool:moe_distinct_experts_total", "decode"));
  EXPECT_EQ(value(f, "carpool:weight_bytes_total", "kind=\"dense\",steps=\"mixed\""),
            500 * value(f, "carpool:steps_total", "mixed"));
  EXPECT_GT(value(f, "carpool:weight_bytes_per_token", ""), 0);
  EXPECT_GT(value(f, "carpool:memory_bandwidth_share", ""), 0);
}

TEST(Metrics, CountAnswersRefusalsAndConnections) {
  Metrics metrics("m");
  metrics.http("/v1/models", 200);
  metrics.http("/v1/models", 200);
  metrics.http("other", 404);
  metrics.refused("overloaded");
  metrics.connections(3);
  metrics.connections(-1);
  const auto f = parse(metrics.render({}));
  EXPECT_EQ(value(f, "carpool:http_requests_total", "route=\"/v1/models\",status=\"200\""), 2);
  EXPECT_EQ(value(f, "carpool:http_requests_total", "route=\"other\",status=\"404\""), 1);
  EXPECT_EQ(value(f, "carpool:refused_total", "code=\"overloaded\""), 1);
  EXPECT_EQ(value(f, "carpool:http_connections", ""), 2);
}

TEST(Metrics, EscapeNames) {
  Metrics metrics("a\"b\\c\nd\xff");
  for (const auto& [name, family] : parse(metrics.render({}))) {
    for (const auto& [key, v] : family.samples) {
      EXPECT_NE(key.find("model_name=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\""), std::string::npos) << key;
    }
  }
}

}  // namespace
}  // namespace carpool
