// escape() makes any bytes printable; Error carries the exit code; CARPOOL_CHECK ends the process.
#include "base/error.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

TEST(Escape, PrintableTextStaysAsItIs) { EXPECT_EQ(escape("model.layers.0.mlp ~!"), "model.layers.0.mlp ~!"); }

TEST(Escape, EveryByteComesOutPrintableAndInItsOwnSpelling) {
  std::string seen;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const std::string out = escape(std::string_view(&c, 1));
    for (const char o : out) EXPECT_TRUE(o >= 32 && o < 127) << byte;
    // Distinct bytes never share a spelling, and no quote or backslash stands alone.
    EXPECT_EQ(seen.find(" " + out + " "), std::string::npos) << byte;
    EXPECT_TRUE(byte == ' ' || out.size() > 1 || (out[0] != '"' && out[0] != '\\')) << byte;
    if (byte != ' ') seen += " " + out + " ";
  }
}

TEST(Escape, ControlCharactersQuotesAndHighBytesUseTheNamedEscapes) {
  EXPECT_EQ(escape("a\nb\rc\td\"e\\f"), "a\\nb\\rc\\td\\\"e\\\\f");
  EXPECT_EQ(escape(std::string_view("\0\x1b\x7f\xff", 4)), "\\x00\\x1b\\x7f\\xff");
}

TEST(Escape, LongTextIsCutAndSaysSo) {
  EXPECT_EQ(escape(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(escape(std::string(201, 'a')), std::string(200, 'a') + "...");
  EXPECT_EQ(escape("abcdef", 3), "abc...");
  EXPECT_LE(escape(std::string(1'000'000, '\xff')).size(), 200u + 4 + 3);
}

TEST(Error, CarriesItsSentenceAndTheExitCodeOfItsKind) {
  const Error e(ErrorKind::kMalformed, "m: tensor \"a\": short");
  EXPECT_STREQ(e.what(), "m: tensor \"a\": short");
  EXPECT_EQ(e.exit_code(), 65);
  EXPECT_EQ(Error(ErrorKind::kUsage, "").exit_code(), 64);
  EXPECT_EQ(Error(ErrorKind::kMissing, "").exit_code(), 66);
  EXPECT_EQ(Error(ErrorKind::kUnavailable, "").exit_code(), 69);
  EXPECT_EQ(Error(ErrorKind::kInternal, "").exit_code(), 70);
  EXPECT_EQ(Error(ErrorKind::kNoMemory, "").exit_code(), 71);
  EXPECT_EQ(Error(ErrorKind::kCannotCreate, "").exit_code(), 73);
  EXPECT_EQ(Error(ErrorKind::kIo, "").exit_code(), 74);
  EXPECT_EQ(Error(ErrorKind::kConfig, "").exit_code(), 78);
}

TEST(CheckDeathTest, AFailedCheckNamesTheConditionAndAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const int two = 2;
  EXPECT_DEATH(CARPOOL_CHECK(two == 3), "internal error at .*error_test.cc:.*two == 3");
  CARPOOL_CHECK(two == 2);
}

}  // namespace
}  // namespace carpool
