// DeepSeek-V3.1: name and arguments without decoration. Each of V3 and V3.1 reads the other's.
#include "text/parsers/calls/deepseek_calls.h"

namespace carpool {
namespace {

bool suits(std::string_view chat_template) { return chat_template.find(kDeepSeekWithin[0]) != std::string_view::npos; }

std::string forced(std::string_view function) {
  std::string text = std::string(kDeepSeekAround[0]).append(kDeepSeekOpen);
  if (!function.empty()) text.append(function).append(kDeepSeekWithin[0]);
  return text;
}

}  // namespace

const CallFormat kCallsDeepSeekV31 = {"deepseekv31",
                                      kDeepSeekOpen,
                                      kDeepSeekClose,
                                      {true},
                                      kDeepSeekAround,
                                      kDeepSeekWithin,
                                      true,
                                      read_deepseek_call,
                                      forced,
                                      {kDeepSeekClose, kDeepSeekOpen, kDeepSeekAround[1]},
                                      suits};

}  // namespace carpool
