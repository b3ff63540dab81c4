// What bodies may be, and how errors name what is wrong without saying what it says.
#include "server/fields.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

// "code|param" of the refusal, or "" when accepted; no refusal may quote `secret`.
std::string refusal(const std::string& body, const std::string& secret = "hunter2") {
  try {
    read_body(body);
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 400);
    const std::string text = json::serialize(e.body());
    EXPECT_EQ(text.find(secret), std::string::npos) << text;
    EXPECT_LE(std::string(e.what()).size(), 300u);
    return e.code() + "|" + e.what();
  }
  return "";
}

bool starts(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }

TEST(Body, MustBeOneJsonObject) {
  EXPECT_EQ(refusal(R"({"a": 1})"), "");
  EXPECT_EQ(refusal(" {} \n"), "");
  for (const char* body : {"", " ", "[1]", "null", "{} {}", "{\"a\":1,}", "{'a':1}", "\xef\xbb\xbf{}", "{\"a\":NaN}",
                           "{\"a\":-Infinity}", "{\"hunter2\":1,\"hunter2\":2}", "{\"a\":\"hunter2", "hunter2"}) {
    EXPECT_TRUE(starts(refusal(body), "invalid_json|")) << body << " -> " << refusal(body);
  }
  EXPECT_NE(refusal("{\"a\": 1,}").find("byte 8"), std::string::npos);
}

TEST(Body, BrokenTextIsRefusedAndNotEchoed) {
  for (const char* body :
       {"{\"a\":\"hunter2\xff\"}", "{\"a\":\"\xc0\xaf\"}", "{\"a\":\"\xed\xa0\x80\"}", R"({"a":"hunter2\ud800"})",
        R"({"a":"\ud800\n"})", R"({"a":"\udc00"})", R"({"a":"\u0000"})", R"({"a":"\\\u0000"})"}) {
    const std::string said = refusal(body);
    EXPECT_TRUE(starts(said, "invalid_unicode|")) << body << " -> " << said;
    for (const char c : said) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  }
  EXPECT_TRUE(starts(refusal(std::string("{\"a\":\"\0\"}", 9)), "invalid_unicode|"));
  EXPECT_EQ(refusal(R"({"a":"\\u0000"})"), "") << "an escaped backslash before the letters u0000 is no zero";
}

TEST(Body, DepthIsBounded) {
  const auto nested = [](size_t n) { return "{\"a\":" + std::string(n, '[') + std::string(n, ']') + "}"; };
  EXPECT_EQ(refusal(nested(63)), "");
  EXPECT_TRUE(starts(refusal(nested(64)), "json_too_deep|"));
  EXPECT_TRUE(starts(refusal(nested(100'000)), "json_too_deep|"));
  EXPECT_TRUE(starts(refusal(std::string(3000, '[')), "json_too_deep|"));
}

TEST(Body, NumbersThatNoDoubleHoldsAreInvalidValues) {
  EXPECT_TRUE(starts(refusal(R"({"temperature":1e999})"), "invalid_value|"));
}

std::string param_of(const std::function<void(const Fields&)>& read, const std::string& body) {
  const json::object object = read_body(body);
  try {
    read(Fields(object, "here"));
  } catch (const ApiError& e) {
    return e.code() + "|" + e.param();
  }
  return "";
}

TEST(Fields, ErrorsNameThePathAndWhatIsWrong) {
  const auto integer = [](const Fields& f) { f.integer("n", 1, 8); };
  EXPECT_EQ(param_of(integer, R"({"n":8.0})"), "");
  EXPECT_EQ(param_of(integer, R"({"n":null})"), "");
  EXPECT_EQ(param_of(integer, R"({})"), "");
  for (const char* n : {"0", "9", "1.5", "\"1\"", "true", "[1]", "1e30", "-1180591620717411303424"}) {
    EXPECT_EQ(param_of(integer, std::string("{\"n\":") + n + "}"), "invalid_value|here.n") << n;
  }
  const auto number = [](const Fields& f) { f.number("p", {0, 1, "above 0 and at most 1", true}); };
  EXPECT_EQ(param_of(number, R"({"p":1})"), "");
  for (const char* p : {"0", "-0.0", "1e-60", "1.1", "\"1\"", "[]"}) {
    EXPECT_EQ(param_of(number, std::string("{\"p\":") + p + "}"), "invalid_value|here.p") << p;
  }
  const auto list = [](const Fields& f) { f.array("l", 2); };
  EXPECT_EQ(param_of(list, R"({"l":[1,2]})"), "");
  EXPECT_EQ(param_of(list, R"({"l":[1,2,3]})"), "too_many_items|here.l");
  EXPECT_EQ(param_of(list, R"({"l":{}})"), "invalid_value|here.l");
  EXPECT_EQ(param_of([](const Fields& f) { f.boolean("b"); }, R"({"b":1})"), "invalid_value|here.b");
  EXPECT_EQ(param_of([](const Fields& f) { f.string("s"); }, R"({"s":1})"), "invalid_value|here.s");
  EXPECT_EQ(param_of([](const Fields& f) { f.object("o"); }, R"({"o":1})"), "invalid_value|here.o");
  EXPECT_EQ(param_of([](const Fields& f) { f.required("x"); }, R"({"x":null})"), "missing_field|here.x");
}

TEST(Fields, TokenIdsAreThoseOfTheModelsRows) {
  const auto ids = [](const Fields& f) { read_token_ids(*f.array("t", 9), f.path("t"), 10); };
  EXPECT_EQ(param_of(ids, R"({"t":[0,9]})"), "");
  for (const char* bad : {"10", "-1", "1.5", "\"1\"", "1e20", "null", "[1]"}) {
    EXPECT_EQ(param_of(ids, std::string("{\"t\":[3,") + bad + "]}"), "invalid_value|here.t[1]") << bad;
  }
}

TEST(ApiErrors, MessagesArePrintableAndShort) {
  const ApiError error(400, "invalid_request_error", "invalid_value", "line\nbreak \xff " + std::string(1000, 'x'),
                       "p");
  const std::string text = error.what();
  EXPECT_EQ(text.size(), 300u);
  EXPECT_EQ(text.substr(0, 20), "line\\x0abreak \\xff x");
  EXPECT_EQ(text.substr(297), "...");
  EXPECT_EQ(
      json::serialize(bad_request("invalid_json", "a \"quoted\" word").body()),
      R"({"error":{"message":"a \"quoted\" word","type":"invalid_request_error","param":null,"code":"invalid_json"}})");
}

}  // namespace
}  // namespace carpool
