// What a model's text means: reasoning, content and calls of tools, as events that do not depend on how it was cut.
//
// Owns OutputParser, fed with the text of one answer in pieces of any size, and the formats it knows: one file each in
// reasoning/ and calls/, one line each in reasoning_parsers.def and tool_call_parsers.def. A call is told when it is
// complete and never before: half a call cannot be taken back, and must not be run. What is broken becomes content,
// what names no tool that the request has is dropped; both are counted. Formats are those that the chat templates of
// the models prescribe. Not here: what an API makes of it (server/reply.h), forcing a call (server/output_plan.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace carpool {

struct OutputEvent {
  // Of a call: kCallBegin with the function's name, kArguments with pieces of one JSON object, kCallEnd.
  enum class Kind { kReasoning, kContent, kCallBegin, kArguments, kCallEnd };
  Kind kind;
  std::string text;  // whole characters
};
using OutputEvents = std::vector<OutputEvent>;

struct ToolFunction {
  std::string name;
  json::object parameters;  // a JSON schema; empty = nothing is known
};

// The function of this name, or null.
const ToolFunction* find_function(const std::vector<ToolFunction>& functions, std::string_view name);

// Calls that a model made and nobody was told of.
struct LostCalls {
  int unknown = 0;  // no such function in the request
  int broken = 0;   // not in the format, or unfinished; their text is content, or an argument is missing
  int surplus = 0;  // beyond the most that were asked for
};

inline constexpr int kMaxCalls = 128;                     // of one answer
inline constexpr size_t kMaxCallBytes = size_t{4} << 20;  // of one call's text
inline constexpr size_t kMaxFunctionName = 128;           // bytes

struct ReasoningFormat;
struct CallFormat;

// Which formats a model speaks; null = that part is not parsed.
struct OutputFormat {
  const ReasoningFormat* reasoning = nullptr;
  const CallFormat* calls = nullptr;

  // By name: "none", "auto" (what `chat_template` shows, null where nothing fits), or one of the lists. Error{kUsage}
  // with the names there are. gpt-oss is one format for both: naming it once brings both, and Error{kConfig} when the
  // other is something else; only its calls can be left out.
  static OutputFormat choose(const std::string& reasoning, const std::string& calls, std::string_view chat_template);
  // Tags that may be single tokens, special ones too: their text must reach the parser.
  std::vector<std::string_view> tags() const;
  const char* reasoning_name() const;  // "none"
  const char* calls_name() const;
  bool operator==(const OutputFormat&) const = default;
};
std::vector<std::string> reasoning_parser_names();
std::vector<std::string> tool_call_parser_names();

// How reasoning stands at the end of a prompt: the last of its tags there, if nothing but blanks follows.
enum class PromptEnd { kOpen, kClosed, kNeither };
PromptEnd reasoning_at_end(const OutputFormat& format, std::string_view prompt);
// The tag that ends reasoning; "" where it ends otherwise.
std::string_view reasoning_close(const OutputFormat& format);
// What an answer that calls `function` begins with ("" = any function); `format.calls` is not null.
std::string forced_call(const OutputFormat& format, std::string_view function);

struct OutputOptions {
  // The functions of the request; null = calls are not parsed, their text is content.
  std::shared_ptr<const std::vector<ToolFunction>> functions;
  PromptEnd prompt = PromptEnd::kNeither;
  bool separate_reasoning = true;  // else it is content, with its tags where the format has them
  int max_calls = kMaxCalls;
  // A grammar holds the answer: behind its reasoning it is one text, or calls, and nothing in it is a tag that is not
  // the grammar's. `reasons` false: not even reasoning comes, the answer is that text from its first byte on.
  bool structured = false, reasons = true;
};

class OutputParser {
 public:
  OutputParser(const OutputFormat& format, OutputOptions options);
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  // Appends events. `text` may end within a character; what is no UTF-8 becomes U+FFFD.
  void feed(std::string_view text, OutputEvents& out);
  // The end, once. `complete`: the model ended its answer itself, rather than a limit or a caller.
  void finish(bool complete, OutputEvents& out);
  // Whether the next text is reasoning as far as is known.
  bool in_reasoning() const;
  const LostCalls& lost() const;

  class Stage;

 private:
  std::unique_ptr<Stage> stage_;
  std::string held_;  // the beginning of a character
};

}  // namespace carpool
