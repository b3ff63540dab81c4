// Token ids to text while they are generated: only whole characters leave, in order.
//
// Holds back bytes that a later token may complete, replaces what can no longer become a character by U+FFFD. All
// the text it returns, finish() included, equals Tokenizer::decode of all the ids, except that a stream continues a
// prompt and so keeps a space at its beginning. Some special tokens may be shown nevertheless: tags that a parser
// reads.
#pragma once

#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace carpool {

class StreamDecoder {
 public:
  // `shown`: special tokens, ascending, that have their text although others are skipped.
  StreamDecoder(Tokenizer tokenizer, bool skip_special, std::vector<int> shown = {})
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), shown_(std::move(shown)) {}
  // The text that `id` completes; perhaps empty. Valid UTF-8.
  std::string push(int id);
  // Ends the stream: U+FFFD if bytes were held back. The decoder may be used again afterwards.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  std::vector<int> shown_;
  std::string held_;  // at most 3 bytes between calls: the start of a character
};

}  // namespace carpool
