// How the text of an answer will be read: what a request wants of its model's formats, and the prompt that goes with
// it.
//
// Owns OutputPlan and plan_output. A call that must be made is structure: after its reasoning the model can only write
// calls of the functions that may be called, in its own format, with arguments that their schemas accept; an answer
// that ends without a whole call nevertheless is an error, not an answer. Structure that was asked for begins behind
// reasoning, too. Read next: reply.h, text/parsers/output.h, grammar/structure.h.
#pragma once

#include <memory>
#include <string>

#include "server/chat.h"
#include "server/parameters.h"
#include "server/service.h"

namespace carpool {

struct OutputPlan {
  OutputFormat format;
  OutputOptions options;
  bool stream_reasoning = true;  // else reasoning comes in one chunk, when it has ended
  bool must_call = false;
  int past_calls = 0;  // in the messages: Kimi's ids count on
};

// Renders `chat`, and fills output, structure and show_special of `generation`. `fields` are those of OpenAI's chat
// (separate_reasoning, stream_reasoning), or null. ApiError 400, also for tools where the server has no parser of
// calls.
Prompt plan_output(const Served& served, Chat chat, const Fields* fields, Generation& generation);

// The name of call `index` of a choice: 24 hexadecimal digits behind `prefix`, or Kimi's functions.NAME:INDEX.
std::string call_id(const OutputPlan& plan, const char* prefix, const std::string& answer, int choice, int index,
                    const std::string& function);

}  // namespace carpool
