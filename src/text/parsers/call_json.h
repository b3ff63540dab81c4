// From what a model wrote between tags to JSON that clients can read.
//
// Owns the reading of JSON objects out of text that may go on behind them, and the typing of arguments that a format
// writes as bare text: the function's schema says what they are.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/parsers/argument_types.h"
#include "text/parsers/output.h"

namespace carpool {

// The object at the beginning of `text`, blanks aside, as it is written, when it is strict JSON (parse_json); `text`
// then begins behind it.
std::optional<std::string_view> take_object(std::string_view& text);

struct JsonMember {
  std::string key;
  std::string_view value;  // as it is written
};
// Of an object that take_object gave.
std::vector<JsonMember> members_of(std::string_view object);

// Arguments that are an object, or a string that spells one, or nothing at all ("", null), as the text of an object.
std::optional<std::string> arguments_of(std::string_view json);

// An argument written as text between tags, as JSON, when it may be of `types` (argument_types.h). Where strings alone
// may come the text is that string, blanks and all. Otherwise it is JSON, or JSON within a string, or a literal of
// Python; what is none of them, or may be a string and is nothing else that may come, is a string.
std::string typed_argument(std::string_view text, unsigned types);
// The same for an argument of `function` (null = unknown).
std::string typed_argument(std::string_view text, const ToolFunction* function, std::string_view name);

// {"a": 1, "b": "x"}; of two members of one name the last counts, at the place of the first.
class ArgumentsWriter {
 public:
  void set(std::string_view key, std::string json);
  std::string text() const;

 private:
  std::vector<std::pair<std::string, std::string>> members_;
};

}  // namespace carpool
