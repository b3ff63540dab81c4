// The normalizer of a tokenizer.json: what happens to text before it is cut into words.
//
// A list of steps: Unicode normalization form C, in time that grows linearly with the text; a text put in front;
// replacement of a literal text. Everything else is refused by its key path. utf8proc supplies the tables and the
// composition of form C. The reordering of combining marks is done here with a stable sort, because utf8proc's own is
// quadratic in the length of a run of marks, which a prompt may choose.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/marked_text.h"

namespace carpool {

// NFC of valid UTF-8.
std::string normalize_nfc(std::string_view text);

class Normalizer {
 public:
  // `root` is the object that holds "normalizer".
  static Normalizer load(const JsonObject& root);

  std::string apply(std::string_view text) const;
  // The same for a part of a text, stretch by stretch, so that a mark in untrusted text cannot change a trusted
  // character. What is put in front counts as trusted if the part begins so.
  MarkedText apply(const MarkedText& text, ByteRange part) const;

 private:
  struct Step {
    enum class Kind { kNfc, kPrepend, kReplace } kind;
    std::string pattern, content;  // kReplace: both; kPrepend: content
  };
  std::vector<Step> steps_;
};

}  // namespace carpool
