// Log lines: one fact stays one line whatever clients send, and both formats can be read back.
#include "server/log.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace carpool {
namespace {

struct Lines {
  std::vector<std::string> lines;
  Log::Write write() {
    return [this](std::string_view line) { lines.emplace_back(line); };
  }
};

TEST(Log, WritesTimeLevelMessageAndFieldsOnOneLine) {
  Lines out;
  Log log(LogLevel::kInfo, LogFormat::kText, out.write());
  log.info("request done", {{"id", "abc"}, {"status", 200}, {"s", 0.25}, {"routing", "oea:k0=5; scope=tenant"}});
  ASSERT_EQ(out.lines.size(), 1u);
  EXPECT_TRUE(std::regex_match(
      out.lines[0], std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info  request done id=abc status=200 s=0.25 )"
                               R"(routing="oea:k0=5; scope=tenant"\n)")))
      << out.lines[0];
}

TEST(Log, LeavesOutWhatIsBelowItsLevel) {
  Lines out;
  Log log(LogLevel::kWarn, LogFormat::kText, out.write());
  log.debug("a");
  log.info("b");
  log.warn("c");
  log.error("d");
  ASSERT_EQ(out.lines.size(), 2u);
  EXPECT_NE(out.lines[0].find(" warn  c"), std::string::npos);
  EXPECT_NE(out.lines[1].find(" error d"), std::string::npos);
}

TEST(Log, EscapesLineBreaksControlCharactersAndQuotes) {
  const std::string hostile = "x\" level=error\nforged line\x1b[31m\xff\xe2";
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    Lines out;
    Log log(LogLevel::kInfo, format, out.write());
    log.info(hostile, {{"path", hostile}});
    ASSERT_EQ(out.lines.size(), 1u);
    const std::string& line = out.lines[0];
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
    if (format == LogFormat::kText) {
      EXPECT_NE(line.find(R"(path="x\" level=error\nforged line\x1b[31m\xff\xe2")"), std::string::npos) << line;
    }
  }
}

TEST(Log, JsonLinesAreObjectsThatKeepTheTypes) {
  Lines out;
  Log log(LogLevel::kInfo, LogFormat::kJson, out.write());
  log.warn("slow", {{"ms", 12.5}, {"ok", true}, {"what", "a \"b\"\nc\xff"}});
  ASSERT_EQ(out.lines.size(), 1u);
  const json::object line = parse_json(out.lines[0], "the line").as_object();
  EXPECT_EQ(line.at("level"), "warn");
  EXPECT_EQ(line.at("message"), "slow");
  EXPECT_EQ(line.at("ms"), 12.5);
  EXPECT_EQ(line.at("ok"), true);
  EXPECT_EQ(line.at("what"), "a \"b\"\nc\xEF\xBF\xBD");
  EXPECT_TRUE(line.at("time").is_string());
}

TEST(Log, CutsLongValues) {
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    Lines out;
    Log log(LogLevel::kInfo, format, out.write());
    log.info("m", {{"path", std::string(100'000, 'a')}});
    EXPECT_LT(out.lines.at(0).size(), 1000u);
  }
}

TEST(Log, KeepsLinesOfSeveralThreadsApart) {
  Lines out;
  Log log(LogLevel::kInfo, LogFormat::kText, out.write());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log] {
      for (int i = 0; i < 100; ++i) log.info("line", {{"i", i}});
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(out.lines.size(), 400u);
}

}  // namespace
}  // namespace carpool
