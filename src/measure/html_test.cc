// The HTML report: well-formed, self-contained, complete, and safe with any text in it. And the axes of its charts.
#include "measure/html.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>

#include "base/error.h"
#include "measure/charts.h"
#include "measure/report_test_util.h"

namespace carpool {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The first thing wrong with the nesting of tags, or "". Every element is closed by itself ("/>") or by its end tag.
std::string tag_problem(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "a tag that does not end";
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag.empty() || tag.find('<') != std::string::npos) return "a stray < before " + html.substr(at, 40);
    if (tag[0] == '!' || tag.back() == '/') continue;
    const std::string name = tag.substr(0, tag.find_first_of(" \n"));
    if (name[0] != '/') {
      open.push_back(name);
    } else if (open.empty() || open.back() != name.substr(1)) {
      return "unexpected <" + name + "> inside " + (open.empty() ? "nothing" : open.back());
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

TEST(HtmlReport, TheTagCheckerItselfFindsMistakes) {
  EXPECT_EQ(tag_problem("<a><b/>text</a>"), "");
  EXPECT_NE(tag_problem("<a><b></a></b>"), "");
  EXPECT_NE(tag_problem("<a>"), "");
  EXPECT_NE(tag_problem("1 < 2 <a></a>"), "");
}

TEST(HtmlReport, IsWellFormedAndHasNoOutsideResource) {
  const std::string html = html_report(sample_report());
  EXPECT_EQ(tag_problem(html), "");
  for (const char* part : {"http", "<script", "src=", "@import", "url(", "href"})
    EXPECT_FALSE(contains(html, part)) << part;
}

TEST(HtmlReport, ShowsEveryNumberOfEveryRow) {
  const std::string html = html_report(sample_report());
  for (const char* part : {"carpool ab models/books --a topk --b oea:k0=5",
                           "0123456789ab",
                           "A processor, 2 threads on 2 CPUs",
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
                           "25.0 %",
                           "1.2 %",
                           "policy 2520",
                           "min_batch 7",
                           "61.25 [60.50, 66.50]",
                           "24.0 % fewer experts"}) {
    EXPECT_TRUE(contains(html, part)) << part;
  }
}

TEST(HtmlReport, EscapesWhateverTextItIsGiven) {
  Report report = sample_report();
  report.rows[1].policy = report.rows[3].policy = "<script>alert('x')</script>&\"";
  report.facts.command = "carpool </code><b>";
  report.facts.settings = {{"<i>", "</dl>\x01"}};
  const std::string html = html_report(report);
  EXPECT_FALSE(contains(html, "<script"));
  EXPECT_FALSE(contains(html, "<b>"));
  EXPECT_FALSE(contains(html, "\x01"));
  EXPECT_TRUE(contains(html, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"));
  EXPECT_EQ(tag_problem(html), "");
}

TEST(HtmlReport, EveryChartHasATitleADescriptionAndItsNumbers) {
  Report report = sample_report();
  report.rows.push_back(plain_row(4));
  report.rows.push_back(oea_row(4));
  const std::string html = html_report(report);
  std::set<std::string> ids;
  int charts = 0, tables = 0;
  for (size_t at = html.find("<svg"); at != std::string::npos; at = html.find("<svg", at + 1)) {
    const size_t id = html.find("aria-labelledby=\"", at) + 17;
    ids.insert(html.substr(id, html.find(' ', id) - id));
    EXPECT_EQ(html.find("<title id=", at), html.find('>', at) + 2);
    EXPECT_LT(html.find("<desc id=", at), html.find("</svg>", at));
    ++charts;
  }
  for (size_t at = html.find("<details>"); at != std::string::npos; at = html.find("<details>", at + 1)) {
    EXPECT_LT(html.find("<table>", at), html.find("</details>", at));
    ++tables;
  }
  EXPECT_EQ(charts, 5);  // three of bars, one scatter per batch
  EXPECT_EQ(tables, 4);
  EXPECT_EQ(ids.size(), 5u) << "ids of one page must differ";
}

TEST(HtmlReport, FollowsTheReadersLightOrDark) {
  EXPECT_TRUE(contains(html_report(sample_report()), "@media (prefers-color-scheme: dark)"));
}

TEST(HtmlReport, RefusesTheSpeedOfALossyPolicyWithoutItsQuality) {
  Report report = sample_report();
  report.rows[1].quality.reset();
  EXPECT_THROW(html_report(report), Error);
}

TEST(HtmlReport, NumbersThatAreNotFiniteLeaveNoTrace) {
  Report report = sample_report();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  report.rows[1].step_ms = {nan, nan, nan};
  report.rows[1].floor_share = std::numeric_limits<double>::infinity();
  const std::string html = html_report(report);
  EXPECT_FALSE(contains(html, "nan"));
  EXPECT_FALSE(contains(html, "\"inf"));
  EXPECT_EQ(tag_problem(html), "");
}

TEST(HtmlReport, ExplainsAShareOfTheFloorAboveAll) {
  Report report = sample_report();
  EXPECT_FALSE(contains(html_report(report), "came from cache"));
  report.rows[1].floor_share = 1.553;
  EXPECT_TRUE(contains(html_report(report), "came from cache"));
}

TEST(HtmlReport, SaysWhichBytesOfTheFloorStayInCache) {
  Report report = sample_report();
  report.cache_bytes = 33554432;
  EXPECT_TRUE(contains(html_report(report), "2.84 of 123.46 MB per step"));
}

TEST(HtmlReport, FewerThanFiveRepeatsShowNoIntervalAndNoWhisker) {
  Report report = sample_report();
  EXPECT_TRUE(contains(html_report(report), "class=\"whisker\""));
  for (ResultRow& row : report.rows) row.repeats = 4;
  const std::string html = html_report(report);
  EXPECT_FALSE(contains(html, "class=\"whisker\""));
  EXPECT_FALSE(contains(html, "interval over repeats"));
  for (const char* part : {"771.1", "19.50", "1.163"}) EXPECT_FALSE(contains(html, part)) << part;
}

TEST(HtmlReport, AReportWithoutRowsIsStillAPage) {
  Report report = sample_report();
  report.rows.clear();
  EXPECT_EQ(tag_problem(html_report(report)), "");
}

TEST(Charts, TicksAreRoundAscendingAndCoverTheRange) {
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0, 1}, {0, 47.5}, {31.2, 48.9}, {-0.003, 0.0151}, {0, 1e-9}, {1e6, 1.0001e6}, {5, 5}, {0, 0}}) {
    const std::vector<double> ticks = axis_ticks(low, high, 5);
    ASSERT_GE(ticks.size(), 2u);
    EXPECT_LE(ticks.size(), 12u) << low << " to " << high;
    EXPECT_LE(ticks.front(), low + 1e-9 * (high - low));
    EXPECT_GE(ticks.back(), high - 1e-6 * (high - low));
    EXPECT_TRUE(std::is_sorted(ticks.begin(), ticks.end()));
  }
}

TEST(Charts, ALongerBarIsDrawnForALargerValue) {
  BarChart chart{
      .id = "c", .title = "t", .description = "d", .axis = "a", .reference_name = "", .axis_max = 0, .bars = {}};
  for (const double v : {10.0, 20.0}) {
    Bar bar;
    bar.group = "g";
    bar.label = "l";
    bar.value = v;
    bar.value_text = "v";
    chart.bars.push_back(bar);
  }
  const std::string drawn = svg(chart);
  std::vector<double> widths;
  for (size_t at = drawn.find("<rect"); at != std::string::npos; at = drawn.find("<rect", at + 1))
    widths.push_back(std::stod(drawn.substr(drawn.find("width=\"", at) + 7)));
  ASSERT_EQ(widths.size(), 2u);
  EXPECT_NEAR(widths[1], 2 * widths[0], 0.2);
}

TEST(Charts, LabelsOfCrowdedPointsDoNotCoverEachOther) {
  ScatterChart chart{.id = "c", .title = "t", .description = "d", .x_axis = "x", .y_axis = "y", .points = {}};
  for (int i = 0; i < 5; ++i)
    chart.points.push_back({"oea:k0=" + std::to_string(i), 40 + 0.1 * i, {0.01, 0.009, 0.011}, i});
  const std::string drawn = svg(chart);
  std::vector<std::pair<double, double>> places;
  for (size_t at = drawn.find("class=\"label\""); at != std::string::npos; at = drawn.find("class=\"label\"", at + 1)) {
    places.emplace_back(std::stod(drawn.substr(drawn.find("x=\"", at) + 3)),
                        std::stod(drawn.substr(drawn.find("y=\"", at) + 3)));
  }
  ASSERT_EQ(places.size(), 5u);
  const double width = 7.2 * 8;  // of "oea:k0=0"
  for (size_t i = 0; i < places.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_TRUE(std::abs(places[i].first - places[j].first) >= width - 0.2 ||
                  std::abs(places[i].second - places[j].second) >= 11.8)
          << i << " and " << j;
    }
  }
}

}  // namespace
}  // namespace carpool
