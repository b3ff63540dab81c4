// The split expressions of a tokenizer.json, run by PCRE2 with the meaning they have in the file.
//
// The files are written for Oniguruma (Ruby syntax). The two engines agree on what real models use, except for a
// few spellings; translate() rewrites \s (Oniguruma's white space excludes U+180E, PCRE2's does not), scripts (\p{Han})
// and \u, and refuses everything whose meaning differs, so a file is split either exactly or not at all. Unicode
// properties are those of the installed PCRE2 (10.42: Unicode 14); characters assigned later count as unassigned.
#pragma once

#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace carpool {

class SplitRegex {
 public:
  // `where` names the key path for errors. Throws Error{kMalformed} when the expression does not compile or uses a
  // spelling that the two engines read differently.
  static SplitRegex from_pattern(std::string_view pattern, const std::string& where);
  static SplitRegex from_literal(std::string_view text, const std::string& where);

  // Finds matches from left to right. One per thread and text; the regex itself is immutable and shared.
  class Search {
   public:
    explicit Search(const SplitRegex& regex);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    void start(std::string_view text);  // valid UTF-8, must outlive the search
    // The next match as [begin, end); false when there is none. Throws Error{kMalformed} when the expression needs
    // more than its step or memory budget on this text.
    bool next(size_t& begin, size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  SplitRegex(std::string_view pattern, unsigned options, std::string where);
  std::shared_ptr<const pcre2_real_code_8> code_;
  std::string where_;
};

// The PCRE2 spelling of an Oniguruma expression. Throws like SplitRegex::from_pattern.
std::string translate(std::string_view pattern, const std::string& where);

}  // namespace carpool
