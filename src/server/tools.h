// The functions that a request offers to the model, and whether it must call one.
//
// Owns the reading of tools, tool_choice and parallel_tool_calls as OpenAI and Anthropic have them, into one form. Only
// functions that the client runs are served; a server's own tools (web search, code) are refused. What templates see is
// OpenAI's form of a tool. Read next: chat.h, output_plan.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/fields.h"
#include "text/parsers/output.h"

namespace carpool {

struct ToolWish {
  enum class Choice { kNone, kAuto, kRequired, kNamed };

  json::array tools;  // {"type": "function", "function": {"name", "description", "parameters", ...}}
  std::shared_ptr<const std::vector<ToolFunction>> functions;  // the same; null when there are none
  Choice choice = Choice::kNone;                               // kNone also when there are no tools
  std::string named;                                           // of kNamed
  bool parallel = true;                                        // more than one call in an answer

  bool wanted() const { return choice != Choice::kNone; }
  bool forced() const { return choice == Choice::kRequired || choice == Choice::kNamed; }
};

// From the body of a request. ApiError 400 with the path of what is wrong; at most kMaxTools tools, whose names differ
// and are letters, digits and _ - . : / only.
ToolWish read_openai_tools(const Fields& body);
ToolWish read_anthropic_tools(const Fields& body);

// A function's name in a message, checked as above.
std::string read_function_name(const Fields& function);

}  // namespace carpool
