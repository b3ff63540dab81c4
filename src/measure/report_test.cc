// The terminal report: what it must contain, what it must refuse, and that its sentence follows from the numbers.
#include "measure/report.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "base/error.h"
#include "measure/report_test_util.h"

namespace carpool {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Report, ShowsEveryNumberOfEveryRow) {
  const std::string text = text_table(sample_report());
  for (const char* part : {"carpool ab models/books --a topk --b oea:k0=5",
                           "0123456789ab",
                           "A processor, 2 threads on 2 CPUs",
                           "qwen3_moe",
                           "cold copies",
                           "800.0 [771.1, 820.5]",
                           "952.4 [935.7, 969.7]",
                           "20.00 [19.50, 20.75]",
                           "16.80 [16.50, 17.10]",
                           "1.190 [1.163, 1.220]",
                           "47.50",
                           "36.10",
                           "123.46",
                           "98.76",
                           "14.3",
                           "43.2 %",
                           "41.1 %",
                           "3.1416",
                           "3.1536",
                           "+0.0120 [+0.0090, +0.0151]",
                           "0.02345",
                           "93.21 %",
                           "16320",
                           "64",
                           "315",
                           "25.0 %",
                           "1.2 %",
                           "policy 2520",
                           "min_batch 7",
                           "61.25 [60.50, 66.50]",
                           "11"}) {
    EXPECT_TRUE(contains(text, part)) << part << "\n" << text;
  }
}

TEST(Report, ColumnsAlignAndFitAWideTerminal) {
  Report report = sample_report();
  report.rows[1].policy = "oea:k0=5,min_batch=2,max_p=32";
  for (const Table& table : {speed_table(report), quality_table(report), routing_table(report), mixed_table(report)}) {
    const std::vector<std::string> lines = lines_of(to_text(table));
    ASSERT_EQ(lines.size(), 2 + table.rows.size());
    const size_t batch_ends = lines[1].find("batch") + 5;
    for (size_t i = 2; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i].substr(batch_ends - 2, 2), "16") << lines[i];
      EXPECT_EQ(lines[i][batch_ends], ' ') << lines[i];
    }
    for (const std::string& line : lines) EXPECT_LE(line.size(), 160u) << line;
  }
}

TEST(Report, RefusesTheSpeedOfALossyPolicyWithoutItsQuality) {
  Report report = sample_report();
  report.rows[1].quality.reset();
  EXPECT_THROW(text_table(report), Error);
  report = sample_report();
  report.rows[0].quality.reset();  // plain routing has no cost to show
  EXPECT_NO_THROW(text_table(report));
}

TEST(Report, APolicyThatNeverChangedARowCountsAsPlainAndOneThatDidDoesNot) {
  ResultRow row = oea_row(1);
  EXPECT_FALSE(ran_plain(row));
  row.routing.rerouted_tokens = 0;
  EXPECT_TRUE(ran_plain(row));
  row.routing.layers = 0;  // nothing was counted: no proof
  EXPECT_FALSE(ran_plain(row));
}

TEST(Report, SaysHowManyExpertsHowMuchTimeAndWhatCost) {
  EXPECT_EQ(findings(sample_report()),
            "At batch 16, oea:k0=5 loads 24.0 % fewer experts than plain routing (36.1 instead of 47.5 per layer), a "
            "step takes 0.84x topk's time [0.82, 0.86] and it costs +0.0120 [+0.0090, +0.0151] nats per token.");
}

TEST(Report, AdmitsWhenAnIntervalIncludesNoChange) {
  Report report = sample_report();
  report.rows[1].speedup = Estimate{1.01, 0.97, 1.04};
  report.rows[1].quality->cross_entropy_delta = {-0.001, -0.003, 0.002};
  const std::string text = findings(report);
  EXPECT_TRUE(contains(text, "0.99x topk's time [0.96, 1.03], which includes no change")) << text;
  EXPECT_TRUE(contains(text, "gains -0.0010 [-0.0030, +0.0020] nats per token, which includes no cost")) << text;
}

TEST(Report, SaysWhenAPolicyLoadsMoreExpertsThanPlainRouting) {
  Report report = sample_report();
  report.rows[1].distinct_experts = 57;
  EXPECT_TRUE(contains(findings(report), "loads 20.0 % more experts")) << findings(report);
}

TEST(Report, SaysWhenAPolicyWasLeftAloneAndWhy) {
  Report report = sample_report();
  report.rows[1].routing.rerouted_tokens = 0;
  const std::string text = findings(report);
  EXPECT_TRUE(contains(text, "oea:k0=5 changed nothing, all rows ran plain routing (min_batch 7)")) << text;
}

TEST(Report, ExplainsAShareOfTheFloorAboveAll) {
  Report report = sample_report();
  EXPECT_FALSE(contains(text_table(report), "came from cache"));
  report.rows[1].floor_share = 1.553;
  EXPECT_TRUE(contains(text_table(report), "155.3 %"));
  EXPECT_TRUE(contains(text_table(report), "came from cache"));
}

TEST(Report, SaysWhichBytesOfTheFloorStayInCache) {
  Report report = sample_report();
  EXPECT_EQ(floor_note(report), "") << "an unknown cache proves nothing";
  report.cache_bytes = 2840000;
  EXPECT_EQ(floor_note(report), "") << "a dense part as large as the cache does not stay there";
  report.cache_bytes = 33554432;
  EXPECT_EQ(floor_note(report),
            "The floor counts bytes that memory need not deliver: 2.84 of 123.46 MB per step (topk at batch 16) are "
            "dense weights, keys and values that stay in the last-level cache of 33.6 MB.");
  EXPECT_TRUE(contains(text_table(report), "2.84 of 123.46 MB"));
}

TEST(Report, FewerThanFiveRepeatsShowNoInterval) {
  Report report = sample_report();
  EXPECT_TRUE(contains(text_table(report), "95 % bootstrap interval over repeats"));
  for (ResultRow& row : report.rows) row.repeats = 4;
  const std::string text = text_table(report);
  EXPECT_FALSE(contains(text, "interval over repeats")) << text;
  for (const char* part : {"771.1", "19.50", "1.163", "60.50", "[0.82"}) EXPECT_FALSE(contains(text, part)) << part;
  for (const char* part : {"800.0", "20.00", "1.190", "61.25", "+0.0120 [+0.0090, +0.0151]"})
    EXPECT_TRUE(contains(text, part)) << part;
  EXPECT_TRUE(contains(text, "a step takes 0.84x topk's time (no interval from 4 repeats) and it costs")) << text;
}

TEST(Report, AQualityThatIsNotFiniteIsRefused) {
  Report report = sample_report();
  report.rows[1].quality->kl_mean = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(text_table(report), Error);
  report = sample_report();
  report.rows[0].quality->cross_entropy = std::numeric_limits<double>::infinity();
  EXPECT_THROW(text_table(report), Error) << "of plain routing, too";
}

TEST(Report, EachBatchHasItsOwnSentence) {
  Report report = sample_report();
  report.rows.push_back(plain_row(4));
  report.rows.push_back(oea_row(4));
  const std::vector<std::string> lines = lines_of(findings(report));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("At batch 16, ")) << lines[0];
  EXPECT_TRUE(lines[1].starts_with("At batch 4, ")) << lines[1];
}

TEST(Report, MixedStepsStayOutOfTheSpeedTableAndEmptyOnesOutOfTheReport) {
  Report report = sample_report();
  EXPECT_EQ(speed_table(report).rows.size(), 2u);
  EXPECT_EQ(mixed_table(report).rows.size(), 2u);
  report.rows[2].steps_measured = report.rows[3].steps_measured = 0;
  EXPECT_FALSE(contains(text_table(report), "prompt rows"));
}

TEST(Report, NumbersThatAreNotFiniteAndControlCharactersDoNotReachTheTerminal) {
  Report report = sample_report();
  report.rows[0].floor_share = std::numeric_limits<double>::quiet_NaN();
  report.rows[0].tokens_per_second = {std::numeric_limits<double>::infinity(), 0, 0};
  report.facts.model = "bad\x1b[2Jname";
  const std::string text = text_table(report);
  EXPECT_FALSE(contains(text, "nan"));
  EXPECT_FALSE(contains(text, "inf "));
  EXPECT_FALSE(contains(text, "\x1b"));
  EXPECT_TRUE(contains(text, "bad?[2Jname"));
}

}  // namespace
}  // namespace carpool
