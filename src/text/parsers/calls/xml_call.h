// What Qwen3-Coder and MiniMax-M2 share: a function's name in an opening tag, and parameters between tags with their
// names.
#pragma once

#include "text/parsers/formats.h"

namespace carpool {

struct XmlTags {
  std::string_view name_end;     // of the opening tag, behind the function's name and a parameter's
  std::string_view open, close;  // of a parameter
  bool lines;                    // a line break next to a parameter's tags is the format's
};

// NAME, name_end, parameters. A parameter without a name or an end, and what stands between them, is left out. No
// escapes: only the closing tag ends a value.
ParsedBlock read_xml_call(std::string_view body, const std::vector<ToolFunction>& functions, const XmlTags& tags);

}  // namespace carpool
