// See call_blocks.h.
#include "text/parsers/call_blocks.h"

#include "text/parsers/tags.h"

namespace carpool {

size_t BlockEnd::step_json(std::string_view block) {
  const char c = block[at_];
  if (quoted_ && c == '\\') return 2;
  if (c == '{') begun_ = true;
  if (begun_ && c == '"') quoted_ = !quoted_;
  return 1;
}

// Bytes to go on; 0 = a tag may be there but is not whole.
size_t BlockEnd::step_tags(std::string_view rest) {
  const std::string_view tag = quoted_ ? quotation_.close : quotation_.open;
  if (rest.starts_with(tag)) {
    quoted_ = !quoted_;
    return tag.size();
  }
  return rest.size() < tag.size() && tag.starts_with(rest) ? 0 : 1;
}

size_t BlockEnd::find(std::string_view block) {
  while (at_ < block.size()) {
    const std::string_view rest = block.substr(at_);
    if (!quoted_) {
      if (rest.starts_with(close_)) return at_;
      if (rest.size() < close_.size() && close_.starts_with(rest)) break;
    }
    const size_t step = quotation_.json ? step_json(block) : step_tags(rest);
    if (step == 0 || step > rest.size()) break;
    at_ += step;
  }
  return std::string_view::npos;
}

CallBlocks::CallBlocks(const CallFormat& format, CallSink sink)
    : format_(format), sink_(std::move(sink)), end_(format.close, format.quotation) {
  tags_.push_back(format.open);
  tags_.insert(tags_.end(), format.around.begin(), format.around.end());
  if (!format.control) return;
  tags_.push_back(format.close);
  tags_.insert(tags_.end(), format.within.begin(), format.within.end());
}

void CallBlocks::feed(std::string_view text, OutputEvents& out) {
  buffer_ += text;
  while (in_block_ ? block(out) : content(out)) {
  }
}

void CallBlocks::tell_content(std::string_view text, OutputEvents& out) {
  if (after_call_) text = trimmed_left(text);
  const std::string_view solid = trimmed_right(text);
  if (!solid.empty()) {
    after_call_ = false;
    told_ = true;
    add_text(OutputEvent::Kind::kContent, blanks_ + std::string(solid), out);
    blanks_.clear();
  }
  blanks_ += text.substr(solid.size());
}

bool CallBlocks::content(OutputEvents& out) {
  const FoundTag found = find_tag(buffer_, tags_);
  if (found.at == std::string_view::npos) {
    const size_t size = buffer_.size() - held_bytes(buffer_, tags_);
    tell_content(std::string_view(buffer_).substr(0, size), out);
    buffer_.erase(0, size);
    return false;
  }
  tell_content(std::string_view(buffer_).substr(0, found.at), out);
  in_block_ = found.tag == format_.open;
  buffer_.erase(0, found.at + (in_block_ ? 0 : found.tag.size()));
  if (in_block_) end_ = BlockEnd(format_.close, format_.quotation);
  return true;
}

bool CallBlocks::block(OutputEvents& out) {
  const size_t open = format_.open.size();
  const size_t size = end_.find(std::string_view(buffer_).substr(open, kMaxCallBytes));
  if (size != std::string_view::npos) {
    end_block(size, open + size + format_.close.size(), out);
    return true;
  }
  if (buffer_.size() - open < kMaxCallBytes) return false;
  break_block(open, out);
  return true;
}

bool CallBlocks::tell_calls(const ParsedBlock& parsed, OutputEvents& out) {
  for (const ParsedCall& call : parsed.calls) sink_.tell(call, out);
  if (parsed.calls.empty()) return false;
  if (!parsed.exact) ++sink_.lost.broken;
  if (!told_) blanks_.clear();
  after_call_ = true;
  return true;
}

// The block at the beginning of buffer_ has `body` bytes between its tags, `size` with them.
void CallBlocks::end_block(size_t body, size_t size, OutputEvents& out) {
  const std::string_view text = std::string_view(buffer_).substr(format_.open.size(), body);
  if (!tell_calls(format_.read(text, sink_.functions()), out)) return break_block(size, out);
  buffer_.erase(0, size);
  in_block_ = false;
}

void CallBlocks::break_block(size_t size, OutputEvents& out) {
  ++sink_.lost.broken;
  std::string text = buffer_.substr(0, size);
  if (format_.control) {
    text = without_tags(text, tags_);
  }
  tell_content(text, out);
  buffer_.erase(0, size);
  in_block_ = false;
}

void CallBlocks::finish(bool complete, OutputEvents& out) {
  // Without its end a block is a call only when it is whole otherwise: JSON says so itself, of others only the model
  // knows.
  for (int again = 0; in_block_; ++again) {
    std::string_view body = std::string_view(buffer_).substr(format_.open.size());
    body.remove_suffix(held_bytes(body, std::span(&format_.close, 1)));
    const ParsedBlock parsed =
        complete || format_.quotation.json ? format_.read(body, sink_.functions()) : ParsedBlock{{}, false};
    if (parsed.exact && tell_calls(parsed, out)) {
      buffer_.clear();
      in_block_ = false;
      break;
    }
    // A closing tag that seemed quoted was none of the kind.
    const size_t close = body.find(format_.close);
    if (close == std::string_view::npos || again >= kMaxCalls) {
      break_block(buffer_.size(), out);
      break;
    }
    break_block(format_.open.size() + close + format_.close.size(), out);
    feed("", out);
  }
  tell_content(buffer_, out);
  buffer_.clear();
  if (!after_call_) add_text(OutputEvent::Kind::kContent, blanks_, out);
  blanks_.clear();
}

}  // namespace carpool
