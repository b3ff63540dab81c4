// Regular expressions to grammars: the regular part of what ECMAScript, Python and RE2 share.
//
// Owns the syntax: alternatives, groups (capturing, (?:...), named), classes with ranges and \d \w \s and their
// opposites, `.`, escapes (\n, \xHH, \uHHHH, \u{...}), and * + ? {n} {n,} {n,m}, lazy or not. What has no such language
// (back references, look-around, \b, flags, possessive quantifiers, \p{...}) is refused by name. \d, \w and \s mean
// ASCII;
// \S is what no Unicode white space is; `.` is everything but line ends. Matching is linear: expressions that make
// backtracking engines hang are ordinary here.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grammar/char_set.h"
#include "grammar/grammar.h"

namespace carpool {

// How many characters a text may have; max = kNoLimit: any number.
struct LengthRange {
  int64_t min = 0, max = kNoLimit;
};

// The texts that match `pattern` as a whole; ^ and $ may stand at the ends of its outermost alternatives and say
// nothing more. Throws GrammarError{path} for what is wrong or not supported, with the byte.
NodeId regex_node(GrammarBuilder& builder, std::string_view pattern, const std::string& path);

// The contents of a string, as `spelling` says and without quotes, in which `pattern` matches somewhere (everywhere
// when anchored by ^ and $), and whose length is within `length`. Throws GrammarError{path}; unsupported when pattern
// and length are not of a kind that can be told together: the lengths must follow from the pattern, or the pattern be
// one repeated class between ^ and $.
NodeId regex_in_string(GrammarBuilder& builder, std::string_view pattern, LengthRange length,
                       const CharSpelling& spelling, const std::string& path);

}  // namespace carpool
