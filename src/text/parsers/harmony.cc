// See harmony.h.
#include "text/parsers/harmony.h"

#include "text/parsers/call_json.h"
#include "text/parsers/tags.h"

namespace carpool {
namespace {

// The word behind `mark` in a header.
std::string_view word_behind(std::string_view header, std::string_view mark) {
  const size_t at = header.find(mark);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = trimmed_left(header.substr(at + mark.size()));
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

}  // namespace

HarmonyStage::HarmonyStage(CallSink sink, bool calls, const OutputOptions& options)
    : sink_(std::move(sink)),
      calls_(calls),
      separate_(options.separate_reasoning),
      structured_(options.structured),
      part_(options.reasons ? Part::kHeader : Part::kContent) {}

void HarmonyStage::feed(std::string_view text, OutputEvents& out) {
  buffer_ += text;
  size_t at = 0;
  const std::string_view all = buffer_;
  while (!is_one_text()) {
    const FoundTag found = find_tag(all.substr(at), kHarmonyTags);
    if (found.at == std::string_view::npos) break;
    take_text(all.substr(at, found.at), out);
    take_tag(found.tag, true, out);
    at += found.at + found.tag.size();
  }
  const std::string_view rest = all.substr(at);
  const size_t held = is_one_text() ? 0 : held_bytes(rest, kHarmonyTags);
  take_text(rest.substr(0, rest.size() - held), out);
  buffer_.erase(0, buffer_.size() - held);
}

// Before any tag: whether the text may still be the header that continues the prompt's "<|start|>assistant".
bool HarmonyStage::looks_like_header() const {
  const std::string_view text = trimmed_left(header_);
  constexpr std::string_view kRecipient = "to=";
  return text.empty() || text.starts_with(kRecipient) || kRecipient.starts_with(text);
}

void HarmonyStage::take_text(std::string_view text, OutputEvents& out) {
  if (text.empty()) return;
  switch (part_) {
    case Part::kHeader:
      header_ += text;
      if (headed_ || looks_like_header()) return;
      part_ = Part::kContent;
      tell(OutputEvent::Kind::kContent, header_, out);
      header_.clear();
      return;
    case Part::kReasoning:
      return tell(OutputEvent::Kind::kReasoning, text, out);
    case Part::kContent:
      return tell(OutputEvent::Kind::kContent, text, out);
    case Part::kCall:
      too_long_ = too_long_ || body_.size() + text.size() > kMaxCallBytes;
      if (too_long_) {
        body_.clear();
      } else {
        body_ += text;
      }
  }
}

void HarmonyStage::take_tag(std::string_view tag, bool complete, OutputEvents& out) {
  headed_ = true;
  if (part_ == Part::kHeader) {
    if (tag == "<|message|>") return begin_body();
    if (tag == "<|start|>" || tag == "<|end|>" || tag == "<|call|>" || tag == "<|return|>") {
      header_.clear();
    } else {
      header_ += tag;
    }
    return;
  }
  if (tag == "<|message|>" || tag == "<|constrain|>") return;
  end_body(complete, out);
  if (tag == "<|channel|>") header_ = tag;
}

void HarmonyStage::begin_body() {
  const std::string_view channel = word_behind(header_, "<|channel|>");
  std::string_view recipient = word_behind(header_, "to=");
  constexpr std::string_view kFunctions = "functions.";
  if (recipient.starts_with(kFunctions)) recipient.remove_prefix(kFunctions.size());
  if (calls_ && !recipient.empty() && recipient != "assistant" && recipient != "all") {
    part_ = Part::kCall;
    function_ = recipient;
  } else {
    part_ = channel == "analysis" ? Part::kReasoning : Part::kContent;
  }
  for (const int i : {0, 1}) gap_[i] = said_[i];
  header_.clear();
}

void HarmonyStage::tell(OutputEvent::Kind kind, std::string_view text, OutputEvents& out) {
  const int i = kind == OutputEvent::Kind::kReasoning ? 0 : 1;
  const OutputEvent::Kind as = separate_ ? kind : OutputEvent::Kind::kContent;
  if (gap_[i]) add_text(as, "\n\n", out);
  gap_[i] = false;
  said_[i] = true;
  if (!separate_) said_[0] = said_[1] = true;
  add_text(as, text, out);
}

void HarmonyStage::end_body(bool complete, OutputEvents& out) {
  if (part_ == Part::kCall) {
    std::string_view rest = body_;
    if (trimmed(rest).empty() && complete && !too_long_) {
      sink_.tell({function_, "{}"}, out);
    } else if (const auto object = take_object(rest)) {
      sink_.tell({function_, std::string(*object)}, out);
      if (!trimmed(rest).empty()) ++sink_.lost.broken;
    } else {
      ++sink_.lost.broken;
      if (!trimmed(body_).empty()) tell(OutputEvent::Kind::kContent, body_, out);
    }
  }
  body_.clear();
  too_long_ = false;
  function_.clear();
  part_ = Part::kHeader;
}

void HarmonyStage::finish(bool complete, OutputEvents& out) {
  if (part_ == Part::kHeader && !headed_) {
    tell(OutputEvent::Kind::kContent, header_ + buffer_, out);
  } else if (part_ == Part::kReasoning || part_ == Part::kContent) {
    take_text(buffer_, out);
  }
  end_body(complete, out);
  buffer_.clear();
}

}  // namespace carpool
