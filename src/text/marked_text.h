// A text on its way to the tokenizer, and the stretches of it that may hold control tokens.
//
// The tokenizer's own form of a list of pieces (piece.h): put together, so that words and normalization may span
// pieces, with the trust of each byte kept.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace carpool {

// Half-open byte ranges of a text: sorted, disjoint, not adjacent.
struct ByteRange {
  size_t begin, end;
};

struct MarkedText {
  std::string text;
  std::vector<ByteRange> trusted;

  void append(std::string_view more, bool is_trusted) {
    if (is_trusted && !more.empty()) {
      if (trusted.empty() || trusted.back().end != text.size()) trusted.push_back({text.size(), text.size()});
      trusted.back().end += more.size();
    }
    text += more;
  }
};

}  // namespace carpool
