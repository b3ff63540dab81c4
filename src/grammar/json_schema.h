// JSON Schema to grammars, so that every text of the grammar is JSON that the schema accepts.
//
// Owns the keywords (docs/server.md lists them) and what is free where a schema leaves it free: members come in the
// order of `properties`, further members only where additionalProperties says so or nothing is declared, strings are
// UTF-8 with JSON's escapes, white space is one space or a line with its indentation. So not everything that a schema
// accepts can be written, but nothing else can. A keyword that is neither known nor an annotation is refused with its
// path; nothing is ignored. Numbers: json_number.h; patterns: regex.h; merging allOf and siblings: schema_merge.h.
#pragma once

#include <string>

#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/json_text.h"

namespace carpool {

// One value that `schema` accepts, without white space around it. `path` names the schema in errors. Throws
// GrammarError with the path of what is wrong.
NodeId json_schema_node(GrammarBuilder& builder, const json::value& schema, const std::string& path);

// Where a schema stands, and how its value is written.
struct SchemaPlace {
  const json::value* root = nullptr;  // what its $ref point into; null = itself
  std::string root_path = {};         // in errors
  StringStyle strings = {};           // bare: the value is a string, whatever else the schema may accept
};
NodeId json_schema_node(GrammarBuilder& builder, const json::value& schema, const std::string& path,
                        const SchemaPlace& place);

// Any JSON value, or any object, nested at most 16 levels deep.
NodeId json_value_node(GrammarBuilder& builder);
NodeId json_object_node(GrammarBuilder& builder);

// Nothing, a space, or a line break with its indentation.
NodeId json_space_node(GrammarBuilder& builder);

}  // namespace carpool
