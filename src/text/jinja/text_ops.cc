// See text_ops.h.
#include "text/jinja/text_ops.h"

#include <fmt/format.h>
#include <string.h>
#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace carpool::jinja {
namespace {

// What str.isspace() accepts.
bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_letter(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

// Applies `map` to every code point; a changed character keeps the mark of the old one.
template <class Map>
Text map_characters(const Text& text, const Map& map) {
  Text out;
  out.bytes.reserve(text.bytes.size());
  for (size_t pos = 0; pos < text.bytes.size();) {
    const size_t begin = pos;
    const char32_t c = map(read_code_point(text.bytes, pos));
    append_code_point(c, out.bytes);
    out.marks.resize(out.bytes.size(), text.marks[begin]);
  }
  return out;
}

char32_t to_upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))); }
char32_t to_lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))); }

size_t character_begin(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

}  // namespace

size_t find(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* found = ::memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

Text strip(const Text& text, Side side, std::optional<std::string_view> set) {
  const std::string_view bytes = text.bytes;
  const auto goes = [&](size_t begin, size_t end) {
    size_t pos = begin;
    return set ? find(*set, bytes.substr(begin, end - begin)) != std::string_view::npos
               : is_space(read_code_point(bytes, pos));
  };
  size_t begin = 0, end = bytes.size();
  while (side != Side::kRight && begin < end) {
    size_t next = begin;
    read_code_point(bytes, next);
    if (!goes(begin, next)) break;
    begin = next;
  }
  while (side != Side::kLeft && begin < end) {
    const size_t last = character_begin(bytes, end);
    if (!goes(last, end)) break;
    end = last;
  }
  return text.sub(begin, end - begin);
}

std::vector<Text> split(const Text& text, std::optional<std::string_view> separator, int64_t max, Budget& budget) {
  if (separator && separator->empty()) throw Failure{"split: the separator is empty"};
  budget.text(text.bytes.size());
  const std::string_view bytes = text.bytes;
  std::vector<Text> out;
  size_t begin = 0;
  const auto skip_space = [&](size_t pos, bool space) {
    while (pos < bytes.size()) {
      size_t next = pos;
      if (is_space(read_code_point(bytes, next)) != space) break;
      pos = next;
    }
    return pos;
  };
  while (separator) {
    const size_t end =
        max < 0 || static_cast<int64_t>(out.size()) < max ? find(bytes, *separator, begin) : std::string_view::npos;
    out.push_back(text.sub(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) break;
    begin = end + separator->size();
  }
  while (!separator && (begin = skip_space(begin, true)) < bytes.size()) {
    if (max >= 0 && static_cast<int64_t>(out.size()) == max) {
      out.push_back(text.sub(begin));
      break;
    }
    const size_t end = skip_space(begin, false);
    out.push_back(text.sub(begin, end - begin));
    begin = end;
  }
  budget.items(out.size());
  return out;
}

Text replace(const Text& text, std::string_view old, const Text& with, int64_t max, Budget& budget) {
  if (old.empty()) throw Failure{"replace: the text to replace is empty"};
  Text out;
  size_t begin = 0;
  for (int64_t n = 0; max < 0 || n < max; ++n) {
    const size_t at = find(text.bytes, old, begin);
    if (at == std::string_view::npos) break;
    budget.text(at - begin + with.bytes.size());
    out.append(text, begin, at - begin);
    out.append(with);
    if (out.bytes.size() > Budget::kMaxTextBytes) budget.text(out.bytes.size());
    begin = at + old.size();
  }
  out.append(text, begin, std::string::npos);
  budget.text(out.bytes.size());
  return out;
}

Text upper(const Text& text) { return map_characters(text, to_upper); }
Text lower(const Text& text) { return map_characters(text, to_lower); }

Text capitalize(const Text& text) {
  bool first = true;
  return map_characters(text, [&](char32_t c) { return std::exchange(first, false) ? to_upper(c) : to_lower(c); });
}

Text title(const Text& text, bool as_filter) {
  bool begins = true;
  return map_characters(text, [&](char32_t c) {
    const char32_t changed = begins ? to_upper(c) : to_lower(c);
    const bool separator = is_space(c) || c == '-' || c == '(' || c == '[' || c == '{' || c == '<';
    begins = as_filter ? separator : !is_letter(c);
    return changed;
  });
}

Text indent(const Text& text, std::string_view by, bool first, bool blank, Budget& budget) {
  Text out;
  for (size_t begin = 0, line = 0;; ++line) {
    const size_t end = std::min(text.bytes.find('\n', begin), text.bytes.size());
    if (line == 0 ? first : blank || end > begin) out.append(by);
    if (out.bytes.size() > Budget::kMaxTextBytes) budget.text(out.bytes.size());
    out.append(text, begin, end - begin + 1);
    if (end == text.bytes.size()) break;
    begin = end + 1;
  }
  budget.text(out.bytes.size());
  return out;
}

std::vector<Text> characters(const Text& text, Budget& budget) {
  std::vector<Text> out;
  for (size_t pos = 0; pos < text.bytes.size();) {
    const size_t begin = pos;
    read_code_point(text.bytes, pos);
    out.push_back(text.sub(begin, pos - begin));
    if (out.size() % 4096 == 0) budget.items(4096);
    if (out.size() > Budget::kMaxListItems) budget.items(out.size());
  }
  return out;
}

size_t character_count(const Text& text) {
  return static_cast<size_t>(std::count_if(text.bytes.begin(), text.bytes.end(),
                                           [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace carpool::jinja
