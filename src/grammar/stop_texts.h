// Where a text stands that must not contain any of some texts: the automaton of Aho and Corasick (1975).
//
// Owns StopTexts, over characters rather than bytes, so that what is not in its alphabet is one case. Read next:
// GrammarBuilder::text_without, which makes a grammar of it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "grammar/char_set.h"

namespace carpool {

class StopTexts {
 public:
  struct State {
    bool stopped = false;               // the text so far ends with one of the texts
    std::map<uint32_t, int> next = {};  // by every character of the alphabet; others lead to state 0
  };
  // UTF-8, at least one, none empty. States are as many as the characters of all texts, plus one.
  explicit StopTexts(std::span<const std::string> stops);

  const std::vector<State>& states() const { return states_; }  // the first is the beginning
  const CharSet& alphabet() const { return alphabet_; }

 private:
  std::vector<State> states_;
  CharSet alphabet_;
};

}  // namespace carpool
