// gpt-oss: the analysis channel of harmony (harmony.h).
#include "text/parsers/formats.h"

namespace carpool {
namespace {

bool suits(std::string_view chat_template) {
  return chat_template.find("<|channel|>") != std::string_view::npos &&
         chat_template.find("<|message|>") != std::string_view::npos;
}

}  // namespace

const ReasoningFormat kReasoningGptOss = {"gpt-oss", "", "", false, false, suits};

}  // namespace carpool
