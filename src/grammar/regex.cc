// See regex.h. A recursive descent that makes nodes at once; beside each it keeps the lengths of its texts.
#include "grammar/regex.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/utf8.h"

namespace carpool {
namespace {

constexpr int64_t kMaxBound = int64_t{1} << 40;  // lengths beyond it need no exact number

int64_t add_lengths(int64_t a, int64_t b) { return a < 0 || b < 0 ? kNoLimit : std::min(a + b, kMaxBound); }
int64_t scale_length(int64_t length, int64_t times) {
  if (length == 0 || times == 0) return 0;
  return length < 0 || times < 0 ? kNoLimit : std::min(length * times, kMaxBound);
}

struct Piece {
  NodeId node = 0;
  LengthRange length{0, 0};
  int64_t product = 1;           // of the counts of nested repetitions
  std::optional<CharSet> chars;  // when it is one character of these ...
  int min = 1, max = 1;          // ... or so many
};

struct Anchored {
  Piece piece;
  bool begin = false, end = false;
};

class Parser {
 public:
  Parser(GrammarBuilder& builder, std::string_view text, const CharSpelling& spelling, const std::string& path)
      : builder_(builder), text_(text), spelling_(spelling), path_(path) {}

  // The outermost alternatives, each with its anchors.
  std::vector<Anchored> parse() {
    if (text_.size() > kMaxGrammarBytes) {
      throw GrammarError(path_, false, fmt::format("the expression has more than {} bytes", kMaxGrammarBytes));
    }
    if (!is_valid_utf8(text_)) throw GrammarError(path_, false, "the expression is not UTF-8");
    std::vector<Anchored> out;
    do {
      Anchored a;
      while (take('^')) a.begin = true;
      a.piece = sequence(0);
      while (take('$')) a.end = true;
      if (pos_ < text_.size() && text_[pos_] != '|') {
        if (text_[pos_] == ')') fail("a ) without its (");
        refuse("$ before the end of an alternative");
      }
      out.push_back(std::move(a));
    } while (take('|'));
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw GrammarError(path_, false, fmt::format("{} at byte {} of the expression", what, pos_));
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw GrammarError(path_, true, fmt::format("{} is not supported, at byte {} of the expression", what, pos_));
  }
  bool more() const { return pos_ < text_.size(); }
  bool at(char c) const { return more() && text_[pos_] == c; }
  bool take(char c) {
    if (!at(c)) return false;
    ++pos_;
    return true;
  }
  uint32_t next_char() {
    if (!more()) fail("the end came too early");
    return static_cast<uint32_t>(read_code_point(text_, pos_));
  }

  Piece alternatives(int depth) {
    if (depth > kMaxGrammarDepth) fail(fmt::format("groups are nested deeper than {} levels", kMaxGrammarDepth));
    std::vector<NodeId> nodes;
    Piece out;
    do {
      const Piece p = sequence(depth);
      out.length.min = nodes.empty() ? p.length.min : std::min(out.length.min, p.length.min);
      const bool open = p.length.max < 0 || out.length.max < 0;
      out.length.max = open ? kNoLimit : std::max(nodes.empty() ? 0 : out.length.max, p.length.max);
      out.product = std::max(out.product, p.product);
      if (p.chars && nodes.empty()) {
        out.chars = p.chars;
        out.min = p.min;
        out.max = p.max;
      } else {
        out.chars.reset();
      }
      nodes.push_back(p.node);
    } while (take('|'));
    out.node = builder_.alt(nodes);
    return out;
  }

  Piece sequence(int depth) {
    std::vector<NodeId> nodes;
    Piece out;
    while (more() && !at('|') && !at(')') && !at('$')) {
      Piece p = quantified(atom(depth));
      out.length = {add_lengths(out.length.min, p.length.min), add_lengths(out.length.max, p.length.max)};
      out.product = std::max(out.product, p.product);
      out.chars = nodes.empty() ? std::move(p.chars) : std::nullopt;
      out.min = p.min;
      out.max = p.max;
      nodes.push_back(p.node);
    }
    out.node = builder_.seq(nodes);
    return out;
  }

  Piece class_piece(CharSet set) {
    Piece out;
    out.node = char_node(builder_, set, spelling_);
    if (out.node == builder_.fail()) fail("a class without characters");
    out.length = {1, 1};
    out.chars = std::move(set);
    return out;
  }

  Piece atom(int depth) {
    if (at('^')) refuse("^ after the beginning of an alternative");
    if (at('*') || at('+') || at('?')) fail("nothing to repeat");
    if (take('(')) return group(depth);
    if (take('[')) return class_piece(bracket());
    CharSet set;
    if (take('.')) {
      CharSet ends;
      for (const uint32_t c : {0x0Au, 0x0Du, 0x2028u, 0x2029u}) ends.add(c);
      return class_piece(ends.complement());
    }
    if (take('\\')) {
      escape(set, /*in_class=*/false);
    } else {
      set.add(next_char());
    }
    return class_piece(std::move(set));
  }

  Piece group(int depth) {
    if (take('?')) {
      if (at('=') || at('!')) refuse("look-ahead");
      if (take('P') && !at('<')) refuse("this kind of group");
      if (take('<')) {
        if (at('=') || at('!')) refuse("look-behind");
        while (more() && !at('>')) next_char();
        if (!take('>')) fail("a name of a group that does not end");
      } else if (!take(':')) {
        refuse("a group with flags");
      }
    }
    Piece out = alternatives(depth + 1);
    if (at('$')) refuse("$ within a group");
    if (!take(')')) fail("a ( without its )");
    return out;
  }

  int number() {
    int64_t value = 0;
    while (more() && text_[pos_] >= '0' && text_[pos_] <= '9') {
      value = value * 10 + (text_[pos_++] - '0');
      if (value > kMaxRepetitions) fail(fmt::format("a repetition of more than {}", kMaxRepetitions));
    }
    return static_cast<int>(value);
  }

  Piece quantified(Piece piece) {
    for (int quantifiers = 0;; ++quantifiers) {
      int min = 0, max = kNoLimit;
      const bool digit = pos_ + 1 < text_.size() && text_[pos_ + 1] >= '0' && text_[pos_ + 1] <= '9';
      if (take('+')) {
        min = 1;
      } else if (take('?')) {
        max = 1;
      } else if (at('{') && digit) {
        ++pos_;
        min = max = number();
        if (take(',')) max = at('}') ? kNoLimit : number();
        if (!take('}')) fail("a repetition that does not end");
        if (max != kNoLimit && max < min) fail("a repetition whose end is below its beginning");
      } else if (!take('*')) {
        return piece;
      }
      if (quantifiers > 0) fail("a quantifier after a quantifier");
      take('?');  // lazy: the same texts
      if (at('+')) refuse("a possessive quantifier");
      piece = repeated(std::move(piece), min, max);
    }
  }

  Piece repeated(Piece p, int min, int max) {
    Piece out;
    const int count = std::max({min, max, 1});
    out.product = p.product * count;
    if (out.product > kMaxRepetitions) {
      fail(fmt::format("nested repetitions that multiply to more than {}", kMaxRepetitions));
    }
    out.node = builder_.repeat(p.node, min, max);
    out.length = {scale_length(p.length.min, min), scale_length(p.length.max, max)};
    if (p.chars && p.min == 1 && p.max == 1) {
      out.chars = std::move(p.chars);
      out.min = min;
      out.max = max;
    }
    return out;
  }

  CharSet bracket() {
    const bool negated = take('^');
    CharSet set;
    for (bool first = true; first || !at(']'); first = false) {
      if (!more()) fail("a [ without its ]");
      if (first && at(']')) fail("an empty class");
      std::optional<uint32_t> low = member(set);
      if (!at('-') || pos_ + 1 >= text_.size() || text_[pos_ + 1] == ']') {
        if (low) set.add(*low);
        continue;
      }
      ++pos_;
      CharSet unused;
      const std::optional<uint32_t> high = member(unused);
      if (!low || !high) fail("a range whose end is a class");
      if (*high < *low) fail("a range whose end is below its beginning");
      set.add(*low, *high);
    }
    ++pos_;
    return negated ? set.complement() : set;
  }

  // One character of a bracket, or nothing when it was a class, which went into `set`.
  std::optional<uint32_t> member(CharSet& set) {
    if (at('[') && pos_ + 1 < text_.size() && text_[pos_ + 1] == ':') refuse("a POSIX class");
    if (!take('\\')) return next_char();
    return escape(set, /*in_class=*/true);
  }

  uint32_t hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const uint32_t c = next_char();
      const int digit = c >= '0' && c <= '9'   ? static_cast<int>(c - '0')
                        : c >= 'a' && c <= 'f' ? static_cast<int>(c - 'a') + 10
                        : c >= 'A' && c <= 'F' ? static_cast<int>(c - 'A') + 10
                                               : -1;
      if (digit < 0) fail("not a hexadecimal digit");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    return value;
  }

  uint32_t unicode_escape() {
    uint32_t value = 0;
    if (take('{')) {
      for (int i = 0; !at('}'); ++i) {
        if (i == 6) fail("a \\u{...} with more than six digits");
        value = value * 16 + hex(1);
      }
      ++pos_;
    } else {
      value = hex(4);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) fail("not a character");
    return value;
  }

  static void add_class(char kind, CharSet& set) {
    CharSet out;
    const bool negated = kind >= 'A' && kind <= 'Z';
    const char lower = negated ? static_cast<char>(kind + 32) : kind;
    if (lower == 'd' || lower == 'w') out.add('0', '9');
    if (lower == 'w') {
      out.add('a', 'z');
      out.add('A', 'Z');
      out.add('_');
    }
    if (lower == 's') {
      out.add(9, 13);
      out.add(' ');
      if (negated) {  // what anybody takes for white space
        for (const uint32_t c : {0x85u, 0xA0u, 0x1680u, 0x2028u, 0x2029u, 0x202Fu, 0x205Fu, 0x3000u, 0xFEFFu})
          out.add(c);
        out.add(0x1C, 0x1F);
        out.add(0x2000, 0x200A);
      }
    }
    set.add(negated ? out.complement() : out);
  }

  // After a backslash. Adds to `set`; returns the character when it was one.
  std::optional<uint32_t> escape(CharSet& set, bool in_class) {
    const uint32_t c = next_char();
    const auto one = [&](uint32_t value) {
      if (!in_class) set.add(value);
      return value;
    };
    switch (c) {
      case 'd':
      case 'D':
      case 'w':
      case 'W':
      case 's':
      case 'S':
        add_class(static_cast<char>(c), set);
        return std::nullopt;
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(hex(2));
      case 'u':
        return one(unicode_escape());
      case 'b':
        if (in_class) return one('\b');
        break;
      default:
        break;
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter || (c >= '0' && c <= '9')) {
      refuse(fmt::format("\\{}{}", static_cast<char>(c), !letter ? " (a back reference or an octal number)" : ""));
    }
    return one(c);
  }

  GrammarBuilder& builder_;
  std::string_view text_;
  const CharSpelling spelling_;
  const std::string& path_;
  size_t pos_ = 0;
};

bool within(const LengthRange& inner, const LengthRange& outer) {
  return inner.min >= outer.min && (outer.max < 0 || (inner.max >= 0 && inner.max <= outer.max));
}

// Between anchors: the texts of `piece` whose length is within `length`.
NodeId fit(GrammarBuilder& builder, const Piece& piece, const LengthRange& length, const CharSpelling& spelling,
           const std::string& path) {
  if (within(piece.length, length)) return piece.node;
  if (!piece.chars) {
    throw GrammarError(path, true,
                       "a pattern together with minLength or maxLength that do not follow from it is not "
                       "supported, unless it is one repeated class between ^ and $");
  }
  const int64_t low = std::max<int64_t>(piece.min, length.min);
  const int64_t high = piece.max < 0    ? length.max
                       : length.max < 0 ? piece.max
                                        : std::min<int64_t>(piece.max, length.max);
  if (high >= 0 && high < low) return builder.fail();
  return builder.repeat(char_node(builder, *piece.chars, spelling), static_cast<int>(low), static_cast<int>(high));
}

}  // namespace

NodeId regex_node(GrammarBuilder& builder, std::string_view pattern, const std::string& path) {
  std::vector<NodeId> options;
  for (const Anchored& a : Parser(builder, pattern, CharSpelling{}, path).parse()) options.push_back(a.piece.node);
  return builder.alt(options);
}

NodeId regex_in_string(GrammarBuilder& builder, std::string_view pattern, LengthRange length,
                       const CharSpelling& spelling, const std::string& path) {
  CharSet all;
  all.add(1, 0x10FFFF);
  const NodeId anything = builder.repeat(char_node(builder, all, spelling), 0, kNoLimit);
  std::vector<NodeId> options;
  for (Anchored& a : Parser(builder, pattern, spelling, path).parse()) {
    if (!a.begin || !a.end) {
      a.piece.length.max = kNoLimit;
      a.piece.chars.reset();
    }
    const NodeId body = fit(builder, a.piece, length, spelling, path);
    options.push_back(builder.seq({a.begin ? builder.empty() : anything, body, a.end ? builder.empty() : anything}));
  }
  return builder.alt(options);
}

}  // namespace carpool
