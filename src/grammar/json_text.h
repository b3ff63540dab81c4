// The parts of JSON texts that schemas are made of: strings, members, lists, space, any value.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/grammar.h"

namespace carpool {

// `value` as JSON, without spaces; numbers without exponent where they are short.
std::string json_text(const json::value& value);

// Makes the nodes that many schemas share once.
class JsonNodes {
 public:
  explicit JsonNodes(GrammarBuilder& builder) : b_(builder) {}

  NodeId space();
  NodeId string_char();  // one character as it stands in a string, in any spelling but \u0000
  NodeId string(int min, int max);
  // A name of a member, with its colon, that is none of `names`; written without escapes.
  NodeId other_name(std::span<const std::string> names);
  NodeId name(std::string_view name);  // this one
  NodeId scalar();                     // null, true, false, a number or a string
  NodeId any_value(int depth);         // nested at most so deep
  NodeId any_object(int depth);

  // "[" items "]" and "{" members "}": `one` min to max times, with commas.
  NodeId enclosed_list(const char* open, NodeId one, int min, int max, const char* close);

 private:
  NodeId other_name_from(std::span<const std::u32string> sorted, size_t depth);

  GrammarBuilder& b_;
  NodeId space_ = -1, char_ = -1, scalar_ = -1, plain_rest_ = -1;
  std::vector<NodeId> values_, objects_;  // by depth
};

inline constexpr int kFreeDepth = 16;  // of values that a schema leaves open

}  // namespace carpool
