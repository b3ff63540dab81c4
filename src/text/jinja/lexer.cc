// See lexer.h.
#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace carpool::jinja {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\v\f";

// "\r\n" and "\r" become "\n", and one line end at the end of the template is dropped.
std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_lines(source)) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) {
      const size_t tag = find_tag();
      add_text(tag);
      if (pos_ < source_.size()) read_tag();
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool at(std::string_view text, size_t pos) const { return std::string_view(source_).substr(pos).starts_with(text); }
  bool at(std::string_view text) const { return at(text, pos_); }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(size_t to) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<ptrdiff_t>(pos_), source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    pos_ = to;
  }

  size_t find_tag() const {
    size_t tag = pos_;
    while ((tag = source_.find('{', tag)) != std::string::npos) {
      if (at("{{", tag) || at("{%", tag) || at("{#", tag)) return tag;
      ++tag;
    }
    return source_.size();
  }

  // Emits the text up to `tag`, shortened as the tag's sign and the line-start rule ask for.
  void add_text(size_t tag) {
    size_t end = tag;
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (tag < source_.size() && sign == '-') {
      while (end > pos_ && kBlanks.find(source_[end - 1]) != std::string_view::npos) --end;
    } else if (tag < source_.size() && sign != '+' && !at("{{", tag)) {
      size_t start = tag;
      while (start > pos_ && (source_[start - 1] == ' ' || source_[start - 1] == '\t')) --start;
      const bool line_start = start == 0 || source_[start - 1] == '\n';
      if (line_start) end = start;
    }
    if (end > pos_) add(TokenKind::kText, source_.substr(pos_, end - pos_));
    advance(tag);
  }

  // Moves behind the closing delimiter, whose sign is `sign`.
  void leave_tag(size_t after, char sign, bool trim_line_end) {
    advance(after);
    if (sign == '-') {
      advance(std::min(source_.find_first_not_of(kBlanks, pos_), source_.size()));
    } else if (trim_line_end && sign != '+' && at("\n")) {
      advance(pos_ + 1);
    }
  }

  void read_tag() {
    if (at("{#")) {
      const size_t end = source_.find("#}", pos_ + 2);
      if (end == std::string::npos) fail_at(line_, "a comment is not closed");
      return leave_tag(end + 2, source_[end - 1], true);
    }
    if (read_raw()) return;
    const bool output = at("{{");
    add(output ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
    const bool signed_tag = pos_ + 2 < source_.size() && (source_[pos_ + 2] == '-' || source_[pos_ + 2] == '+');
    advance(pos_ + (signed_tag ? 3 : 2));
    const std::string_view close = output ? "}}" : "%}";
    brackets_ = 0;
    while (true) {
      advance(std::min(source_.find_first_not_of(kBlanks, pos_), source_.size()));
      if (pos_ == source_.size()) fail_at(line_, "a tag is not closed");
      const char sign = (source_[pos_] == '-' || source_[pos_] == '+') && at(close, pos_ + 1) ? source_[pos_] : '\0';
      if (brackets_ == 0 && (sign || at(close))) {
        add(output ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "");
        return leave_tag(pos_ + (sign ? 3 : 2), sign, !output);
      }
      read_token();
    }
  }

  // {% raw %} ... {% endraw %}: everything between is text.
  bool read_raw() {
    const auto tag_end = [&](size_t pos, std::string_view name, char& sign) -> size_t {
      if (!at("{%", pos)) return 0;
      pos += 2;
      if (pos < source_.size() && (source_[pos] == '-' || source_[pos] == '+')) ++pos;
      pos = source_.find_first_not_of(kBlanks, pos);
      if (pos == std::string::npos || !at(name, pos)) return 0;
      pos = source_.find_first_not_of(kBlanks, pos + name.size());
      if (pos == std::string::npos) return 0;
      sign = source_[pos];
      if (sign == '-' || sign == '+') ++pos;
      return at("%}", pos) ? pos + 2 : 0;
    };
    char sign = 0;
    const size_t begin = tag_end(pos_, "raw", sign);
    if (begin == 0) return false;
    leave_tag(begin, sign, true);
    for (size_t tag = source_.find("{%", pos_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      if (const size_t end = tag_end(tag, "endraw", sign)) {
        add_text(tag);
        leave_tag(end, sign, true);
        return true;
      }
    }
    fail_at(line_, "a raw block is not closed");
  }

  void read_token() {
    const char c = source_[pos_];
    if (is_name_start(c)) {
      size_t end = pos_;
      while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
      add(TokenKind::kName, source_.substr(pos_, end - pos_));
      advance(end);
    } else if (is_digit(c)) {
      read_number();
    } else if (c == '"' || c == '\'') {
      read_string(c);
    } else {
      read_operator();
    }
  }

  void read_number() {
    size_t end = pos_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || (source_[end] == '_' && is_digit(source_[end - 1]))))
        ++end;
    };
    digits();
    bool real = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      real = true, ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        real = true, end = exponent;
        digits();
      }
    }
    std::string text = source_.substr(pos_, end - pos_);
    std::erase(text, '_');
    add(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    advance(end);
  }

  void read_string(char quote) {
    std::string value;
    size_t pos = pos_ + 1;
    for (;; ++pos) {
      if (pos >= source_.size()) fail_at(line_, "a string is not closed");
      if (source_[pos] == quote) break;
      if (source_[pos] != '\\') {
        value += source_[pos];
      } else {
        if (++pos == source_.size()) fail_at(line_, "a string is not closed");
        read_escape(pos, value);
      }
    }
    add(TokenKind::kString, std::move(value));
    advance(pos + 1);
  }

  // `pos` is at the character after the backslash; leaves it at the escape's last one.
  void read_escape(size_t& pos, std::string& value) {
    static constexpr std::string_view kLetters = "ntrbfav0\\'\"", kValues("\n\t\r\b\f\a\v\0\\'\"", 11);
    const char c = source_[pos];
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      const std::string hex = source_.substr(pos + 1, static_cast<size_t>(digits));
      const bool good = hex.size() == static_cast<size_t>(digits) &&
                        hex.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
      const unsigned long code = good ? std::stoul(hex, nullptr, 16) : 0x110000;
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail_at(line_, "a string has a bad escape sequence");
      append_code_point(static_cast<char32_t>(code), value);
      pos += static_cast<size_t>(digits);
    } else if (const size_t which = kLetters.find(c); which != std::string_view::npos) {
      value += kValues[which];
    } else {
      value += '\\';
      value += c;
    }
  }

  void read_operator() {
    static constexpr std::string_view kTwo[] = {"==", "!=", "<=", ">=", "//", "**"};
    std::string text = source_.substr(pos_, 1);
    for (std::string_view two : kTwo) {
      if (at(two)) text = two;
    }
    if (text.size() == 1 && std::string_view("+-*/%~<>=()[]{}.,:|").find(text[0]) == std::string_view::npos) {
      fail_at(line_, fmt::format("unexpected character \"{}\"", escape(text)));
    }
    if (std::string_view("([{").find(text[0]) != std::string_view::npos) ++brackets_;
    if (std::string_view(")]}").find(text[0]) != std::string_view::npos) brackets_ = std::max(0, brackets_ - 1);
    add(TokenKind::kOperator, text);
    advance(pos_ + text.size());
  }

  std::string source_;
  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int line_ = 1;
  int brackets_ = 0;  // "}}" inside a dict literal does not close the tag
};

}  // namespace

void fail_at(int line, const std::string& what) {
  throw Error(ErrorKind::kMalformed, fmt::format("chat template: line {}: {}", line, what));
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace carpool::jinja
