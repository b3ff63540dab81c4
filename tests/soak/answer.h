// Reads what the APIs answer, whole or as a stream, into one form that can be compared.
//
// Owns Answer. A stream's pieces are put together here; what no client could read, or a piece without new text, is
// noted as broken.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "soak/cases.h"

namespace carpool::soak {

struct Answer {
  std::string text;
  std::vector<int> ids;  // of /generate
  std::string finish;    // "length", "abort", ...; of /v1/messages "max_tokens"
  int prompt_tokens = -1, completion_tokens = -1;
  bool done = false;       // the stream said that it is complete
  int pieces = 0;          // events with text
  std::string error_code;  // of an error event
  std::string broken;      // why this is no answer
};

void take_whole(Api api, const std::string& body, Answer& answer);
void take_event(Api api, const std::string& data, Answer& answer);

// Why `answer` is not the right one to `c`; empty when it is. `cut`: it was aborted and may end early.
std::string wrong(const Case& c, const Answer& answer, bool streamed, bool cut);

// Why a body is not an error of the API's one shape; empty when it is. `code` gets its code.
std::string wrong_error(const std::string& body, std::string& code);

}  // namespace carpool::soak
