// The pre-tokenizer of a tokenizer.json: cuts text into the words that BPE may not merge across.
//
// A list of steps, each applied to every piece the steps before it left: split at an expression, or put a space
// in front. Supported: Split, Digits, ByteLevel (last, required) and Sequence of these; everything else is
// refused by its key path. Words come out as raw bytes; spelling them is byte_alphabet.h.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/split_regex.h"

namespace carpool {

// What becomes of the matches of a split expression; names as in tokenizer.json.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class PreTokenizer {
 public:
  // `root` is the object that holds "pre_tokenizer".
  static PreTokenizer load(const JsonObject& root);

  // Appends the words of `text` (valid UTF-8) to `words`. They point into `text` or into `storage`.
  void split(std::string_view text, std::vector<std::string_view>& words, std::deque<std::string>& storage) const;

 private:
  struct Step {
    enum class Kind { kSplit, kPrefixSpace } kind;
    std::vector<SplitRegex> regex;  // one for kSplit, none for kPrefixSpace
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };
  struct Piece {
    size_t begin, end;
    bool match;
  };

  void add(const JsonObject& object, int depth);
  void add_split(SplitRegex regex, SplitBehavior behavior, bool invert);
  static void apply_behavior(SplitBehavior behavior, std::vector<Piece>& pieces);
  static void run_split(const Step& step, const std::vector<std::string_view>& in, std::vector<std::string_view>& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace carpool
