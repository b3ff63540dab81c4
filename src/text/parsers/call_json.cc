// See call_json.h.
#include "text/parsers/call_json.h"

#include <algorithm>

#include "text/parsers/tags.h"

namespace carpool {
namespace {

constexpr size_t kMaxMembers = 4096;

std::optional<json::value> parsed(std::string_view text) {
  try {
    return parse_json(text, "arguments");
  } catch (const JsonError&) {
    return std::nullopt;
  }
}

// Behind the value that begins at `at` in valid JSON.
size_t skip_value(std::string_view text, size_t at) {
  int depth = 0;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      if (c == '"') quoted = false;
      if (!quoted && depth == 0) return at + 1;
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}' || c == ']')) return at;
    if (c == '"') quoted = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return at + 1;
  }
  return text.size();
}

// Python's spelling of a value as JSON's: quotes, names of constants, round brackets.
std::string from_python(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      out += '"';
      for (++at; at < text.size() && text[at] != c; ++at) {
        if (text[at] == '\\' && at + 1 < text.size()) {
          if (text[++at] != '\'') out += '\\';
        } else if (text[at] == '"') {
          out += '\\';
        }
        out += text[at];
      }
      out += '"';
      ++at;
      continue;
    }
    constexpr std::pair<std::string_view, std::string_view> kWords[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}, {"(", "["}, {")", "]"}};
    const auto word = std::find_if(std::begin(kWords), std::end(kWords),
                                   [&](const auto& pair) { return text.substr(at).starts_with(pair.first); });
    if (word != std::end(kWords)) {
      out += word->second;
      at += word->first.size();
    } else {
      out += c;
      ++at;
    }
  }
  return out;
}

std::string quoted(std::string_view text) { return json::serialize(json::string(text)); }

}  // namespace

std::optional<std::string_view> take_object(std::string_view& text) {
  const std::string_view from = trimmed_left(text);
  if (!from.starts_with('{')) return std::nullopt;
  const std::string_view object = from.substr(0, skip_value(from, 0));
  if (!parsed(object)) return std::nullopt;
  text = from.substr(object.size());
  return object;
}

std::vector<JsonMember> members_of(std::string_view object) {
  std::vector<JsonMember> members;
  size_t at = 1;
  while (members.size() < kMaxMembers) {
    at = object.find_first_not_of(" \t\r\n,", at);
    if (at == std::string_view::npos || object[at] != '"') break;
    const size_t key_end = skip_value(object, at);
    const json::value key = json::parse(object.substr(at, key_end - at));
    at = object.find_first_not_of(kBlanks, object.find(':', key_end) + 1);
    const size_t end = skip_value(object, at);
    members.push_back({std::string(key.get_string()), trimmed(object.substr(at, end - at))});
    at = end;
  }
  return members;
}

std::optional<std::string> arguments_of(std::string_view text) {
  text = trimmed(text);
  if (text.empty() || text == "null") return "{}";
  if (const std::optional<json::value> value = text.starts_with('"') ? parsed(text) : std::nullopt) {
    return arguments_of(std::string(value->get_string()));
  }
  const std::optional<std::string_view> object = take_object(text);
  return object ? std::optional(std::string(*object)) : std::nullopt;
}

std::string typed_argument(std::string_view text, unsigned types) {
  if (is_bare_text(types)) return quoted(text);
  const std::string_view inner = trimmed(text);
  const auto fits = [&](const std::optional<json::value>& value) { return value && (type_of(*value) & types) != 0; };
  const std::optional<json::value> value = parsed(inner);
  if (fits(value)) return std::string(inner);
  if (value && value->is_string()) {  // a number in quotes
    const std::string within(value->get_string());
    if (fits(parsed(within))) return within;
  }
  const std::string python = from_python(inner);
  if (const std::optional<json::value> read = parsed(python);
      fits(read) && (!read->is_string() || types == ArgumentTypes::kAny)) {
    return python;
  }
  // Nothing that the schema allows: what it is, if it is anything but text that may be a string.
  if (!(types & ArgumentTypes::kString) && value) return std::string(inner);
  return quoted(text);
}

std::string typed_argument(std::string_view text, const ToolFunction* function, std::string_view name) {
  return typed_argument(text, function ? argument_types(function->parameters, name) : ArgumentTypes::kAny);
}

void ArgumentsWriter::set(std::string_view key, std::string json) {
  for (auto& [known, value] : members_) {
    if (known != key) continue;
    value = std::move(json);
    return;
  }
  members_.emplace_back(key, std::move(json));
}

std::string ArgumentsWriter::text() const {
  std::string out = "{";
  for (const auto& [key, value] : members_) {
    if (out.size() > 1) out += ", ";
    out += quoted(key) + ": " + value;
  }
  return out + "}";
}

}  // namespace carpool
