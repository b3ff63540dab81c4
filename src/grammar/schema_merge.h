// Two schemas that must both hold, as one: what allOf and the siblings of $ref and anyOf need.
#pragma once

#include <string>

#include "base/json.h"

namespace carpool {

// True for keywords that say nothing about what is valid ("title", "$defs", "x-...").
bool is_annotation(std::string_view keyword);

// A schema that accepts what both accept. Bounds are tightened, types and enumerations intersected, members united.
// `budget` counts down with every merged pair; GrammarError when it is used up, and for pairs that have no common form
// (two patterns, two anyOf, nullable).
json::object merge_schemas(const json::object& a, const json::object& b, const std::string& path, int& budget);

}  // namespace carpool
