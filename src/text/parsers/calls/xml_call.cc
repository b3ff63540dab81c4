// See xml_call.h.
#include "text/parsers/calls/xml_call.h"

#include "text/parsers/call_json.h"
#include "text/parsers/tags.h"

namespace carpool {
namespace {

constexpr size_t kNone = std::string_view::npos;

std::string_view value_of(std::string_view text, bool lines) {
  if (lines && text.starts_with('\n')) text.remove_prefix(1);
  if (lines && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

}  // namespace

ParsedBlock read_xml_call(std::string_view body, const std::vector<ToolFunction>& functions, const XmlTags& tags) {
  const size_t name_end = body.find(tags.name_end);
  const std::string_view name = trimmed(body.substr(0, name_end));
  if (name_end == kNone || name.empty() || name.size() > kMaxFunctionName || name.find_first_of(" \n<") != kNone) {
    return {{}, false};
  }
  const ToolFunction* function = find_function(functions, name);
  ArgumentsWriter arguments;
  bool exact = true;
  std::string_view rest = body.substr(name_end + tags.name_end.size());
  while (!(rest = trimmed_left(rest)).empty()) {
    const size_t open = rest.find(tags.open);
    exact = exact && open == 0;
    if (open == kNone) break;
    rest.remove_prefix(open + tags.open.size());
    const size_t key_end = rest.find(tags.name_end), end = rest.find(tags.close);
    const size_t behind = end == kNone ? rest.size() : end + tags.close.size();
    if (end == kNone || key_end >= end || trimmed(rest.substr(0, key_end)).empty()) {
      exact = false;
    } else {
      const std::string_view key = trimmed(rest.substr(0, key_end));
      const size_t from = key_end + tags.name_end.size();
      const std::string_view value = value_of(rest.substr(from, end - from), tags.lines);
      arguments.set(key, typed_argument(value, function, key));
    }
    rest.remove_prefix(behind);
  }
  return {{{std::string(name), arguments.text()}}, exact};
}

}  // namespace carpool
