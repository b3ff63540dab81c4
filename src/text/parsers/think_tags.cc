// See think_tags.h.
#include "text/parsers/think_tags.h"

#include <algorithm>

#include "text/parsers/tags.h"

namespace carpool {

ThinkTags::ThinkTags(const ReasoningFormat& format, const OutputOptions& options, const CallFormat* calls,
                     std::unique_ptr<OutputParser::Stage> rest)
    : format_(format),
      rest_(std::move(rest)),
      inside_(options.prompt == PromptEnd::kOpen || (options.prompt == PromptEnd::kNeither && format.open_by_default)),
      separate_(options.separate_reasoning),
      trims_(format.trims && options.separate_reasoning),
      skips_(trims_ || (options.structured && options.separate_reasoning)) {
  if (calls) {
    begins_.push_back(calls->open);
    if (!calls->around.empty()) begins_.push_back(calls->around.front());
  }
  tags_ = begins_;
  tags_.push_back(format.close);
  if (!calls || !calls->control) return;
  tags_.push_back(calls->close);
  tags_.insert(tags_.end(), calls->around.begin(), calls->around.end());
  tags_.insert(tags_.end(), calls->within.begin(), calls->within.end());
}

void ThinkTags::feed(std::string_view text, OutputEvents& out) {
  buffer_ += text;
  while (state_ != State::kRest) {
    const bool enough = state_ == State::kStart ? start(out) : reason(out);
    if (!enough) return;
  }
  pass(out);
}

// Whether the answer begins with the opening tag, also where the prompt has it already.
bool ThinkTags::start(OutputEvents& out) {
  const std::string_view text = trimmed_left(buffer_);
  if (text.size() < format_.open.size() && format_.open.starts_with(text)) return false;
  if (text.starts_with(format_.open)) {
    const size_t end = buffer_.size() - text.size() + format_.open.size();
    if (!separate_) tell(std::string_view(buffer_).substr(0, end), out);
    buffer_.erase(0, end);
    inside_ = true;
  }
  state_ = inside_ ? State::kReasoning : State::kRest;
  return true;
}

void ThinkTags::tell(std::string_view text, OutputEvents& out) {
  if (trims_ && !said_) text = trimmed_left(text);
  said_ = said_ || !text.empty();
  add_text(separate_ ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent, text, out);
}

bool ThinkTags::reason(OutputEvents& out) {
  const FoundTag end = find_tag(buffer_, tags_);
  const bool found = end.at != std::string_view::npos;
  const size_t size = found ? end.at : buffer_.size() - held_bytes(buffer_, tags_);
  std::string_view text = std::string_view(buffer_).substr(0, size);
  if (trims_) text = trimmed_right(text);
  tell(text, out);
  if (!found) {
    buffer_.erase(0, text.size());
    return false;
  }
  const bool closed = end.tag == format_.close;
  if (!closed && std::find(begins_.begin(), begins_.end(), end.tag) == begins_.end()) {  // says nothing here
    buffer_.erase(size, end.tag.size());
    buffer_.erase(0, text.size());
    return true;
  }
  if (closed && !separate_) tell(end.tag, out);
  buffer_.erase(0, size + (closed ? end.tag.size() : 0));
  skip_blanks_ = skips_;
  state_ = State::kRest;
  return true;
}

void ThinkTags::pass(OutputEvents& out) {
  std::string_view text = buffer_;
  if (skip_blanks_) text = trimmed_left(text);
  if (!text.empty()) {
    skip_blanks_ = false;
    rest_->feed(text, out);
  }
  buffer_.clear();
}

void ThinkTags::finish(bool complete, OutputEvents& out) {
  if (state_ != State::kRest && (inside_ || state_ == State::kReasoning)) {
    tell(trims_ ? trimmed_right(buffer_) : std::string_view(buffer_), out);
    buffer_.clear();
  }
  state_ = State::kRest;
  pass(out);
  rest_->finish(complete, out);
}

}  // namespace carpool
