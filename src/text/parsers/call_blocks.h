// Calls in blocks between two tags, among content.
//
// Owns CallBlocks. A block that is not in the format becomes content, tags and all where they are no control tokens.
// The blanks before a call stay when content follows; others around calls belong to nobody. Work is linear in the text,
// but for the end of an answer whose last block never ends: that is read again from behind its beginning, kMaxCalls
// times at most.
#pragma once

#include <string>

#include "text/parsers/formats.h"

namespace carpool {

// Looks for the end of a block, remembering how far it came.
class BlockEnd {
 public:
  BlockEnd(std::string_view close, const Quotation& quotation) : close_(close), quotation_(quotation) {}
  // Where the closing tag begins in `block`, which only grew since the last call; npos = not yet.
  size_t find(std::string_view block);

 private:
  size_t step_json(std::string_view block);
  size_t step_tags(std::string_view rest);

  std::string_view close_;
  Quotation quotation_;
  size_t at_ = 0;
  bool begun_ = false, quoted_ = false;
};

class CallBlocks final : public OutputParser::Stage {
 public:
  CallBlocks(const CallFormat& format, CallSink sink);
  void feed(std::string_view text, OutputEvents& out) override;
  void finish(bool complete, OutputEvents& out) override;
  bool in_reasoning() const override { return false; }
  const LostCalls& lost() const override { return sink_.lost; }

 private:
  bool content(OutputEvents& out);  // these two take from buffer_; false = more text is needed
  bool block(OutputEvents& out);
  void end_block(size_t body, size_t size, OutputEvents& out);
  void tell_content(std::string_view text, OutputEvents& out);
  void break_block(size_t size, OutputEvents& out);  // that many bytes, the opening tag among them, are content
  bool tell_calls(const ParsedBlock& parsed, OutputEvents& out);

  const CallFormat& format_;
  CallSink sink_;
  std::vector<std::string_view> tags_;  // that are not content
  std::string buffer_;
  std::string blanks_;       // behind content, not told yet
  bool after_call_ = false;  // blanks that come now belong to nobody
  bool told_ = false;        // any content but blanks
  bool in_block_ = false;    // buffer_ begins with the opening tag
  BlockEnd end_;
};

}  // namespace carpool
