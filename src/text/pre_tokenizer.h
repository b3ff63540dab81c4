// The pre-tokenizer of a tokenizer.json: cuts text into the words that BPE may not merge across.
//
// A list of steps, each applied to every piece the steps before it left: split at an expression, put a space in front,
// or write spaces as another character. Supported: Split, Digits, Metaspace, ByteLevel (last) and Sequence of these;
// everything else is refused by its key path. With ByteLevel the words are raw bytes, whose spelling is
// byte_alphabet.h; without, or without a pre-tokenizer, they are text and the vocabulary is one of characters.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/split_regex.h"

namespace carpool {

// ByteLevel's built-in expression, GPT-2's, used when its use_regex is true.
inline constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What becomes of the matches of a split expression; names as in tokenizer.json.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class PreTokenizer {
 public:
  // `root` is the object that holds "pre_tokenizer".
  static PreTokenizer load(const JsonObject& root);

  bool is_byte_level() const { return byte_level_; }
  // Appends the words of `text` (valid UTF-8) to `words`. They point into `text` or into `storage`. `at_start`: nothing
  // comes before this text, not even an added token.
  void split(std::string_view text, bool at_start, std::vector<std::string_view>& words,
             std::deque<std::string>& storage) const;

 private:
  enum class PrefixScheme { kNever, kFirst, kAlways };
  struct Step {
    enum class Kind { kSplit, kPrefixSpace, kMetaspace } kind;
    std::vector<SplitRegex> regex;  // one for kSplit, none for the others
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    std::string space{};                         // kMetaspace: what spaces become
    PrefixScheme prefix = PrefixScheme::kNever;  // kMetaspace
  };
  struct Piece {
    size_t begin, end;
    bool match;
  };

  void add(const JsonObject& object, int depth);
  void add_metaspace(const JsonObject& object);
  void add_split(SplitRegex regex, SplitBehavior behavior, bool invert);
  static void apply_behavior(SplitBehavior behavior, std::vector<Piece>& pieces);
  static std::string_view write_spaces(const Step& step, std::string_view piece, bool at_start,
                                       std::deque<std::string>& storage);
  static void run_split(const Step& step, const std::vector<std::string_view>& in, std::vector<std::string_view>& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace carpool
