// Classification follows table 3-7 of the Unicode standard (well-formed UTF-8); see utf8.h.
#include "text/utf8.h"

namespace carpool {

Utf8Unit next_utf8(std::string_view rest) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(rest[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8Kind::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Kind::kInvalid, 1};
  const size_t needed = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte carries the limits against overlong forms, surrogates and values above 0x10FFFF.
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < needed; ++i) {
    if (i == rest.size()) return {Utf8Kind::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Utf8Kind::kInvalid, i};
    low = 0x80, high = 0xBF;
  }
  return {Utf8Kind::kValid, needed};
}

std::string sanitize_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Unit unit = next_utf8(text.substr(pos));
    out += unit.kind == Utf8Kind::kValid ? text.substr(pos, unit.length) : kReplacement;
    pos += unit.length;
  }
  return out;
}

bool is_valid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Unit unit = next_utf8(text.substr(pos));
    if (unit.kind != Utf8Kind::kValid) return false;
    pos += unit.length;
  }
  return true;
}

char32_t read_code_point(std::string_view text, size_t& pos) {
  const auto lead = static_cast<unsigned char>(text[pos]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t c = length == 1 ? lead : lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) c = (c << 6) | (static_cast<unsigned char>(text[pos + i]) & 0x3Fu);
  pos += length;
  return c;
}

void append_code_point(char32_t c, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace carpool
