// Sets of characters, and how one character is spelled in bytes.
//
// Owns CharSet, ranges of Unicode scalar values, and char_node: the grammar of one character of a set, as UTF-8 or as
// it stands inside a JSON string. What JSON must escape is escaped in one way only (\n, \", \u001f), the rest is raw.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace carpool {

// How characters are written. `avoided` (0 = none) is one that must not stand in the text: as \u003c in JSON, elsewhere
// never.
struct CharSpelling {
  CharForm form = CharForm::kRaw;
  uint32_t avoided = 0;
};

class CharSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // both inclusive

  void add(uint32_t first, uint32_t last) { ranges_.emplace_back(first, last); }
  void add(uint32_t c) { add(c, c); }
  void add(const CharSet& other) { ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end()); }
  // Sorted, disjoint, without surrogates.
  std::vector<Range> ranges() const;
  CharSet complement() const;  // of all Unicode scalar values
  CharSet without(const CharSet& other) const;
  bool has(uint32_t c) const;

 private:
  std::vector<Range> ranges_;
};

// One character of `set`.
NodeId char_node(GrammarBuilder& builder, const CharSet& set, CharForm form);
NodeId char_node(GrammarBuilder& builder, const CharSet& set, const CharSpelling& spelling);
// The characters that JSON strings hold as they are: all but controls, the quote and the backslash.
CharSet plain_json_chars();

}  // namespace carpool
