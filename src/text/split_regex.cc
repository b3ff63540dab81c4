// Translation, compilation and the match loop; see split_regex.h.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split_regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include "base/error.h"

namespace carpool {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
// A backtracking step per byte of a long run is normal, so the limit is well above the longest text worth splitting.
constexpr uint32_t kMaxSteps = 20'000'000;
constexpr uint32_t kMaxHeapKib = 64 * 1024;

// White_Space of Unicode, as items of a character class, and everything else.
constexpr std::string_view kSpaceItems =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNonSpaceItems =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::kMalformed, fmt::format("{}: {}", where, what));
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string run() {
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == '\\') {
        escape_sequence();
      } else if (in_class_) {
        class_character(c);
      } else {
        plain_character(c);
      }
    }
    return std::move(out_);
  }

 private:
  bool at(std::string_view text) const { return in_.substr(pos_).starts_with(text); }
  void copy(size_t n) { out_ += in_.substr(pos_, n), pos_ += std::min(n, in_.size() - pos_); }
  [[noreturn]] void refuse(std::string_view what) const {
    fail(where_, fmt::format("the expression uses {} at byte {}, which carpool does not support", what, pos_));
  }

  void escape_sequence() {
    if (pos_ + 1 == in_.size()) fail(where_, "the expression ends in a backslash");
    const char c = in_[pos_ + 1];
    if (c == 's' || c == 'S') {
      const std::string_view items = c == 's' ? kSpaceItems : kNonSpaceItems;
      out_ += in_class_ ? std::string(items) : fmt::format("[{}]", items);
      pos_ += 2;
    } else if (c == 'u') {
      out_ += fmt::format("\\x{{{}}}", in_.substr(pos_ + 2, 4));
      pos_ += std::min<size_t>(6, in_.size() - pos_);
    } else if (std::string_view("dDpPrntfx").find(c) != std::string_view::npos ||
               !std::isalnum(static_cast<unsigned char>(c))) {
      const size_t close = at("\\p{") || at("\\P{") || at("\\x{") ? in_.find('}', pos_) : std::string_view::npos;
      if (close != std::string_view::npos && c != 'x' && close - pos_ > 5) {
        script(close);
      } else {
        copy(close == std::string_view::npos ? 2 : close + 1 - pos_);
      }
    } else {
      refuse(fmt::format("\\{}", c));
    }
    class_start_ = false;
  }

  // A property of over two letters is a script: Oniguruma's are those that a character belongs to, while PCRE2 without
  // "sc:" also takes the ones that merely use it.
  void script(size_t close) {
    copy(3);
    if (at("^")) copy(1);
    out_ += "sc:";
    copy(close + 1 - pos_);
  }

  void class_character(char c) {
    if (c == '[') refuse("a class inside a class");
    if (at("&&")) refuse("an intersection of classes (&&)");
    if (c == ']' && !class_start_) in_class_ = false;
    class_start_ = false;
    copy(1);
  }

  void plain_character(char c) {
    if (c == '[') {
      in_class_ = class_start_ = true;
      copy(at("[^") ? 2 : 1);
      return;
    }
    if (at("(*")) refuse("\"(*\"");
    if (at("(?")) check_group();
    if (at("}+")) refuse("a counted repeat followed by \"+\"");
    if (at("{,")) refuse("a repeat without a lower bound");
    copy(1);
  }

  // Of the inline options only i means the same, and only where its scope is explicit: Ruby ends the scope of a bare
  // (?i) at the group and lets it take in the alternatives that follow.
  void check_group() const {
    size_t end = pos_ + 2;
    while (end < in_.size() && (in_[end] == 'i' || in_[end] == '-')) ++end;
    const char next = end < in_.size() ? in_[end] : '\0';
    const bool has_options = end > pos_ + 2;
    const bool known = has_options
                           ? next == ':' || (next == ')' && pos_ == 0)
                           : std::string_view(":=!>").find(next) != std::string_view::npos || at("(?<=") || at("(?<!");
    if (!known) refuse(fmt::format("\"{}\"", escape(in_.substr(pos_, end + 1 - pos_))));
  }

  std::string_view in_;
  const std::string& where_;
  std::string out_;
  size_t pos_ = 0;
  bool in_class_ = false;
  bool class_start_ = false;
};

}  // namespace

std::string translate(std::string_view pattern, const std::string& where) { return Translator(pattern, where).run(); }

SplitRegex SplitRegex::from_pattern(std::string_view pattern, const std::string& where) {
  if (pattern.empty()) fail(where, "the expression is empty");
  if (pattern.size() > kMaxPatternBytes) fail(where, fmt::format("the expression is over {} bytes", kMaxPatternBytes));
  // Oniguruma's ^ and $ always match at line ends.
  return SplitRegex(translate(pattern, where), PCRE2_MULTILINE, where);
}

SplitRegex SplitRegex::from_literal(std::string_view text, const std::string& where) {
  if (text.empty()) fail(where, "the text to split at is empty");
  if (text.size() > kMaxPatternBytes)
    fail(where, fmt::format("the text to split at is over {} bytes", kMaxPatternBytes));
  return SplitRegex(text, PCRE2_LITERAL, where);
}

SplitRegex::SplitRegex(std::string_view pattern, unsigned options, std::string where) : where_(std::move(where)) {
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  const uint32_t base = options & PCRE2_LITERAL ? PCRE2_UTF : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), base | options, &error,
                                   &offset, context.get());
  if (!code) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    fail(where_, fmt::format("the expression does not compile: {}", reinterpret_cast<const char*>(message)));
  }
  code_ =
      std::shared_ptr<const pcre2_code>(code, [](const pcre2_code* p) { pcre2_code_free(const_cast<pcre2_code*>(p)); });
  // Without machine code (hardened kernels forbid it) the interpreter gives the same matches, slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

struct SplitRegex::Search::State {
  explicit State(const SplitRegex& r)
      : regex(r), data(pcre2_match_data_create(1, nullptr)), context(pcre2_match_context_create(nullptr)) {
    if (!data || !context) throw Error(ErrorKind::kNoMemory, "no memory to match a split expression");
    pcre2_set_match_limit(context, kMaxSteps);
    pcre2_set_heap_limit(context, kMaxHeapKib);
  }
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const SplitRegex& regex;
  pcre2_match_data* data;
  pcre2_match_context* context;
  std::string_view text;
  size_t from = 0;
  size_t last_end = std::string_view::npos;  // end of the previous match
};

SplitRegex::Search::Search(const SplitRegex& regex) : state_(std::make_unique<State>(regex)) {}
SplitRegex::Search::~Search() = default;

void SplitRegex::Search::start(std::string_view text) {
  state_->text = text;
  state_->from = 0;
  state_->last_end = std::string_view::npos;
}

bool SplitRegex::Search::next(size_t& begin, size_t& end) {
  State& s = *state_;
  while (s.from <= s.text.size()) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(s.text.data());
    const auto match = [&](uint32_t options) {
      return pcre2_match(s.regex.code_.get(), subject, s.text.size(), s.from, PCRE2_NO_UTF_CHECK | options, s.data,
                         s.context);
    };
    int rc = match(0);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match(PCRE2_NO_JIT);  // the interpreter keeps its frames on the heap
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      fail(s.regex.where_, "the expression needs too many steps or too much memory on this text");
    }
    const size_t* found = pcre2_get_ovector_pointer(s.data);
    if (found[1] < found[0]) fail(s.regex.where_, "the expression gives a match that ends before it begins");
    begin = found[0], end = found[1];
    const bool repeated_empty = begin == end && begin == s.last_end;
    s.from = end;
    if (begin == end) {  // move on by one whole character
      do ++s.from;
      while (s.from < s.text.size() && (static_cast<unsigned char>(s.text[s.from]) & 0xC0) == 0x80);
    }
    s.last_end = end;
    if (!repeated_empty) return true;
  }
  return false;
}

}  // namespace carpool
