// The text side of one sequence: bytes of tokens become complete UTF-8, and stop strings end the text.
//
// Owns what is held back: an unfinished character, or a suffix that may yet become a stop string. What was handed
// out never contains a stop string or part of one that was completed later, except at its end where stops are included.
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
  // `tokenizer` may be null: then there is no text. It must outlive the stream. `stops` are not empty strings. With
  // `include_stop` the text ends after the stop string, else before it; `skip_special`: special tokens have no text,
  // except `show_special`, ascending.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops, bool include_stop = false,
             bool skip_special = true, std::vector<int> show_special = {});

  // Appends a token; returns the text that is now certain. Sets stopped() when a stop string was completed.
  std::string push(int token);
  // The end of the sequence: what was held back.
  std::string finish();
  bool stopped() const { return stopped_; }
  // The stop string that ended the text: of those in it the one that is complete first, and of these the one that
  // begins first, whatever the tokens are. "" if none did.
  const std::string& matched() const { return matched_; }

 private:
  std::string release();  // the part of pending_ that no stop string can claim

  std::unique_ptr<StreamDecoder> decoder_;
  std::vector<std::string> stops_;
  std::string pending_;
  std::string matched_;
  bool include_stop_ = false;
  bool stopped_ = false;
};

}  // namespace carpool
