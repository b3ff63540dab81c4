// Finding tags in text that arrives in pieces: the first whole one, and what may yet become one.
//
// Owns the rule that makes parsers the same for every chunking: the longest suffix of the buffer that is a proper
// prefix of a tag waits for more text. Work is linear in the text times the number of tags.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace carpool {

struct FoundTag {
  size_t at = std::string_view::npos;  // npos = none
  std::string_view tag;
};

// The tag that begins first in `text`, of several there the longest.
inline FoundTag find_tag(std::string_view text, std::span<const std::string_view> tags) {
  FoundTag found;
  for (const std::string_view tag : tags) {
    const size_t at = text.find(tag);
    if (at > found.at || at == std::string_view::npos) continue;
    if (at < found.at || tag.size() > found.tag.size()) found = {at, tag};
  }
  return found;
}

// Bytes at the end of `text` that a tag may claim.
inline size_t held_bytes(std::string_view text, std::span<const std::string_view> tags) {
  size_t held = 0;
  for (const std::string_view tag : tags) {
    for (size_t n = std::min(tag.size() - 1, text.size()); n > held; --n) {
      if (tag.starts_with(text.substr(text.size() - n))) held = n;
    }
  }
  return held;
}

inline std::string without_tags(std::string_view text, std::span<const std::string_view> tags) {
  std::string out;
  for (FoundTag found = find_tag(text, tags); found.at != std::string_view::npos; found = find_tag(text, tags)) {
    out += text.substr(0, found.at);
    text.remove_prefix(found.at + found.tag.size());
  }
  return out += text;
}

inline constexpr std::string_view kBlanks = " \t\r\n";

inline std::string_view trimmed_left(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text;
}
inline std::string_view trimmed_right(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}
inline std::string_view trimmed(std::string_view text) { return trimmed_right(trimmed_left(text)); }

}  // namespace carpool
