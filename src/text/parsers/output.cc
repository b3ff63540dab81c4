// The stages put together, and whole characters kept whole. See output.h.
#include "text/parsers/output.h"

#include <fmt/format.h>

#include "text/parsers/call_blocks.h"
#include "text/parsers/formats.h"
#include "text/parsers/harmony.h"
#include "text/parsers/think_tags.h"
#include "text/utf8.h"

namespace carpool {
namespace {

// Content is content: no calls are parsed.
class PlainStage final : public OutputParser::Stage {
 public:
  void feed(std::string_view text, OutputEvents& out) override { add_text(OutputEvent::Kind::kContent, text, out); }
  void finish(bool, OutputEvents&) override {}
  bool in_reasoning() const override { return false; }
  const LostCalls& lost() const override { return lost_; }

 private:
  LostCalls lost_;
};

std::unique_ptr<OutputParser::Stage> make_stage(const OutputFormat& format, const OutputOptions& options) {
  const bool calls = format.calls && options.functions;
  CallSink sink(options.functions, options.max_calls);
  if (is_harmony(format.reasoning)) return std::make_unique<HarmonyStage>(std::move(sink), calls, options);
  std::unique_ptr<OutputParser::Stage> inner;
  if (calls) {
    inner = std::make_unique<CallBlocks>(*format.calls, std::move(sink));
  } else {
    inner = std::make_unique<PlainStage>();
  }
  if (!format.reasoning || !options.reasons) return inner;
  return std::make_unique<ThinkTags>(*format.reasoning, options, calls ? format.calls : nullptr, std::move(inner));
}

}  // namespace

void add_text(OutputEvent::Kind kind, std::string_view text, OutputEvents& out) {
  if (!text.empty()) out.push_back({kind, std::string(text)});
}

const ToolFunction* find_function(const std::vector<ToolFunction>& functions, std::string_view name) {
  for (const ToolFunction& function : functions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

void CallSink::tell(const ParsedCall& call, OutputEvents& out) {
  if (!find_function(*functions_, call.name)) {
    ++lost.unknown;
  } else if (told_ >= most_) {
    ++lost.surplus;
  } else {
    ++told_;
    out.push_back({OutputEvent::Kind::kCallBegin, call.name});
    out.push_back({OutputEvent::Kind::kArguments, call.arguments});
    out.push_back({OutputEvent::Kind::kCallEnd, ""});
  }
}

OutputParser::OutputParser(const OutputFormat& format, OutputOptions options) : stage_(make_stage(format, options)) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

void OutputParser::feed(std::string_view text, OutputEvents& out) {
  held_ += text;
  std::string whole;
  size_t at = 0;
  while (at < held_.size()) {
    const std::string_view rest = std::string_view(held_).substr(at);
    const Utf8Unit unit = next_utf8(rest);
    if (unit.kind == Utf8Kind::kIncomplete) break;
    whole += unit.kind == Utf8Kind::kValid ? rest.substr(0, unit.length) : kReplacement;
    at += unit.length;
  }
  held_.erase(0, at);
  if (!whole.empty()) stage_->feed(whole, out);
}

void OutputParser::finish(bool complete, OutputEvents& out) {
  if (!held_.empty()) stage_->feed(sanitize_utf8(held_), out);
  held_.clear();
  stage_->finish(complete, out);
}

bool OutputParser::in_reasoning() const { return stage_->in_reasoning(); }
const LostCalls& OutputParser::lost() const { return stage_->lost(); }

}  // namespace carpool
