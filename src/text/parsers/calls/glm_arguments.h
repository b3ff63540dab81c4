// What GLM-4.5 and GLM-4.7 share: a name, then keys and values between tags of their own.
#pragma once

#include "text/parsers/formats.h"

namespace carpool {

inline constexpr std::string_view kGlmTags[] = {"<arg_key>", "</arg_key>"};

// NAME<arg_key>K</arg_key><arg_value>V</arg_value>..., with any blanks between. What is neither key nor
// value, or one without the other, is left out. No escapes: only the closing tag ends a value.
ParsedBlock read_glm_call(std::string_view body, const std::vector<ToolFunction>& functions);

}  // namespace carpool
