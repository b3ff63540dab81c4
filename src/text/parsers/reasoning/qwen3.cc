// Qwen3 and what writes as it does: <think> on lines of its own before the answer, opened by the prompt or the answer.
// "auto" takes it for every template with <think> that no other format claims.
#include "text/parsers/formats.h"

namespace carpool {
namespace {

bool suits(std::string_view chat_template) { return chat_template.find("<think>") != std::string_view::npos; }

}  // namespace

const ReasoningFormat kReasoningQwen3 = {"qwen3", "<think>", "</think>", false, true, suits};

}  // namespace carpool
