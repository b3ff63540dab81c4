// The text side of one sequence: bytes of tokens become complete UTF-8, and stop strings end the text.
//
// Owns what is held back: an unfinished character, or a suffix that may yet become a stop string. What was handed
// out never contains a stop string or part of one that was completed later.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace carpool {

class TextStream {
 public:
  TextStream() = default;
  // `tokenizer` may be null: then there is no text. It must outlive the stream.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops);

  // Appends a token; returns the text that is now certain. Sets stopped() when a stop string was completed.
  std::string push(int token);
  // The end of the sequence: what was held back.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::string release();  // the part of pending_ that no stop string can claim

  std::unique_ptr<StreamDecoder> decoder_;
  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace carpool
