// What an argument that stands as text between tags may be, as its function's schema says: text as it is, or JSON.
//
// Owns that one decision, which the reader of calls (call_json.h) and the grammar of forced ones
// (grammar/tagged_arguments.h) share: were it made twice, a grammar could write what the reader takes for another
// value.
#pragma once

#include <string_view>

#include "base/json.h"

namespace carpool {

// The types of JSON, as bits.
struct ArgumentTypes {
  static constexpr unsigned kString = 1, kInteger = 2, kNumber = 4, kBoolean = 8, kNull = 16, kObject = 32, kArray = 64,
                            kAny = 127;
};

// The types that `parameters` allows for its member `name`, through $ref, allOf, anyOf, oneOf, enum and const; kAny
// where it does not say, contradicts itself, or needs more than some thousand steps to be understood.
unsigned argument_types(const json::object& parameters, std::string_view name);

// Strings and nothing else: the text is the string. Otherwise it is JSON.
inline bool is_bare_text(unsigned types) { return types == ArgumentTypes::kString; }

// The one type of a value; both kInteger and kNumber of an integer.
unsigned type_of(const json::value& value);

}  // namespace carpool
