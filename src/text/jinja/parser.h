// Template text to syntax tree; everything outside the subset is refused here, with its line, before any request.
//
// The subset: text, output, comments, raw; if, for (with filter, else, loop, break, continue), set (names, namespace
// attributes, blocks), macro, generation; Python-like expressions with the filters, tests, methods and functions that
// builtins.h lists. Not in it: inheritance, include, import, call, filter blocks, recursive loops.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/ast.h"

namespace carpool::jinja {

// Throws Error{kMalformed} with the line.
std::vector<Statement> parse_template(std::string_view source);

}  // namespace carpool::jinja
