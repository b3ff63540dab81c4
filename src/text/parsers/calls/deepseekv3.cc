// DeepSeek-V3 and R1: the arguments are fenced as code. Each of V3 and V3.1 reads the other's.
#include "text/parsers/calls/deepseek_calls.h"

namespace carpool {
namespace {

bool suits(std::string_view chat_template) {
  return chat_template.find(kDeepSeekWithin[0]) != std::string_view::npos &&
         chat_template.find("```json") != std::string_view::npos;
}

std::string forced(std::string_view function) {
  std::string text =
      std::string(kDeepSeekAround[0]).append(kDeepSeekOpen).append("function").append(kDeepSeekWithin[0]);
  if (!function.empty()) text.append(function).append("\n```json\n");
  return text;
}

}  // namespace

const CallFormat kCallsDeepSeekV3 = {"deepseekv3",
                                     kDeepSeekOpen,
                                     kDeepSeekClose,
                                     {true},
                                     kDeepSeekAround,
                                     kDeepSeekWithin,
                                     true,
                                     read_deepseek_call,
                                     forced,
                                     {kDeepSeekFencedEnd, kDeepSeekFencedNext, kDeepSeekAround[1]},
                                     suits};

}  // namespace carpool
