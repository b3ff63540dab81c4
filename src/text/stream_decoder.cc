// See stream_decoder.h.
#include "text/stream_decoder.h"

#include <algorithm>

#include "text/utf8.h"

namespace carpool {

std::string StreamDecoder::push(int id) {
  const bool skipped = skip_special_ && tokenizer_.is_special(id);
  if (skipped && !std::binary_search(shown_.begin(), shown_.end(), id)) return {};
  held_ += tokenizer_.token_bytes(id);
  std::string out;
  size_t pos = 0;
  while (pos < held_.size()) {
    const std::string_view rest = std::string_view(held_).substr(pos);
    const Utf8Unit unit = next_utf8(rest);
    if (unit.kind == Utf8Kind::kIncomplete) break;
    out += unit.kind == Utf8Kind::kValid ? rest.substr(0, unit.length) : kReplacement;
    pos += unit.length;
  }
  held_.erase(0, pos);
  return out;
}

std::string StreamDecoder::finish() {
  const std::string out = sanitize_utf8(held_);
  held_.clear();
  return out;
}

}  // namespace carpool
