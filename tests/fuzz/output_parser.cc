// Parsers of reasoning and calls of tools: for every pair of formats, the events of a text are the same however it is
// cut; a call names a function of the request and has a JSON object, and all text is whole UTF-8 and was in the answer.
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "fuzz.h"
#include "text/parsers/output.h"
#include "text/utf8.h"

namespace carpool {
namespace {

using Kind = OutputEvent::Kind;

std::shared_ptr<const std::vector<ToolFunction>> functions() {
  const auto parameters = [](const char* text) { return parse_json(text, "schema").as_object(); };
  static const auto all = std::make_shared<const std::vector<ToolFunction>>(std::vector<ToolFunction>{
      {"f", {}},
      {"get_weather", parameters(R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
                                     "x":{"type":["number","null"]},"list":{"type":"array"},"on":{"type":"boolean"}}})")}});
  return all;
}

// Events put together, and what each must be by itself.
struct Result {
  std::string text;
  size_t told = 0;  // bytes of reasoning and content
  int calls = 0;

  void add(const OutputEvents& events, const OutputOptions& options) {
    for (const OutputEvent& e : events) {
      FUZZ_CHECK(is_valid_utf8(e.text), "part of a character");
      const bool in_call = e.kind == Kind::kArguments || e.kind == Kind::kCallEnd;
      FUZZ_CHECK(in_call == open_, "events of a call out of order");
      if (e.kind == Kind::kReasoning || e.kind == Kind::kContent) {
        const char* label = e.kind == Kind::kReasoning ? "\nreasoning: " : "\ncontent: ";
        if (last_ != e.kind || text.empty()) text += label;
        text += e.text;
        told += e.text.size();
      } else if (e.kind == Kind::kCallBegin) {
        FUZZ_CHECK(options.functions && find_function(*options.functions, e.text), "a call of " + e.text);
        FUZZ_CHECK(++calls <= options.max_calls, "more calls than asked for");
        text += "\ncall: " + e.text + " ";
        open_ = true;
        arguments_.clear();
      } else if (e.kind == Kind::kArguments) {
        text += e.text;
        arguments_ += e.text;
      } else {
        FUZZ_CHECK(parse_json(arguments_, "arguments").is_object(), arguments_);
        open_ = false;
      }
      last_ = e.kind;
    }
  }
  void end(const LostCalls& lost) {
    FUZZ_CHECK(!open_, "a call without an end");
    text += "\nlost: " + std::to_string(lost.unknown) + " " + std::to_string(lost.broken) + " " +
            std::to_string(lost.surplus);
  }

 private:
  Kind last_ = Kind::kCallEnd;
  bool open_ = false;
  std::string arguments_;
};

// Pieces of 1 to `longest` bytes; 0: all at once.
Result parse(const OutputFormat& format, const OutputOptions& options, bool complete, std::string_view text,
             size_t longest) {
  OutputParser parser(format, options);
  Result result;
  for (size_t at = 0, n = 0; at < text.size(); at += n) {
    n = longest == 0 ? text.size() : 1 + (at * 7 + longest) % longest;
    OutputEvents events;
    parser.feed(text.substr(at, n), events);
    result.add(events, options);
  }
  OutputEvents events;
  parser.finish(complete, events);
  result.add(events, options);
  result.end(parser.lost());
  return result;
}

}  // namespace
}  // namespace carpool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  if (size > 8192) return 0;
  fuzz::Bytes bytes(data, size);
  std::vector<std::string> reasoning = reasoning_parser_names(), calls = tool_call_parser_names();
  reasoning.emplace_back("none");
  calls.emplace_back("none");
  OutputFormat format;
  try {
    const std::string& first = reasoning[bytes.byte() % reasoning.size()];
    format = OutputFormat::choose(first, calls[bytes.byte() % calls.size()], "");
  } catch (const Error& error) {
    FUZZ_CHECK(error.kind() == ErrorKind::kConfig, error.what());
    return 0;
  }
  const unsigned flags = bytes.byte();
  OutputOptions options;
  if (flags % 4 != 0) options.functions = functions();
  options.prompt = static_cast<PromptEnd>(flags / 4 % 3);
  options.separate_reasoning = flags / 16 % 4 != 0;
  if (flags / 64 == 1) options.max_calls = 1;
  const bool complete = flags / 128 == 0;
  const Result whole = parse(format, options, complete, bytes.rest(), 0);
  FUZZ_CHECK(whole.told <= sanitize_utf8(bytes.rest()).size(), "more text than there was");
  for (const size_t longest : {size_t{1}, size_t{2}, size_t{3} + size % 13}) {
    const Result cut = parse(format, options, complete, bytes.rest(), longest);
    FUZZ_CHECK(cut.text == whole.text,
               "whole:" + whole.text + "\nin pieces of up to " + std::to_string(longest) + ":" + cut.text);
  }
  return 0;
}
