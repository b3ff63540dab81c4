// DeepSeek-R1: the answer begins within reasoning, whether the prompt opened it or not; V3.1's prompts say which.
#include "text/parsers/formats.h"

namespace carpool {
namespace {

bool suits(std::string_view chat_template) {
  return chat_template.find("<\uFF5CAssistant\uFF5C>") != std::string_view::npos &&
         chat_template.find("think>") != std::string_view::npos;
}

}  // namespace

const ReasoningFormat kReasoningDeepSeekR1 = {"deepseek-r1", "<think>", "</think>", true, true, suits};

}  // namespace carpool
