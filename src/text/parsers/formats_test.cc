// Choosing formats by name and by chat template.
#include "text/parsers/formats.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/source_dir_test_util.h"
#include "text/parsers/parser_test_util.h"

namespace carpool {
namespace {

using Names = std::pair<std::string, std::string>;

Names chosen(const std::string& reasoning, const std::string& calls, const std::string& chat_template = "") {
  const OutputFormat format = OutputFormat::choose(reasoning, calls, chat_template);
  return {format.reasoning_name(), format.calls_name()};
}

TEST(Formats, NamesAreThoseOfTheLists) {
  for (const std::string& name : reasoning_parser_names()) EXPECT_NO_THROW(chosen(name, "auto")) << name;
  for (const std::string& name : tool_call_parser_names()) EXPECT_NO_THROW(chosen("auto", name)) << name;
  EXPECT_EQ(chosen("auto", "auto"), Names("none", "none"));
  EXPECT_EQ(chosen("glm45", "glm47"), Names("glm45", "glm47"));
  EXPECT_EQ(chosen("none", "hermes"), Names("none", "qwen25"));
  for (const auto& [reasoning, calls] : {Names("glm", "auto"), Names("auto", "glm"), Names("", "auto")}) {
    try {
      chosen(reasoning, calls);
      ADD_FAILURE() << reasoning << calls;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(e.what()).find("glm45"), std::string::npos) << e.what();
    }
  }
}

TEST(Formats, GptOssIsOneFormatForBoth) {
  EXPECT_EQ(chosen("gpt-oss", "auto"), Names("gpt-oss", "gpt-oss"));
  EXPECT_EQ(chosen("auto", "gpt-oss"), Names("gpt-oss", "gpt-oss"));
  EXPECT_EQ(chosen("gpt-oss", "none"), Names("gpt-oss", "none"));
  EXPECT_THROW(chosen("gpt-oss", "glm47"), Error);
  EXPECT_THROW(chosen("none", "gpt-oss"), Error);
}

TEST(Formats, AutoReadsTheTemplatesOfTheFamilies) {
  const std::string folder = source_dir() + "/../shared/data/templates/";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not here";
  const std::pair<const char*, Names> table[] = {{"GLM-4.6", {"glm45", "glm45"}},
                                                 {"GLM-4.7-Flash", {"glm45", "glm47"}},
                                                 {"Kimi-K2-Instruct", {"none", "kimi_k2"}},
                                                 {"Kimi-K2-Thinking", {"qwen3", "kimi_k2"}},
                                                 {"MiniMax-M2", {"qwen3", "minimax-m2"}},
                                                 {"Qwen-Qwen3-0.6B", {"qwen3", "qwen25"}},
                                                 {"Qwen3-Coder", {"none", "qwen3_coder"}},
                                                 {"deepseek-ai-DeepSeek-V3.1", {"deepseek-r1", "deepseekv31"}},
                                                 {"openai-gpt-oss-120b", {"gpt-oss", "gpt-oss"}}};
  for (const auto& [file, names] : table) {
    EXPECT_EQ(chosen("auto", "auto", read_text_file(folder + file + ".jinja")), names) << file;
  }
}

TEST(Formats, APromptSaysWhetherReasoningIsOpen) {
  const OutputFormat glm = format_of("glm45", "none");
  EXPECT_EQ(reasoning_at_end(glm, "<|assistant|><think>"), PromptEnd::kOpen);
  EXPECT_EQ(reasoning_at_end(glm, "<|assistant|><think>\n"), PromptEnd::kOpen);
  EXPECT_EQ(reasoning_at_end(glm, "<|assistant|></think>"), PromptEnd::kClosed);
  EXPECT_EQ(reasoning_at_end(glm, "<think>\n\n</think>\n\n"), PromptEnd::kClosed);
  EXPECT_EQ(reasoning_at_end(glm, "<think><|assistant|>"), PromptEnd::kNeither);
  EXPECT_EQ(reasoning_at_end(format_of("none", "glm47"), "<think>"), PromptEnd::kNeither);
}

// What a call is begun with is the beginning of what the parser reads.
TEST(Formats, ForcedCallsAreReadBack) {
  const std::vector<ToolFunction> functions = functions_of(R"({"now": {}, "find": {"text": {"type": "string"}}})");
  const std::pair<const char*, std::pair<const char*, const char*>> rests[] = {
      {"glm47", {"now", "</tool_call>"}},
      {"glm45", {"now", "\n</tool_call>"}},
      {"qwen25", {"now\", \"arguments\": ", "{}}</tool_call>"}},
      {"qwen3_coder", {"now>\n", "</function>\n</tool_call>"}},
      {"minimax-m2", {"now\">\n", "</invoke>\n</minimax:tool_call>"}},
      {"kimi_k2", {"now:0<|tool_call_argument_begin|>", "{}<|tool_call_end|>"}},
      {"deepseekv3", {"now\n```json\n", "{}\n```<\uFF5Ctool\u2581call\u2581end\uFF5C>"}},
      {"deepseekv31", {"now<\uFF5Ctool\u2581sep\uFF5C>", "{}<\uFF5Ctool\u2581call\u2581end\uFF5C>"}},
      {"gpt-oss", {"now <|constrain|>json<|message|>", "{}<|call|>"}}};
  for (const auto& [name, rest] : rests) {
    const ParseCase c{format_of("auto", name), functions};
    const Parsed expected{"", "", {{"now", "{}"}}};
    EXPECT_EQ(parse_all_ways(c, forced_call(c.format, "now") + rest.second), expected) << name;
    EXPECT_EQ(parse_all_ways(c, forced_call(c.format, "") + rest.first + rest.second), expected) << name;
  }
}

}  // namespace
}  // namespace carpool
