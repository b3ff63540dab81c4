// Text that knows where it came from: the currency between chat templates and the tokenizer.
//
// What the template's author wrote is trusted and may contain control tokens; what came from messages, tools or
// any other part of a request is not, and is encoded as ordinary text whatever it spells.
#pragma once

#include <string>

namespace carpool {

struct Piece {
  std::string text;
  bool trusted;
};

}  // namespace carpool
