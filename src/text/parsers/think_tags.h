// Reasoning between a pair of tags at the beginning of an answer, and then the rest.
//
// Owns ThinkTags. Only a tag at the very beginning opens reasoning: one in the middle of an answer is about it. Where
// the prompt has opened reasoning, the answer begins inside. A call of a tool within unfinished reasoning ends it. Text
// is kept byte for byte, but for blanks that a format sets around its tags.
#pragma once

#include <string>
#include <vector>

#include "text/parsers/formats.h"

namespace carpool {

class ThinkTags final : public OutputParser::Stage {
 public:
  // What is behind reasoning goes to `rest`. A call of the format `calls` (null = none are parsed) ends reasoning; its
  // other tags are left out when they are control tokens.
  ThinkTags(const ReasoningFormat& format, const OutputOptions& options, const CallFormat* calls,
            std::unique_ptr<OutputParser::Stage> rest);
  void feed(std::string_view text, OutputEvents& out) override;
  void finish(bool complete, OutputEvents& out) override;
  bool in_reasoning() const override { return state_ == State::kReasoning || (state_ == State::kStart && inside_); }
  const LostCalls& lost() const override { return rest_->lost(); }

 private:
  enum class State { kStart, kReasoning, kRest };
  bool start(OutputEvents& out);  // these three take from buffer_; false = more text is needed
  bool reason(OutputEvents& out);
  void pass(OutputEvents& out);
  void tell(std::string_view text, OutputEvents& out);  // reasoning

  const ReasoningFormat& format_;
  std::vector<std::string_view> begins_;  // of calls
  std::vector<std::string_view> tags_;    // all that reasoning does not hold
  std::unique_ptr<OutputParser::Stage> rest_;
  State state_ = State::kStart;
  bool inside_, separate_, trims_;
  bool skips_;                // blanks behind reasoning
  bool said_ = false;         // any reasoning
  bool skip_blanks_ = false;  // before the rest
  std::string buffer_;
};

}  // namespace carpool
