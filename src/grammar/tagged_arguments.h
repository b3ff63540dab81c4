// Arguments of a call as keys and values between tags, the way that some models write them.
//
// Owns the grammar of such a list: members in the order of the schema's properties, optional ones where they are not
// required. What text/parsers/argument_types.h calls bare text is that, everything else JSON; neither holds the closing
// tag, where a reader would cut it. Read next: structure.h.
#pragma once

#include <string>

#include "base/json.h"
#include "grammar/grammar.h"

namespace carpool {

struct TaggedArguments {
  std::string key_open, value_open, value_close;  // <arg_key> K </arg_key><arg_value> V </arg_value>; ASCII
};

// The members of an object that `schema` accepts ($ref, allOf, anyOf and oneOf at its top included); none where it
// names no properties, and none but those that it names. A value whose schema has what the grammar lacks is any text
// when `lenient`; else that, and what is said of the object and cannot be kept, is a GrammarError with its path.
NodeId tagged_arguments_node(GrammarBuilder& builder, const json::value& schema, const TaggedArguments& tags,
                             bool lenient, const std::string& path);

}  // namespace carpool
