// GLM-4.5 to GLM-5.2: the prompt opens <think>, or the answer does; what stands between the tags is kept byte for byte.
#include "text/parsers/formats.h"

namespace carpool {
namespace {

bool suits(std::string_view chat_template) {
  return chat_template.find("<think>") != std::string_view::npos &&
         chat_template.find("<|observation|>") != std::string_view::npos;
}

}  // namespace

const ReasoningFormat kReasoningGlm45 = {"glm45", "<think>", "</think>", false, false, suits};

}  // namespace carpool
