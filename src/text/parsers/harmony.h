// gpt-oss: messages with a channel and a recipient, instead of tags around parts of one text.
//
// Owns HarmonyStage. An answer is a list of messages, each a header (role, recipient, channel, kind of content) and a
// body: analysis is reasoning, final and commentary are content, and what is addressed to functions.NAME is a call.
// A text without any header is content.
#pragma once

#include <string>

#include "text/parsers/formats.h"

namespace carpool {

inline constexpr std::string_view kHarmonyTags[] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                                    "<|end|>",   "<|call|>",    "<|return|>"};

class HarmonyStage final : public OutputParser::Stage {
 public:
  // With `calls` false what is addressed to a function is content.
  HarmonyStage(CallSink sink, bool calls, const OutputOptions& options);
  void feed(std::string_view text, OutputEvents& out) override;
  void finish(bool complete, OutputEvents& out) override;
  bool in_reasoning() const override { return part_ == Part::kReasoning; }
  const LostCalls& lost() const override { return sink_.lost; }

 private:
  enum class Part { kHeader, kReasoning, kContent, kCall };
  void take_text(std::string_view text, OutputEvents& out);
  void take_tag(std::string_view tag, bool complete, OutputEvents& out);
  void begin_body();
  void end_body(bool complete, OutputEvents& out);
  void tell(OutputEvent::Kind kind, std::string_view text, OutputEvents& out);
  bool looks_like_header() const;
  // The structure that was asked for goes to the end of the answer.
  bool is_one_text() const { return structured_ && (part_ == Part::kContent || part_ == Part::kCall); }

  CallSink sink_;
  bool calls_, separate_, structured_;
  Part part_;
  bool headed_ = false;    // a tag was seen
  bool too_long_ = false;  // the body of a call
  std::string buffer_;     // of whole text not yet taken: what may become a tag
  std::string header_, body_;
  std::string function_;                                     // of a call
  bool said_[2] = {false, false}, gap_[2] = {false, false};  // reasoning, content: messages are paragraphs
};

}  // namespace carpool
