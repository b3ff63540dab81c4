// JSON reader against a strict reader of our own: the same texts are accepted and mean the same, what is printed reads
// back as the same value, and errors are JsonErrors that name a byte of the text.
#include "base/json.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "fuzz.h"

namespace carpool {
namespace {

std::string hex_of(double d) {
  char text[64];
  std::snprintf(text, sizeof text, "d%a", d);
  return text;
}

// Reads one JSON value by the letter of RFC 8259 and of what parse_json promises, into a canonical text. Recursive, for
// depth is limited; throws No.
class Strict {
 public:
  struct No {};
  bool huge_exponent =
      false;  // some number's has ten digits or more, which the reader may refuse even where it means 0
  explicit Strict(std::string_view text) : text_(text) {}

  std::string whole() {
    std::string out;
    blanks();
    value(0, out);
    blanks();
    if (at_ != text_.size()) throw No();
    return out;
  }

 private:
  int peek() const { return at_ < text_.size() ? static_cast<unsigned char>(text_[at_]) : -1; }
  void need(bool good) const {
    if (!good) throw No();
  }
  void blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
  }
  void word(std::string_view w, std::string& out) {
    need(text_.substr(at_, w.size()) == w);
    at_ += w.size();
    out += w;
  }
  bool take(char c) {
    const bool there = peek() == c;
    at_ += there;
    return there;
  }

  void value(size_t depth, std::string& out) {
    switch (peek()) {
      case 'n':
        return word("null", out);
      case 't':
        return word("true", out);
      case 'f':
        return word("false", out);
      case '"':
        return add_string(string(), out);
      case '[':
        return array(depth + 1, out);
      case '{':
        return object(depth + 1, out);
      default:
        return number(out);
    }
  }

  void array(size_t depth, std::string& out) {
    need(depth <= JsonLimits().max_depth);
    ++at_, out += '[';
    blanks();
    if (take(']')) return void(out += ']');
    do {
      blanks();
      value(depth, out);
      out += ',';
      blanks();
    } while (take(','));
    need(take(']'));
    out += ']';
  }

  void object(size_t depth, std::string& out) {
    need(depth <= JsonLimits().max_depth);
    ++at_, out += '{';
    blanks();
    if (take('}')) return void(out += '}');
    std::set<std::string> keys;
    do {
      blanks();
      need(peek() == '"');
      const std::string key = string();
      need(keys.insert(key).second);
      add_string(key, out);
      blanks();
      need(take(':'));
      blanks();
      value(depth, out);
      out += ',';
      blanks();
    } while (take(','));
    need(take('}'));
    out += '}';
  }

  int digits() {
    int n = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) ++n;
    return n;
  }
  void number(std::string& out) {
    const size_t from = at_;
    take('-');
    if (!take('0')) need(digits() > 0);
    bool whole = true;
    if (take('.')) need(digits() > 0), whole = false;
    if (take('e') || take('E')) {
      whole = false;
      if (!take('+')) take('-');
      while (peek() == '0' && at_ + 1 < text_.size() && std::isdigit(text_[at_ + 1]) != 0) ++at_;
      const int n = digits();
      need(n > 0);
      huge_exponent |= n > 9;
    }
    const std::string token(text_.substr(from, at_ - from));
    int64_t i = 0;
    uint64_t u = 0;
    const auto read = [&](auto& to) {
      const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), to);
      return error == std::errc() && end == token.data() + token.size();
    };
    if (whole && read(i)) return void(out += "i" + std::to_string(i));
    if (whole && read(u)) return void(out += "i" + std::to_string(u));
    const double d = std::strtod(token.c_str(), nullptr);
    need(std::isfinite(d));
    out += hex_of(d);
  }

  unsigned four_digits() {
    unsigned c = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      need(std::isxdigit(peek()) != 0);
      const int digit = std::tolower(peek());
      c = c * 16 + static_cast<unsigned>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    }
    return c;
  }
  static void append(unsigned c, std::string& out) {
    const auto put = [&](unsigned byte) { out += static_cast<char>(byte); };
    if (c < 0x80) return put(c);
    if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 63));
    if (c < 0x10000) return put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  }
  void escape(std::string& out) {
    static constexpr char kNames[] = "\"\\/bfnrt", kValues[] = "\"\\/\b\f\n\r\t";
    const int c = peek();
    ++at_;
    if (c == 'u') {
      unsigned code = four_digits();
      need(code < 0xDC00 || code > 0xDFFF);
      if (code >= 0xD800 && code < 0xDC00) {
        need(take('\\') && take('u'));
        const unsigned low = four_digits();
        need(low >= 0xDC00 && low <= 0xDFFF);
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      }
      return append(code, out);
    }
    const char* found = c > 0 ? std::strchr(kNames, c) : nullptr;
    need(found != nullptr);
    out += kValues[found - kNames];
  }
  // A character of UTF-8 above ASCII: decoded and encoded again it must be the same bytes.
  void character(std::string& out) {
    const auto lead = static_cast<unsigned>(peek());
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    unsigned code = lead & (0x3Fu >> more);
    std::string bytes(1, static_cast<char>(lead)), again;
    ++at_;
    for (int i = 0; i < more; ++i, ++at_) {
      need(peek() >= 0x80 && peek() < 0xC0);
      bytes += static_cast<char>(peek());
      code = code << 6 | static_cast<unsigned>(peek() & 63);
    }
    need(code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF));
    append(code, again);
    need(again == bytes);
    out += bytes;
  }
  std::string string() {
    std::string out;
    need(take('"'));
    while (!take('"')) {
      const int c = peek();
      need(c >= 0x20);
      if (c == '\\') {
        ++at_;
        escape(out);
      } else if (c < 0x80) {
        ++at_;
        out += static_cast<char>(c);
      } else {
        character(out);
      }
    }
    return out;
  }
  static void add_string(const std::string& s, std::string& out) { out += "s" + std::to_string(s.size()) + ":" + s; }

  std::string_view text_;
  size_t at_ = 0;
};

// The same canonical text of a value that was read.
void canonical(const json::value& v, std::string& out) {
  const auto add = [&](std::string_view s) { out += "s" + std::to_string(s.size()) + ":" + std::string(s); };
  if (v.is_null()) out += "null";
  if (v.is_bool()) out += v.get_bool() ? "true" : "false";
  if (v.is_int64()) out += "i" + std::to_string(v.get_int64());
  if (v.is_uint64()) out += "i" + std::to_string(v.get_uint64());
  if (v.is_double()) out += hex_of(v.get_double());
  if (v.is_string()) add(v.get_string());
  if (v.is_array()) {
    out += '[';
    for (const json::value& item : v.get_array()) canonical(item, out), out += ',';
    out += ']';
  }
  if (v.is_object()) {
    out += '{';
    for (const auto& [key, item] : v.get_object()) add(key), canonical(item, out), out += ',';
    out += '}';
  }
}

std::string canonical(const json::value& v) {
  std::string out;
  canonical(v, out);
  return out;
}

}  // namespace
}  // namespace carpool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::optional<std::string> expected;
  Strict strict(text);
  try {
    expected = strict.whole();
  } catch (const Strict::No&) {
  }
  json::value value;
  try {
    value = parse_json(text, "text");
  } catch (const JsonError& error) {
    const bool may = !expected || (strict.huge_exponent && error.reason() == JsonError::Reason::kOverflow);
    FUZZ_CHECK(may, std::string("refused what is right: ") + error.what());
    FUZZ_CHECK(error.offset() <= size, "an offset beyond the text");
    FUZZ_CHECK(std::string_view(error.what()).starts_with("text: "), error.what());
    return 0;
  }
  FUZZ_CHECK(expected, "accepted what is wrong");
  FUZZ_CHECK(canonical(value) == *expected, canonical(value) + " for " + *expected);
  FUZZ_CHECK(canonical(parse_json(json::serialize(value), "again")) == *expected, "printed on one line");
  FUZZ_CHECK(canonical(parse_json(pretty(value), "again")) == *expected, "printed with indentation");
  return 0;
}
