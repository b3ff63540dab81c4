// The parts of JSON texts that schemas are made of: strings, members, lists, space, any value.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/char_set.h"
#include "grammar/grammar.h"

namespace carpool {

// `value` as JSON, without spaces; numbers without exponent where they are short.
std::string json_text(const json::value& value);

// How strings are written. `without` (ASCII, "" = nothing) is a text that must not stand in any of them, such as a tag
// that a reader looks for: "<" is then written \u003c where that is not as good as not writing the text.
struct StringStyle {
  bool bare = false;  // a value that is a string stands as it is, without quotes and escapes
  std::string without = {};

  CharSpelling spelling() const {
    return {bare ? CharForm::kRaw : CharForm::kJson, without.empty() ? 0 : static_cast<uint32_t>(without[0])};
  }
};

// Makes the nodes that many schemas share once.
class JsonNodes {
 public:
  explicit JsonNodes(GrammarBuilder& builder, StringStyle style = {}) : b_(builder), style_(std::move(style)) {}

  NodeId space();
  NodeId escape();       // of one character, but \u0000
  NodeId string_char();  // one character as it stands in a string, in any spelling but \u0000
  NodeId string(int min, int max);
  // A name of a member, with its colon, that is none of `names`; written without escapes.
  NodeId other_name(std::span<const std::string> names);
  NodeId name(std::string_view name);                   // this one
  std::string spelled(const json::value& value) const;  // this very value; quotes and all also where strings are bare
  NodeId scalar();                                      // null, true, false, a number or a string
  NodeId any_value(int depth);                          // nested at most so deep
  NodeId any_object(int depth);

  // "[" items "]" and "{" members "}": `one` min to max times, with commas.
  NodeId enclosed_list(const char* open, NodeId one, int min, int max, const char* close);

 private:
  CharSet plain_chars() const;  // that names and strings hold as they are
  NodeId string_text(int min, int max);
  NodeId other_name_from(std::span<const std::u32string> sorted, size_t depth);

  GrammarBuilder& b_;
  const StringStyle style_;
  NodeId space_ = -1, escape_ = -1, text_ = -1, char_ = -1, scalar_ = -1, plain_rest_ = -1;
  std::vector<NodeId> values_, objects_;  // by depth
};

inline constexpr int kFreeDepth = 16;  // of values that a schema leaves open

}  // namespace carpool
