// Loading and applying; see token_decoder.h.
#include "text/token_decoder.h"

#include <fmt/format.h>

#include <charconv>

#include "text/sequence.h"
#include "text/utf8.h"

namespace carpool {
namespace {

bool is_one_character(std::string_view text) {
  if (text.empty()) return false;
  size_t pos = 0;
  read_code_point(text, pos);
  return pos == text.size();
}

std::string replace_all(std::string text, std::string_view old, std::string_view with) {
  for (size_t at = text.find(old); at != std::string::npos; at = text.find(old, at + with.size())) {
    text.replace(at, old.size(), with);
  }
  return text;
}

}  // namespace

int spelled_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int byte = 0;
  const char *begin = token.data() + 3, *end = token.data() + 5;
  const auto parsed = std::from_chars(begin, end, byte, 16);
  return parsed.ec == std::errc() && parsed.ptr == end ? byte : -1;
}

std::string byte_spelling(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

TokenDecoder TokenDecoder::load(const JsonObject& root, bool byte_level) {
  TokenDecoder result;
  result.byte_level_ = byte_level;
  if (!byte_level) {
    if (root.has("decoder")) result.load_characters(root.object("decoder"));
    return result;
  }
  if (!root.has("decoder")) root.fail("decoder", "must be ByteLevel");
  int n = 0;
  for_each_member(root.object("decoder"), "decoders", [&](const JsonObject& object) {
    if (object.string("type") != "ByteLevel" || ++n > 1) refuse_type(object, "decoder");
  });
  return result;
}

// Replace and ByteFallback work on tokens; Fuse puts these together; Strip then sees the whole text.
void TokenDecoder::load_characters(const JsonObject& decoder) {
  bool fused = false;
  for_each_member(decoder, "decoders", [&](const JsonObject& object) {
    const std::string type = object.string("type");
    if (type == "Replace" && !fused && !byte_fallback_) {
      const std::string old = object.object("pattern").string("String");
      if (old.empty()) object.fail("pattern", "is empty");
      replacements_.emplace_back(old, object.string("content"));
    } else if (type == "ByteFallback" && !fused) {
      byte_fallback_ = true;
    } else if (type == "Fuse") {
      fused = true;
    } else if (type == "Strip" && fused && strip_.empty()) {
      strip_ = object.string("content");
      if (!is_one_character(strip_)) object.fail("content", "must be one character");
      strip_max_ = object.integer("start", 0, 1 << 20);
      if (object.integer("stop", 0, 1 << 20) != 0) object.fail("stop", "must be 0");
    } else {
      refuse_type(object, "at this place, decoder");
    }
  });
}

std::string TokenDecoder::token_bytes(std::string_view token) const {
  if (byte_level_) return alphabet_.bytes_of(token).value_or(std::string(token));
  if (const int byte = byte_fallback_ ? spelled_byte(token) : -1; byte >= 0) {
    return std::string(1, static_cast<char>(byte));
  }
  std::string text(token);
  for (const auto& [old, with] : replacements_) text = replace_all(std::move(text), old, with);
  return text;
}

std::string TokenDecoder::added_bytes(std::string_view token) const {
  return byte_level_ ? std::string(token) : token_bytes(token);
}

std::string_view TokenDecoder::strip(std::string_view text) const {
  for (int64_t n = 0; n < strip_max_ && text.starts_with(strip_); ++n) text.remove_prefix(strip_.size());
  return text;
}

}  // namespace carpool
