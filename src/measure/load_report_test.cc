// The printed block and the JSON line, row by row and key by key as SGLang's client has them.
#include "measure/load_report.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace carpool {
namespace {

std::vector<LoadOutcome> outcomes() {
  LoadOutcome a;
  a.success = a.counted = true;
  a.ttft = 0.2;
  a.latency = 1;
  a.itl = {0.4, 0.4};
  a.prompt_tokens = 10;
  a.output_tokens = 3;
  a.cached_tokens = 4;
  a.text = "one two three";
  a.routing = "oea:k0=5; scope=tenant";
  LoadOutcome b;
  b.failure = "HTTP 503 overloaded";
  b.message = "the queue is full";
  return {a, b};
}

LoadReport report() {
  LoadReport r;
  r.backend = "sglang";
  r.dataset = "random-ids";
  r.max_concurrency = 16;
  r.random_input_len = 64;
  r.random_output_len = 32;
  r.server_info = parse_json("{\"internal_states\": [{\"avg_spec_accept_length\": 2.5}]}", "x");
  r.metrics = summarise(outcomes(), 2, {90, 95, 99, 99.9});
  r.retokenized = 3;
  r.failures = failures(outcomes());
  r.routing = applied_routing(outcomes());
  return r;
}

TEST(LoadBlock, HasTheRowsOfBenchServingInItsOrder) {
  const std::string text = load_block(report());
  size_t at = 0;
  for (const char* part : {"============ Serving Benchmark Result ============",
                           "Backend:",
                           "Traffic request rate:",
                           "Max request concurrency:",
                           "Successful requests:",
                           "Benchmark duration (s):",
                           "Total input tokens:",
                           "Total input text tokens:",
                           "Total generated tokens:",
                           "Total generated tokens (retokenized):",
                           "Request throughput (req/s):",
                           "Input token throughput (tok/s):",
                           "Output token throughput (tok/s):",
                           "Peak output token throughput (tok/s):",
                           "Peak concurrent requests:",
                           "Total token throughput (tok/s):",
                           "Concurrency:",
                           "Accept length:",
                           "----------------End-to-End Latency----------------",
                           "Mean E2E Latency (ms):",
                           "Median E2E Latency (ms):",
                           "P90 E2E Latency (ms):",
                           "P95 E2E Latency (ms):",
                           "P99 E2E Latency (ms):",
                           "---------------Time to First Token----------------",
                           "Mean TTFT (ms):",
                           "P99 TTFT (ms):",
                           "-----Time per Output Token (excl. 1st token)------",
                           "Mean TPOT (ms):",
                           "---------------Inter-Token Latency----------------",
                           "Mean ITL (ms):",
                           "P99 ITL (ms):",
                           "Max ITL (ms):",
                           "=================================================="}) {
    const size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " after position " << at << " of\n" << text;
    at = found;
  }
  EXPECT_NE(text.find("Successful requests:                     1         \n"), std::string::npos) << text;
  EXPECT_NE(text.find("Failed requests:                         1         \n"), std::string::npos) << text;
  EXPECT_NE(text.find("Mean TTFT (ms):                          200.00    \n"), std::string::npos) << text;
  EXPECT_NE(text.find("Traffic request rate:                    inf       \n"), std::string::npos) << text;
  EXPECT_NE(text.find("P99.9 TTFT (ms):"), std::string::npos) << "percentiles that were asked for";
}

TEST(LoadLine, HasEveryKeyOfBenchServing) {
  const json::object line = load_line(report(), nullptr);
  std::vector<std::string> keys = {"tag",
                                   "backend",
                                   "dataset_name",
                                   "request_rate",
                                   "max_concurrency",
                                   "sharegpt_output_len",
                                   "random_input_len",
                                   "random_output_len",
                                   "random_range_ratio",
                                   "server_info",
                                   "duration",
                                   "completed",
                                   "total_input_tokens",
                                   "total_input_text_tokens",
                                   "total_input_vision_tokens",
                                   "total_output_tokens",
                                   "total_output_tokens_retokenized",
                                   "request_throughput",
                                   "input_throughput",
                                   "output_throughput",
                                   "total_throughput",
                                   "concurrency",
                                   "accept_length",
                                   "max_output_tokens_per_s",
                                   "max_concurrent_requests"};
  for (const char* what : {"e2e_latency", "ttft", "tpot", "itl"}) {
    for (const char* statistic : {"mean", "median", "std", "p90", "p95", "p99"}) {
      keys.push_back(std::string(statistic) + "_" + what + "_ms");
    }
  }
  for (const std::string& key : keys) EXPECT_TRUE(line.contains(key)) << key;
  EXPECT_FALSE(line.contains("ttfts")) << "details are for --output-details";
  EXPECT_EQ(line.at("accept_length"), 2.5);
  EXPECT_EQ(line.at("request_rate"), "inf") << "JSON has no infinity";
  EXPECT_EQ(line.at("completed"), 1);
  EXPECT_EQ(line.at("failed"), 1);
  EXPECT_EQ(line.at("failed_by_kind").at("HTTP 503 overloaded"), 1);
  EXPECT_EQ(line.at("median_ttft_ms"), 200.0);
  EXPECT_EQ(line.at("total_cached_tokens"), 4);
  EXPECT_EQ(line.at("routing_applied").at("oea:k0=5; scope=tenant"), 1);
  EXPECT_TRUE(line.contains("p99.9_ttft_ms"));
}

TEST(LoadLine, DetailsAreOnePerRequestAndFailedOnesSayWhy) {
  const auto list = outcomes();
  const json::object line = load_line(report(), &list);
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"}) {
    ASSERT_TRUE(line.contains(key)) << key;
    EXPECT_EQ(line.at(key).as_array().size(), 2u) << key;
  }
  EXPECT_EQ(line.at("itls").at(0), (json::array{0.4, 0.4}));
  EXPECT_EQ(line.at("errors").at(0), "");
  EXPECT_EQ(line.at("errors").at(1), "HTTP 503 overloaded: the queue is full");
  EXPECT_EQ(line.at("generated_texts").at(0), "one two three");
}

TEST(LoadNotes, NameFailuresRoutingAndWhereItsQualityIs) {
  std::string all;
  for (const std::string& note : load_notes(report())) all += note + "\n";
  for (const char* part : {"1 request failed: HTTP 503 overloaded; the first said: the queue is full",
                           "applied to 1 requests: oea:k0=5; scope=tenant", "carpool ab MODEL --a topk --b oea:k0=5"}) {
    EXPECT_NE(all.find(part), std::string::npos) << part << " in\n" << all;
  }
  LoadReport plain = report();
  plain.routing = {{"topk", 3}};
  plain.metrics.without_text = 2;
  plain.metrics.uncounted = 1;
  all.clear();
  for (const std::string& note : load_notes(plain)) all += note + "\n";
  EXPECT_EQ(all.find("carpool ab"), std::string::npos) << "plain routing costs nothing";
  EXPECT_NE(all.find("2 replies held no visible text"), std::string::npos) << all;
  EXPECT_NE(all.find("1 replies came without a token count"), std::string::npos) << all;
}

TEST(LoadReportCounters, StandBesideTheLatencies) {
  LoadReport r = report();
  r.counters.emplace();
  r.counters->decode.layers = 10;
  r.counters->decode.distinct_experts = 150;
  r.counters->decode.distinct_plain = 200;
  r.counters->decode.rerouted_tokens = 30;
  r.counters->decode.plain_steps[static_cast<size_t>(PlainReason::kMinBatch)] = 4;
  const json::object row = load_row(r);
  EXPECT_EQ(row.at("policy"), "oea:k0=5");
  EXPECT_EQ(row.at("batch"), 16);
  EXPECT_EQ(row.at("distinct_experts"), 15.0);
  EXPECT_EQ(row.at("distinct_experts_plain"), 20.0);
  EXPECT_EQ(row.at("rerouted_tokens"), 30);
  EXPECT_EQ(row.at("plain_steps").at("min_batch"), 4);
  EXPECT_EQ(row.at("tokens_per_second"), 1.5);
  const std::string last = load_notes(r).back();
  EXPECT_NE(last.find("15.0 distinct experts per layer"), std::string::npos) << last;
  EXPECT_NE(last.find("min_batch 4"), std::string::npos) << last;
}

TEST(Markdown, HasFactsTablesAndNotesAndEscapesBars) {
  BenchReport r;
  r.facts = {"carpool bench-serve x", "abc", "a machine", "m", {{"seed", "1"}}};
  Table table{"Speed", {"policy", "tok/s", "why"}, {{"a|b|c", "7", "none"}}};
  table.left_last = true;
  r.tables = {table};
  r.notes = {"A sentence."};
  const std::string text = markdown(r);
  EXPECT_NE(text.find("| policy | tok/s | why |\n|---|---:|---|\n| a\\|b\\|c | 7 | none |\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("- command: `carpool bench-serve x`"), std::string::npos) << text;
  EXPECT_NE(text.find("A sentence."), std::string::npos) << text;
}

}  // namespace
}  // namespace carpool
