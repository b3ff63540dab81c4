// What parse_json refuses and keeps, the typed accessors, pretty() and read_text_file().
//
// The texts are untrusted files and requests in small: limits, duplicate keys in every spelling, encodings,
// numbers at the edges of their types, and every prefix and bit flip of a small document.
#include "base/json.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

namespace carpool {
namespace {

// The sentence of the refusal, or "" when `text` is accepted.
std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "t.json", limits);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kMalformed);
    return e.what();
  }
  return "";
}

// The sentence with which `f` throws an Error of kind `kind`.
template <typename F>
std::string error_of(ErrorKind kind, F f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(Json, DepthIsLimitedAtExactlyTheLimit) {
  JsonLimits limits;
  EXPECT_EQ(refusal(nested(64)), "");
  EXPECT_TRUE(contains(refusal(nested(65)), "nested deeper than 64 levels"));
  limits.max_depth = 3;
  EXPECT_EQ(refusal("[{\"a\":[1]}]", limits), "");
  EXPECT_TRUE(contains(refusal("[{\"a\":[[1]]}]", limits), "nested deeper than 3 levels"));
}

TEST(Json, ErrorsSayWhyAndWhere) {
  using Reason = JsonError::Reason;
  const auto why = [](std::string_view text, Reason reason, size_t offset) {
    try {
      parse_json(text, "t.json");
      ADD_FAILURE() << "accepted " << text;
    } catch (const JsonError& e) {
      EXPECT_EQ(e.reason(), reason) << text;
      EXPECT_EQ(e.offset(), offset) << text;
    }
  };
  why("[1,]", Reason::kSyntax, 3);
  why("[1] 2", Reason::kSyntax, 4);
  why(R"(["\ud800"])", Reason::kUnicode, 8);
  why(R"(["\ud800\n"])", Reason::kUnicode, 9);
  why(R"(["\udc00"])", Reason::kUnicode, 8);
  why(nested(65), Reason::kTooDeep, 64);
  why(R"({"a":1,"a":2})", Reason::kDuplicateKey, 9);
  why("[1e999]", Reason::kOverflow, 6);
}

TEST(Json, AMillionBracketsAreRefusedWithoutDeepRecursion) {
  EXPECT_TRUE(contains(refusal(std::string(1'000'000, '[')), "nested deeper"));
}

TEST(Json, SizeIsLimited) {
  JsonLimits limits;
  limits.max_bytes = 4;
  EXPECT_EQ(refusal("1234", limits), "");
  EXPECT_EQ(refusal("12345", limits), "t.json: byte 0: 5 bytes of JSON, the limit is 4");
}

TEST(Json, AKeyTwiceInOneObjectIsRefusedAtItsLastByte) {
  EXPECT_EQ(refusal(R"({"a":1,"a":2})"), "t.json: byte 9: duplicate key \"a\"");
  EXPECT_TRUE(contains(refusal(R"({"x":[{"b":{"a":1,"c":2,"a":1}}]})"), "duplicate key \"a\""));
}

TEST(Json, AKeyTwiceIsFoundInEverySpelling) {
  EXPECT_TRUE(contains(refusal(R"({"a":1,"\u0061":2})"), "duplicate key \"a\""));
  EXPECT_TRUE(contains(refusal(R"({"\u0061b":1,"a\u0062":2})"), "duplicate key \"ab\""));
  EXPECT_TRUE(contains(refusal(R"({"\/":1,"/":2})"), "duplicate key \"/\""));
  EXPECT_TRUE(contains(refusal("{\"\\u00e9\":1,\"\xc3\xa9\":2}"), "duplicate key \"\\xc3\\xa9\""));
  EXPECT_TRUE(contains(refusal(R"({"":1,"":2})"), "duplicate key \"\""));
}

TEST(Json, TheSameKeyInDifferentObjectsIsNotADuplicate) {
  EXPECT_EQ(refusal(R"({"a":{"a":[{"a":1},{"a":2}]},"b":{"a":3}})"), "");
  EXPECT_EQ(refusal(R"({"a":1,"A":2,"a ":3,"a\u0000":4})"), "");
}

TEST(Json, TextThatIsNotUtf8IsRefused) {
  for (const char* bad :
       {"\"\xff\"", "\"\xc0\x80\"", "\"\xc3\"", "\"\xe0\x80\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
        "\"\xf8\x88\x80\x80\x80\"", "{\"\xff\":1}", "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\""}) {
    EXPECT_TRUE(contains(refusal(bad), "t.json: byte ")) << escape(bad);
  }
}

// The definition of a well-formed two-byte string: both bytes plain ASCII, or one two-byte sequence.
TEST(Json, EveryPairOfBytesInAStringIsAcceptedExactlyIfItIsUtf8) {
  const auto plain = [](int c) { return c >= 0x20 && c < 0x80 && c != '"' && c != '\\'; };
  int accepted = 0;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const bool escape_sequence =
          a == '\\' && std::string_view("\"\\/bfnrt").find(static_cast<char>(b)) != std::string_view::npos;
      const bool two_byte = a >= 0xc2 && a <= 0xdf && b >= 0x80 && b <= 0xbf;
      const bool wanted = (plain(a) && plain(b)) || escape_sequence || two_byte;
      const std::string text = {'"', static_cast<char>(a), static_cast<char>(b), '"'};
      ASSERT_EQ(refusal(text).empty(), wanted) << escape(text);
      accepted += wanted ? 1 : 0;
    }
  }
  EXPECT_EQ(accepted, 94 * 94 + 8 + 30 * 64);
}

TEST(Json, AByteOrderMarkIsRefused) { EXPECT_TRUE(contains(refusal("\xef\xbb\xbf{}"), "t.json: byte 0")); }

TEST(Json, TextAfterTheValueIsRefusedAtItsByte) {
  EXPECT_EQ(refusal("{} \r\n\t"), "");
  EXPECT_EQ(refusal("{} x"), "t.json: byte 3: text after the end of the JSON value");
  EXPECT_TRUE(contains(refusal("{}{}"), "byte 2: text after"));
  EXPECT_TRUE(contains(refusal(std::string_view("{}\0", 3)), "byte 2: text after"));
  EXPECT_NE(refusal("1 2"), "");
}

TEST(Json, LaxSpellingsAreRefused) {
  for (const char* bad :
       {"",   " ",  "{",  "[1,]", "{\"a\":1,}", "{a:1}", "{'a':1}",  "// c\n1",   "/* c */1", "01",
        "+1", ".5", "1.", "0x10", "True",       "nul",   "\"a\nb\"", "\"\\x41\"", "[1 2]",    "{\"a\" 1}"}) {
    EXPECT_NE(refusal(bad), "") << bad;
  }
}

TEST(Json, NanAndInfinityAreRefusedInEverySpelling) {
  for (const char* bad : {"NaN", "nan", "Infinity", "-Infinity", "inf", "-inf", "[NaN]", "{\"a\":Infinity}"}) {
    EXPECT_NE(refusal(bad), "") << bad;
  }
}

TEST(Json, NumbersBeyondADoubleAreRefused) {
  for (const char* bad : {"1e999", "-1e999", "[1e309]", "1.8e308"}) {
    EXPECT_TRUE(contains(refusal(bad), "a number is too large")) << bad << " " << refusal(bad);
  }
  EXPECT_EQ(parse_json("1.7976931348623157e308", "t").as_double(), std::numeric_limits<double>::max());
  EXPECT_EQ(parse_json("1e-999", "t").as_double(), 0.0);
  for (const char* bad : {"1e99999999999", "5e-324184467440", "0e99999999999"}) {
    EXPECT_TRUE(contains(refusal(bad), "a number's exponent is too large")) << bad << " " << refusal(bad);
  }
}

TEST(Json, DoublesAreReadToTheNearestValue) {
  // strtod is correctly rounded in the C library; the reader of Boost.JSON alone is not.
  for (const char* text : {"0.1", "1e-6", "1e-05", "0.30000000000000004", "2.2250738585072014e-308", "5e-324",
                           "123456789.123456789", "0.000001", "9007199254740993.0", "1.0000000000000002", "8.5e-31",
                           "7.2057594037927933e+16", "3.14159265358979323846264338327950288", "-0.0"}) {
    EXPECT_EQ(parse_json(text, "t").as_double(), std::strtod(text, nullptr)) << text;
  }
  uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto value = __builtin_bit_cast(double, state);
    if (!std::isfinite(value)) continue;
    char text[40];
    std::snprintf(text, sizeof text, "%.17e", value);
    ASSERT_EQ(parse_json(text, "t").as_double(), value) << text;
  }
}

TEST(Json, IntegersAreCheckedAgainstTheirRange) {
  const json::value v =
      parse_json(R"({"i":9223372036854775807,"m":-9223372036854775808,"u":9223372036854775808,"f":9.3e18,)"
                 R"("g":9223372036854775808.0})",
                 "t.json");
  const JsonObject o(v, "t.json");
  constexpr int64_t kMin = INT64_MIN, kMax = INT64_MAX;
  EXPECT_EQ(o.integer("i", kMin, kMax), kMax);
  EXPECT_EQ(o.integer("m", kMin, kMax), kMin);
  for (const char* key : {"u", "f", "g"}) {
    const std::string what = error_of(ErrorKind::kMalformed, [&] { o.integer(key, kMin, kMax); });
    EXPECT_TRUE(contains(what, "expected an integer, found the ")) << what;
  }
  EXPECT_EQ(error_of(ErrorKind::kMalformed, [&] { o.integer("i", 0, 10); }),
            "t.json: \"i\": must be 0 to 10, got 9223372036854775807");
}

TEST(Json, OnlyExactIntegersCountAsIntegers) {
  const json::value v =
      parse_json(R"({"a":1.0,"b":1e3,"c":1.5,"d":"1","e":true,"f":null,"g":-0.0,"h":1e-1})", "t.json");
  const JsonObject o(v, "t.json");
  EXPECT_EQ(o.integer("a", 0, 9), 1);
  EXPECT_EQ(o.integer("b", 0, 9999), 1000);
  EXPECT_EQ(o.integer("g", 0, 9), 0);
  for (const char* key : {"c", "d", "e", "f", "h"}) {
    error_of(ErrorKind::kMalformed, [&] { o.integer(key, 0, 9); });
  }
  EXPECT_EQ(error_of(ErrorKind::kMalformed, [&] { o.integer("d", 0, 9); }),
            "t.json: \"d\": expected an integer, found a string");
}

TEST(Json, NullAndAbsentTakeTheFallbackButAWrongTypeNever) {
  const json::value v = parse_json(R"({"n":null,"s":"x","b":true,"d":2.5,"o":{"k":[1,2]}})", "t.json");
  const JsonObject o(v, "t.json");
  EXPECT_FALSE(o.has("n"));
  EXPECT_FALSE(o.has("absent"));
  EXPECT_TRUE(o.has("s"));
  EXPECT_EQ(o.integer_or("n", 7, 0, 9), 7);
  EXPECT_EQ(o.number_or("absent", 0.5, 0, 9), 0.5);
  EXPECT_EQ(o.number("d", 0, 9), 2.5);
  EXPECT_EQ(o.string("s"), "x");
  EXPECT_EQ(o.string_or("n", "y"), "y");
  EXPECT_TRUE(o.boolean_or("b", false));
  EXPECT_TRUE(o.boolean_or("n", true));
  EXPECT_EQ(o.object("o").array("k").size(), 2u);
  error_of(ErrorKind::kMalformed, [&] { o.integer_or("s", 7, 0, 9); });
  error_of(ErrorKind::kMalformed, [&] { o.number_or("s", 7, 0, 9); });
  error_of(ErrorKind::kMalformed, [&] { o.number("d", 0, 2); });
  error_of(ErrorKind::kMalformed, [&] { o.boolean_or("s", true); });
  error_of(ErrorKind::kMalformed, [&] { o.string_or("b", "y"); });
  error_of(ErrorKind::kMalformed, [&] { o.array("o"); });
  EXPECT_EQ(error_of(ErrorKind::kMalformed, [&] { o.string("absent"); }), "t.json: \"absent\": missing");
  EXPECT_EQ(error_of(ErrorKind::kMalformed, [&] { o.object("s"); }),
            "t.json: \"s\": expected an object, found a string");
  EXPECT_EQ(error_of(ErrorKind::kMalformed, [&] { o.object("o").integer("k", 0, 1); }),
            "t.json: \"o\": \"k\": expected an integer, found an array");
}

TEST(Json, PrettyTextReadsBackAsTheSameValueInTheSameOrder) {
  const json::value v = parse_json(R"({"z":1,"a":[1,2.5,-3,1e-7,true,null],"o":{},"e":[],)"
                                   R"("n":[[1],[]],"l":[{"q":"\"\\\n\u00e9"}],"big":18446744073709551615})",
                                   "t.json");
  const std::string text = pretty(v);
  EXPECT_EQ(parse_json(text, "t.json"), v);
  EXPECT_LT(text.find("\"z\""), text.find("\"a\""));
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(pretty(parse_json(R"({"a":1,"b":{"c":[1,2]}})", "t")),
            "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": [1,2]\n  }\n}\n");
}

constexpr std::string_view kDocument = R"({"a":[1,-2.5e3,"x\u00e9\n"],"b":{"c":null,"d":true},"e":"text"})";

TEST(Json, NoProperPrefixOfAnObjectIsAccepted) {
  for (size_t n = 0; n < kDocument.size(); ++n) EXPECT_NE(refusal(kDocument.substr(0, n)), "") << n;
  EXPECT_EQ(refusal(kDocument), "");
}

// A flip may give another valid document; then it must be one that reads back from its own text.
TEST(Json, EverySingleBitFlipIsRefusedOrReadsBack) {
  int accepted = 0;
  for (size_t bit = 0; bit < kDocument.size() * 8; ++bit) {
    std::string text(kDocument);
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    if (!refusal(text).empty()) continue;
    const json::value v = parse_json(text, "t");
    EXPECT_EQ(parse_json(pretty(v), "t"), v) << text;
    ++accepted;
  }
  EXPECT_GT(accepted, 0);
}

class JsonFile : public testing::Test {
 protected:
  JsonFile() {
    char name[] = "/tmp/carpool_json_XXXXXX";
    folder_ = ::mkdtemp(name);
    path_ = folder_ + "/f.json";
  }
  ~JsonFile() override {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }
  std::string folder_, path_;
};

TEST_F(JsonFile, TheWholeFileIsReadIncludingZeroBytes) {
  const std::string text("a\0b\n", 4);
  std::ofstream(path_, std::ios::binary) << text;
  EXPECT_EQ(read_text_file(path_), text);
  EXPECT_EQ(read_text_file(path_, 4), text);
  EXPECT_TRUE(contains(error_of(ErrorKind::kMalformed, [&] { read_text_file(path_, 3); }), "4 bytes, the limit is 3"));
}

TEST_F(JsonFile, AnAbsentFileADirectoryAndAPipeAreMissing) {
  error_of(ErrorKind::kMissing, [&] { read_text_file(path_); });
  error_of(ErrorKind::kMissing, [&] { read_text_file(folder_); });
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  error_of(ErrorKind::kMissing, [&] { read_text_file(path_); });
}

TEST_F(JsonFile, WhatIsNoRegularFileIsCalledSoAndNotAbsent) {
  const auto sentence = [](const std::string& path) {
    return error_of(ErrorKind::kMissing, [&] { read_text_file(path); });
  };
  EXPECT_TRUE(contains(sentence(path_), "no such file"));
  EXPECT_TRUE(contains(sentence(folder_), "not a regular file"));
  EXPECT_TRUE(contains(sentence("/dev/null"), "not a regular file"));
  ASSERT_EQ(::symlink(path_.c_str(), path_.c_str()), 0);
  EXPECT_TRUE(contains(sentence(path_), "symbolic link"));
}

TEST_F(JsonFile, ExistsIsTrueForEveryEntryOfTheFolderAlsoForALinkToItself) {
  EXPECT_FALSE(file_exists(path_));
  EXPECT_FALSE(file_exists(""));
  EXPECT_FALSE(file_exists(std::string(5000, 'x')));
  EXPECT_TRUE(file_exists(folder_));
  EXPECT_FALSE(file_exists(folder_ + std::string("\0x", 2)));
  ASSERT_EQ(::symlink(path_.c_str(), path_.c_str()), 0);
  EXPECT_TRUE(file_exists(path_));
  EXPECT_FALSE(file_exists(path_ + "/below"));
}

TEST(ReadStream, TheWholeStreamIsReadUpToTheLimitAndNotBeyond) {
  const std::string text = std::string(200'000, 'x') + std::string("\0\n", 2);
  const auto read = [&](size_t limit) {
    std::istringstream in(text);
    return read_stream(in, limit, "standard input");
  };
  EXPECT_EQ(read(text.size()), text);
  EXPECT_EQ(read(text.size() + 1), text);
  for (const size_t limit : {size_t{0}, size_t{1}, size_t{65536}, text.size() - 1}) {
    EXPECT_TRUE(contains(error_of(ErrorKind::kMalformed, [&] { read(limit); }),
                         "standard input: more than " + std::to_string(limit) + " bytes"));
  }
  std::istringstream empty;
  EXPECT_EQ(read_stream(empty, 0, "x"), "");
}

TEST_F(JsonFile, AStreamThatCannotBeReadIsAnError) {
  std::ifstream in(folder_);  // opens, but a folder gives no bytes
  error_of(ErrorKind::kIo, [&] { read_stream(in, 10, "x"); });
}

TEST_F(JsonFile, AZeroByteInANameDoesNotOpenTheFileBeforeIt) {
  std::ofstream(path_) << "{}";
  error_of(ErrorKind::kMissing, [&] { read_text_file(path_ + std::string("\0.txt", 5)); });
}

}  // namespace
}  // namespace carpool
