// See char_set.h. Ranges of characters become sequences of ranges of bytes by cutting them where a byte wraps around.
#include "grammar/char_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "text/utf8.h"

namespace carpool {
namespace {

constexpr uint32_t kLast = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;
constexpr std::array<uint32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, kLast};

std::string encoded(uint32_t c) {
  std::string out;
  append_code_point(static_cast<char32_t>(c), out);
  return out;
}

unsigned char byte_at(const std::string& text, size_t i) { return static_cast<unsigned char>(text[i]); }

// The encodings from `first` to `last`, which have one length, from byte `at` on; those before are the same.
NodeId span_node(GrammarBuilder& b, const std::string& first, const std::string& last, size_t at) {
  const unsigned char low = byte_at(first, at), high = byte_at(last, at);
  if (at + 1 == first.size()) return b.bytes(low, high);
  if (low == high) return b.seq({b.bytes(low, low), span_node(b, first, last, at + 1)});
  const std::string lowest(first.size(), '\x80'), highest(first.size(), '\xBF');
  const auto is_all = [&](const std::string& text, const std::string& end) {
    return std::equal(text.begin() + static_cast<std::ptrdiff_t>(at) + 1, text.end(),
                      end.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  };
  const bool cut_low = !is_all(first, lowest), cut_high = !is_all(last, highest);
  std::vector<NodeId> options;
  if (cut_low) options.push_back(b.seq({b.bytes(low, low), span_node(b, first, highest, at + 1)}));
  const int middle_low = low + cut_low, middle_high = high - cut_high;
  if (middle_low <= middle_high) {
    std::vector<NodeId> parts = {
        b.bytes(static_cast<unsigned char>(middle_low), static_cast<unsigned char>(middle_high))};
    for (size_t i = at + 1; i < first.size(); ++i) parts.push_back(b.bytes(0x80, 0xBF));
    options.push_back(b.seq(parts));
  }
  if (cut_high) options.push_back(b.seq({b.bytes(high, high), span_node(b, lowest, last, at + 1)}));
  return b.alt(options);
}

// Appends what the raw characters of `set` are in UTF-8.
void add_raw(GrammarBuilder& b, const CharSet& set, std::vector<NodeId>& options) {
  ByteSet ascii;
  for (const auto& [first, last] : set.ranges()) {
    uint32_t from = first;
    for (const uint32_t end : kLastOfLength) {
      if (from > end) continue;
      const uint32_t to = std::min(last, end);
      if (from > to) break;
      if (end == kLastOfLength[0]) {
        for (uint32_t c = from; c <= to; ++c) ascii.set(c);
      } else {
        options.push_back(span_node(b, encoded(from), encoded(to), 0));
      }
      from = to + 1;
    }
  }
  if (ascii.any()) options.push_back(b.bytes(ascii));
}

std::string escaped(uint32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", c);
  }
}

}  // namespace

std::vector<CharSet::Range> CharSet::ranges() const {
  std::vector<Range> sorted;
  for (const auto& [first, last] : ranges_) {  // cut at the surrogates
    if (first < kFirstSurrogate) sorted.emplace_back(first, std::min(last, kFirstSurrogate - 1));
    if (last > kLastSurrogate) sorted.emplace_back(std::max(first, kLastSurrogate + 1), std::min(last, kLast));
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<Range> out;
  for (const Range& r : sorted) {
    if (!out.empty() && r.first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, r.second);
    } else {
      out.push_back(r);
    }
  }
  return out;
}

CharSet CharSet::complement() const {
  CharSet out;
  uint32_t from = 0;
  for (const auto& [first, last] : ranges()) {
    if (first > from) out.add(from, first - 1);
    from = last + 1;
  }
  if (from <= kLast) out.add(from, kLast);
  return out;
}

CharSet CharSet::without(const CharSet& other) const {
  CharSet both = complement();
  both.add(other);
  return both.complement();
}

bool CharSet::has(uint32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [c](const Range& r) { return r.first <= c && c <= r.second; });
}

CharSet plain_json_chars() {
  CharSet out;
  out.add(0x20, 0x21);
  out.add(0x23, 0x5B);
  out.add(0x5D, kLast);
  return out;
}

NodeId char_node(GrammarBuilder& builder, const CharSet& set, CharForm form) {
  const auto [known, is_new] = builder.char_sets_.try_emplace({form, set.ranges()}, builder.fail());
  if (!is_new) return known->second;
  std::vector<NodeId> options;
  if (form == CharForm::kRaw) {
    add_raw(builder, set, options);
    return known->second = builder.alt(options);
  }
  const CharSet plain = plain_json_chars();
  add_raw(builder, set.without(plain.complement()), options);
  std::vector<std::string> escapes;
  for (uint32_t c = 1; c < 0x60; ++c) {  // U+0000 is never written: too much software takes it for the end
    if (!plain.has(c) && set.has(c)) escapes.push_back(escaped(c));
  }
  if (!escapes.empty()) options.push_back(builder.one_of(std::move(escapes)));
  return known->second = builder.alt(options);
}

NodeId char_node(GrammarBuilder& builder, const CharSet& set, const CharSpelling& spelling) {
  if (spelling.avoided == 0 || !set.has(spelling.avoided)) return char_node(builder, set, spelling.form);
  CharSet avoided;
  avoided.add(spelling.avoided);
  const NodeId rest = char_node(builder, set.without(avoided), spelling.form);
  if (spelling.form == CharForm::kRaw) return rest;
  return builder.alt({rest, builder.literal(fmt::format("\\u{:04x}", spelling.avoided))});
}

}  // namespace carpool
