// Tools as requests offer them: what is read, what is refused and with which path.
#include "server/tools.h"

#include <gtest/gtest.h>

#include "server/chat.h"

namespace carpool {
namespace {

using Choice = ToolWish::Choice;

ToolWish openai(const std::string& text) {
  const json::object body = read_body(text);
  return read_openai_tools(Fields(body));
}
ToolWish anthropic(const std::string& text) {
  const json::object body = read_body(text);
  return read_anthropic_tools(Fields(body));
}

std::string refusal(ToolWish (*read)(const std::string&), const std::string& body) {
  try {
    read(body);
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 400);
    return e.code() + "|" + e.param();
  }
  return "";
}

constexpr const char* kOpenAi =
    R"("tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}},
                {"type":"function","function":{"name":"g"}}])";
constexpr const char* kAnthropic = R"("tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}])";

std::string with(const char* tools, const std::string& more) { return "{" + std::string(tools) + more + "}"; }

TEST(Tools, BothApisGiveTheSame) {
  const ToolWish a = openai(with(kOpenAi, "")), b = anthropic(with(kAnthropic, ""));
  EXPECT_EQ(a.tools.at(0), json::parse(R"({"type":"function","function":{"name":"f","description":"d",
                                           "parameters":{"type":"object"},"strict":true}})"));
  EXPECT_EQ(a.tools.at(1), json::parse(R"({"type":"function","function":{"name":"g","description":"",
                                           "parameters":{"type":"object","properties":{}}}})"));
  EXPECT_EQ(b.tools.at(0).at("function").at("parameters"), a.tools.at(0).at("function").at("parameters"));
  EXPECT_EQ(a.choice, Choice::kAuto);
  EXPECT_EQ(b.choice, Choice::kAuto);
  EXPECT_TRUE(a.parallel);
  ASSERT_TRUE(a.functions);
  EXPECT_EQ((*a.functions)[1].name, "g");
}

TEST(Tools, ChoicesAreRead) {
  EXPECT_EQ(openai("{}").choice, Choice::kNone);
  EXPECT_EQ(openai(R"({"tools":[],"tool_choice":"auto"})").choice, Choice::kNone);
  EXPECT_EQ(openai(with(kOpenAi, R"(,"tool_choice":"none")")).choice, Choice::kNone);
  EXPECT_EQ(openai(with(kOpenAi, R"(,"tool_choice":"required","parallel_tool_calls":false)")).choice,
            Choice::kRequired);
  EXPECT_FALSE(openai(with(kOpenAi, R"(,"parallel_tool_calls":false)")).parallel);
  EXPECT_EQ(openai(with(kOpenAi, R"(,"tool_choice":{"type":"function","function":{"name":"g"}})")).named, "g");
  EXPECT_EQ(anthropic(with(kAnthropic, R"(,"tool_choice":{"type":"any"})")).choice, Choice::kRequired);
  EXPECT_EQ(anthropic(with(kAnthropic, R"(,"tool_choice":{"type":"tool","name":"f"})")).named, "f");
  EXPECT_EQ(anthropic(with(kAnthropic, R"(,"tool_choice":{"type":"none"})")).choice, Choice::kNone);
  EXPECT_FALSE(
      anthropic(with(kAnthropic, R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})")).parallel);
}

TEST(Tools, WhatIsNoToolIsRefusedWithItsPath) {
  const std::pair<std::string, const char*> table[] = {
      {R"({"tools":"f"})", "invalid_value|tools"},
      {R"({"tools":["f"]})", "invalid_value|tools[0]"},
      {R"({"tools":[{}]})", "missing_field|tools[0].type"},
      {R"({"tools":[{"type":"code_interpreter"}]})", "unsupported_value|tools[0].type"},
      {R"({"tools":[{"type":"function"}]})", "missing_field|tools[0].function"},
      {R"({"tools":[{"type":"function","function":{}}]})", "missing_field|tools[0].function.name"},
      {R"({"tools":[{"type":"function","function":{"name":""}}]})", "invalid_value|tools[0].function.name"},
      {R"({"tools":[{"type":"function","function":{"name":"a b"}}]})", "invalid_value|tools[0].function.name"},
      {R"({"tools":[{"type":"function","function":{"name":"<think>"}}]})", "invalid_value|tools[0].function.name"},
      {R"({"tools":[{"type":"function","function":{"name":")" + std::string(129, 'a') + R"("}}]})",
       "invalid_value|tools[0].function.name"},
      {R"({"tools":[{"type":"function","function":{"name":"f","parameters":[]}}]})",
       "invalid_value|tools[0].function.parameters"},
      {with(kOpenAi, R"(,"tool_choice":"maybe")"), "invalid_value|tool_choice"},
      {with(kOpenAi, R"(,"tool_choice":{"type":"allowed_tools"})"), "unsupported_value|tool_choice.type"},
      {with(kOpenAi, R"(,"tool_choice":{"type":"function","function":{"name":"h"}})"),
       "invalid_value|tool_choice.function.name"},
      {R"({"tool_choice":"required"})", "invalid_value|tool_choice"},
      {R"({"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]})",
       "invalid_value|tools[1]"}};
  for (const auto& [body, expected] : table) EXPECT_EQ(refusal(openai, body), expected) << body;
  std::string many = R"({"tools":[{})";
  for (int i = 0; i < 128; ++i) many += ",{}";
  EXPECT_EQ(refusal(openai, many + "]}"), "too_many_items|tools");
  EXPECT_EQ(refusal(anthropic, R"({"tools":[{"name":"f"}]})"), "missing_field|tools[0].input_schema");
  EXPECT_EQ(refusal(anthropic, R"({"tools":[{"type":"web_search_20250305","name":"web_search"}]})"),
            "unsupported_value|tools[0].type");
  EXPECT_EQ(refusal(anthropic, with(kAnthropic, R"(,"tool_choice":{"type":"tool"})")),
            "missing_field|tool_choice.name");
}

}  // namespace
}  // namespace carpool
