// See json_text.h.
#include "grammar/json_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/char_set.h"
#include "grammar/json_number.h"
#include "text/utf8.h"

namespace carpool {
namespace {

constexpr int kIndent = 32;  // most spaces at the beginning of a line

void append_text(const json::value& value, std::string& out) {
  switch (value.kind()) {
    case json::kind::array: {
      out += '[';
      for (const json::value& item : value.get_array()) {
        if (out.back() != '[') out += ',';
        append_text(item, out);
      }
      out += ']';
      break;
    }
    case json::kind::object: {
      out += '{';
      for (const auto& [key, item] : value.get_object()) {
        if (out.back() != '{') out += ',';
        out += json::serialize(key);
        out += ':';
        append_text(item, out);
      }
      out += '}';
      break;
    }
    case json::kind::double_: {
      out += fmt::format("{}", value.get_double());
      break;
    }
    default:
      out += json::serialize(value);
  }
}

ByteSet set_of(std::string_view chars) {
  ByteSet set;
  for (const char c : chars) set.set(static_cast<unsigned char>(c));
  return set;
}

std::u32string code_points(std::string_view text) {
  std::u32string out;
  for (size_t pos = 0; pos < text.size();) out += read_code_point(text, pos);
  return out;
}

}  // namespace

std::string json_text(const json::value& value) {
  std::string out;
  append_text(value, out);
  return out;
}

NodeId JsonNodes::space() {
  if (space_ >= 0) return space_;
  const NodeId tabs = b_.repeat(b_.literal("\t"), 1, kIndent / 4);
  const NodeId line = b_.seq({b_.literal("\n"), b_.alt({b_.repeat(b_.literal(" "), 0, kIndent), tabs})});
  return space_ = b_.optional(b_.alt({b_.literal(" "), line}));
}

// Without the character that a text begins with which must not be written.
CharSet JsonNodes::plain_chars() const {
  CharSet out = plain_json_chars();
  if (style_.bare) {
    out = {};
    out.add(1, 0x10FFFF);
  }
  CharSet avoided;
  if (!style_.without.empty()) avoided.add(style_.spelling().avoided);
  return out.without(avoided);
}

NodeId JsonNodes::escape() {
  if (style_.bare) return b_.fail();
  if (escape_ >= 0) return escape_;
  const NodeId h = b_.bytes(set_of("0123456789abcdefABCDEF")), zero = b_.literal("0");
  const NodeId h1 = b_.bytes(set_of("123456789abcdefABCDEF")), d = b_.bytes(set_of("dD"));
  const NodeId low = b_.seq({d, b_.bytes(set_of("cdefCDEF")), h, h});
  const NodeId code = b_.alt({b_.seq({b_.bytes(set_of("123456789abcefABCEF")), h, h, h}), b_.seq({zero, h1, h, h}),
                              b_.seq({zero, zero, h1, h}), b_.seq({zero, zero, zero, h1}),
                              b_.seq({d, b_.bytes(set_of("01234567")), h, h}),
                              b_.seq({d, b_.bytes(set_of("89abAB")), h, h, b_.literal("\\u"), low})});
  return escape_ =
             b_.seq({b_.literal("\\"), b_.alt({b_.bytes(set_of("\"\\/bfnrt")), b_.seq({b_.literal("u"), code})})});
}

NodeId JsonNodes::string_char() {
  if (char_ < 0) char_ = b_.alt({char_node(b_, plain_chars(), CharForm::kRaw), escape()});
  return char_;
}

// Where the length is bounded and a text must not be written, its first character is not, for counting both at once
// takes as many states as their product.
NodeId JsonNodes::string_text(int min, int max) {
  if (style_.without.empty() || max != kNoLimit) return b_.repeat(string_char(), min, max);
  if (text_ < 0) {
    CharSet chars = plain_chars();
    chars.add(style_.spelling().avoided);
    text_ = b_.text_without(std::span(&style_.without, 1), chars, escape());
  }
  return b_.seq({b_.repeat(string_char(), min, min), text_});
}

NodeId JsonNodes::string(int min, int max) {
  const NodeId quote = style_.bare ? b_.empty() : b_.literal("\"");
  return b_.seq({quote, string_text(min, max), quote});
}

std::string JsonNodes::spelled(const json::value& value) const {
  std::string text = json_text(value);
  if (style_.without.empty()) return text;
  const char avoided = style_.without[0];
  std::string out;
  for (const char c : text) out += c == avoided ? fmt::format("\\u{:04x}", static_cast<int>(c)) : std::string(1, c);
  return out;
}

NodeId JsonNodes::name(std::string_view name) {
  return b_.seq({b_.literal(spelled(json::value(name)) + ":"), b_.optional(b_.literal(" "))});
}

// What may follow when the names in `sorted` are those that agree with what was written, `depth` characters.
NodeId JsonNodes::other_name_from(std::span<const std::u32string> sorted, size_t depth) {
  CharSet taken;
  std::vector<NodeId> options;
  size_t begin = 0;
  if (!sorted.empty() && sorted.front().size() == depth) {
    begin = 1;  // this very name must go on
  } else {
    options.push_back(b_.literal("\""));
  }
  while (begin < sorted.size()) {
    const char32_t c = sorted[begin][depth];
    size_t end = begin + 1;
    while (end < sorted.size() && sorted[end][depth] == c) ++end;
    CharSet one;
    one.add(c);
    taken.add(c);
    options.push_back(
        b_.seq({char_node(b_, one, CharForm::kRaw), other_name_from(sorted.subspan(begin, end - begin), depth + 1)}));
    begin = end;
  }
  if (plain_rest_ < 0) {
    const NodeId plain = char_node(b_, plain_chars(), CharForm::kRaw);
    plain_rest_ = b_.seq({b_.repeat(plain, 0, kNoLimit), b_.literal("\"")});
  }
  options.push_back(b_.seq({char_node(b_, plain_chars().without(taken), CharForm::kRaw), plain_rest_}));
  return b_.alt(options);
}

NodeId JsonNodes::other_name(std::span<const std::string> names) {
  const CharSet plain = plain_chars();
  std::vector<std::u32string> sorted;
  for (const std::string& name : names) {
    std::u32string points = code_points(name);
    const bool written = std::all_of(points.begin(), points.end(), [&](char32_t c) { return plain.has(c); });
    if (written && points.size() <= 256) sorted.push_back(std::move(points));  // others need escapes, or are refused
  }
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return b_.seq({b_.literal("\""), other_name_from(sorted, 0), b_.literal(":"), b_.optional(b_.literal(" "))});
}

NodeId JsonNodes::scalar() {
  if (scalar_ < 0) {
    scalar_ = b_.alt({b_.one_of({"null", "true", "false"}), number_node(b_, {}), string(0, kNoLimit)});
  }
  return scalar_;
}

NodeId JsonNodes::enclosed_list(const char* open, NodeId one, int min, int max, const char* close) {
  const NodeId end = b_.literal(close);
  const NodeId more = b_.repeat(b_.seq({b_.literal(","), space(), one}), std::max(min - 1, 0),
                                max == kNoLimit ? kNoLimit : std::max(max - 1, 0));
  const NodeId some = max == 0 ? b_.fail() : b_.seq({one, more, space(), end});
  return b_.seq({b_.literal(open), space(), b_.alt({min == 0 ? end : b_.fail(), some})});
}

NodeId JsonNodes::any_object(int depth) {
  any_value(depth);
  return objects_[static_cast<size_t>(depth)];
}

NodeId JsonNodes::any_value(int depth) {
  while (values_.size() <= static_cast<size_t>(depth)) {
    const NodeId inner = values_.empty() ? scalar() : values_.back();
    objects_.push_back(enclosed_list("{", b_.seq({other_name({}), inner}), 0, values_.empty() ? 0 : kNoLimit, "}"));
    const NodeId list = enclosed_list("[", inner, 0, values_.empty() ? 0 : kNoLimit, "]");
    values_.push_back(b_.alt({scalar(), objects_.back(), list}));
  }
  return values_[static_cast<size_t>(depth)];
}

}  // namespace carpool
