// Added tokens: the entries of a tokenizer.json that are cut out of the text before BPE sees it.
//
// Owns matching: at each place the longest token wins, with the file's single_word, lstrip and rstrip rules, in two
// rounds (tokens with normalized = false on the text as given, the others on normalized text). A *control* token is
// one that is special or is spelled with ASCII punctuation (<think>, [INST]); it matches only inside trusted text.
// Plain words and runs of spaces are vocabulary like any other and match everywhere.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/marked_text.h"

namespace carpool {

struct AddedToken {
  int id = 0;
  std::string content;  // as matched: normalized when `normalized` is set
  bool special = false, lstrip = false, rstrip = false, single_word = false, normalized = false;
  bool control = false;
};

// One part of a text that was cut: a token, or (id -1) the text between tokens.
struct AddedMatch {
  int id;
  ByteRange range;
};

// Finds one round's tokens.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  // Cuts `text` (valid UTF-8) into tokens and the parts between. Appends to `out`; parts are never empty.
  void cut(std::string_view text, std::span<const ByteRange> trusted, std::vector<AddedMatch>& out) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t pos, bool trusted, size_t trusted_end) const;

  std::vector<AddedToken> tokens_;        // sorted by content
  std::array<size_t, 257> first_byte_{};  // tokens_ with first byte b are [first_byte_[b], first_byte_[b + 1])
};

// Reads "added_tokens". Throws Error{kMalformed} with the key path; clashes with the vocabulary are the caller's.
std::vector<AddedToken> load_added_tokens(const JsonObject& root, int max_id);

}  // namespace carpool
