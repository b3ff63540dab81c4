// The parts of which formats are made, for the files in reasoning/ and calls/. Read first: output.h.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/parsers/output.h"

namespace carpool {

// Reasoning between two tags at the beginning of an answer.
struct ReasoningFormat {
  const char* name;
  std::string_view open, close;  // "" both for harmony, which is no pair of tags (harmony.h)
  bool open_by_default;          // where the prompt does not say: the answer begins within reasoning
  bool trims;                    // blanks at the inner ends of reasoning and behind it are the format's, not the text's
  bool (*suits)(std::string_view chat_template);
};

struct ParsedCall {
  std::string name;
  std::string arguments;  // the text of a JSON object
};

// What a block of text says.
struct ParsedBlock {
  std::vector<ParsedCall> calls;  // none = it is not in the format
  bool exact = true;              // nothing of it was left out
};

// Where a block may hold its own end tag: within JSON strings, or between two tags.
struct Quotation {
  bool json = false;
  std::string_view open = {}, close = {};
};

// How a call is written that must be made, beside what forced() gives: what may stand behind it.
struct CallSpelling {
  std::string_view finish;  // behind the arguments, up to the end of the call
  std::string_view next;    // before the name of a further call
  std::string_view tail;    // behind the last call
  // Around keys and values; "" where the arguments are one JSON object.
  std::string_view key_open = {}, value_open = {}, value_close = {};
};

// Calls in blocks between two tags, among content.
struct CallFormat {
  const char* name;
  std::string_view open, close;  // of one block; "" both for harmony
  Quotation quotation;
  std::span<const std::string_view> around;  // further tags that stand around blocks and say nothing, the first before
  std::span<const std::string_view> within;  // further tags within blocks
  bool control;                              // the tags are control tokens: they are never content
  ParsedBlock (*read)(std::string_view body, const std::vector<ToolFunction>& functions);
  std::string (*forced)(std::string_view function);
  CallSpelling spelling;
  bool (*suits)(std::string_view chat_template);
};

#define REASONING_PARSER(name, symbol) extern const ReasoningFormat symbol;
#define TOOL_CALL_PARSER(name, symbol) extern const CallFormat symbol;
#include "text/parsers/reasoning_parsers.def"
#include "text/parsers/tool_call_parsers.def"
#undef REASONING_PARSER
#undef TOOL_CALL_PARSER

inline bool is_harmony(const ReasoningFormat* format) { return format && format->open.empty(); }
inline bool is_harmony(const CallFormat* format) { return format && format->open.empty(); }

// One step of parsing: text of whole characters in, events out.
class OutputParser::Stage {
 public:
  virtual ~Stage() = default;
  virtual void feed(std::string_view text, OutputEvents& out) = 0;
  virtual void finish(bool complete, OutputEvents& out) = 0;
  virtual bool in_reasoning() const = 0;
  virtual const LostCalls& lost() const = 0;
};

// Hands parsed calls on, and counts what is not.
class CallSink {
 public:
  CallSink(std::shared_ptr<const std::vector<ToolFunction>> functions, int most)
      : functions_(std::move(functions)), most_(most) {}
  const std::vector<ToolFunction>& functions() const { return *functions_; }
  void tell(const ParsedCall& call, OutputEvents& out);
  LostCalls lost;

 private:
  std::shared_ptr<const std::vector<ToolFunction>> functions_;
  int most_, told_ = 0;
};

void add_text(OutputEvent::Kind kind, std::string_view text, OutputEvents& out);  // nothing for no text

}  // namespace carpool
