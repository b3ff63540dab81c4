// gpt-oss: messages to functions.NAME in the commentary channel of harmony (harmony.h).
#include "text/parsers/formats.h"

namespace carpool {
namespace {

bool suits(std::string_view chat_template) {
  return chat_template.find("<|channel|>") != std::string_view::npos &&
         chat_template.find("functions.") != std::string_view::npos;
}

// The name is the model's to choose when none is given: what follows is the rest of the header.
std::string forced(std::string_view function) {
  std::string text = "<|channel|>commentary to=functions.";
  if (!function.empty()) text.append(function).append(" <|constrain|>json<|message|>");
  return text;
}

}  // namespace

const CallFormat kCallsGptOss = {"gpt-oss", "", "", {}, {}, {}, true, nullptr, forced, {}, suits};

}  // namespace carpool
