// Loading and matching; see added_tokens.h.
#include "text/added_tokens.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace carpool {
namespace {

constexpr size_t kMaxContentBytes = 512;  // bounds the work of one position of the text

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return c == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

// What \w matches: letters, marks, decimal and letter numbers, connectors and joiners.
bool is_word(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9);
  }
}

// The character that ends at `end` > 0; sets `begin` to where it starts.
char32_t character_before(std::string_view text, size_t end, size_t& begin) {
  begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  size_t pos = begin;
  return read_code_point(text, pos);
}

size_t spaces_begin(std::string_view text, size_t end, size_t limit) {
  size_t begin = 0;
  while (end > limit && is_space(character_before(text, end, begin))) end = begin;
  return std::max(end, limit);
}

size_t spaces_end(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    size_t next = pos;
    if (!is_space(read_code_point(text, next))) break;
    pos = next;
  }
  return pos;
}

bool is_whole_word(std::string_view text, size_t begin, size_t end) {
  size_t unused = 0, pos = end;
  return (begin == 0 || !is_word(character_before(text, begin, unused))) &&
         (end == text.size() || !is_word(read_code_point(text, pos)));
}

}  // namespace

std::vector<AddedToken> load_added_tokens(const JsonObject& root, int max_id) {
  std::vector<AddedToken> tokens;
  if (!root.has("added_tokens")) return tokens;
  const json::array& list = root.array("added_tokens");
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonObject object(list[i], fmt::format("{}: \"added_tokens\"[{}]", root.where(), i));
    AddedToken token;
    token.id = static_cast<int>(object.integer("id", 0, max_id));
    token.content = object.string("content");
    if (token.content.empty() || token.content.size() > kMaxContentBytes) {
      object.fail("content", fmt::format("must be 1 to {} bytes long", kMaxContentBytes));
    }
    token.special = object.boolean_or("special", false);
    token.lstrip = object.boolean_or("lstrip", false);
    token.rstrip = object.boolean_or("rstrip", false);
    token.single_word = object.boolean_or("single_word", false);
    token.normalized = object.boolean_or("normalized", !token.special);
    token.control = token.special || std::any_of(token.content.begin(), token.content.end(), [](char c) {
                      return c > ' ' && c < 127 && !std::isalnum(static_cast<unsigned char>(c));
                    });
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
  size_t at = 0;
  for (size_t b = 0; b <= 256; ++b) {
    while (at < tokens_.size() && static_cast<unsigned char>(tokens_[at].content[0]) < b) ++at;
    first_byte_[b] = at;
  }
}

// The longest allowed token at `pos`. `trusted_end`: control tokens may reach up to here, if `trusted`.
const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t pos, bool trusted,
                                                size_t trusted_end) const {
  const auto lead = static_cast<unsigned char>(text[pos]);
  size_t low = first_byte_[lead], high = first_byte_[lead + 1u];
  const AddedToken* best = nullptr;
  // Narrows the sorted range of candidates byte by byte; a candidate that ends here sorts first in its range.
  for (size_t length = 1; low < high; ++length) {
    const AddedToken& first = tokens_[low];
    if (first.content.size() == length) {
      if (!first.control || (trusted && pos + length <= trusted_end)) best = &first;
      ++low;
    }
    if (low == high || pos + length == text.size()) break;
    const auto next = static_cast<unsigned char>(text[pos + length]);
    const auto byte_at = [&](const AddedToken& t) { return static_cast<unsigned char>(t.content[length]); };
    const auto begin = tokens_.begin() + static_cast<ptrdiff_t>(low),
               end = tokens_.begin() + static_cast<ptrdiff_t>(high);
    const auto from = std::partition_point(begin, end, [&](const AddedToken& t) { return byte_at(t) < next; });
    const auto to = std::partition_point(from, end, [&](const AddedToken& t) { return byte_at(t) == next; });
    low = static_cast<size_t>(from - tokens_.begin()), high = static_cast<size_t>(to - tokens_.begin());
  }
  return best;
}

void AddedTokenMatcher::cut(std::string_view text, std::span<const ByteRange> trusted,
                            std::vector<AddedMatch>& out) const {
  size_t done = 0;  // everything before is in `out`
  size_t range = 0;
  for (size_t pos = 0; pos < text.size() && !tokens_.empty();) {
    while (range < trusted.size() && trusted[range].end <= pos) ++range;
    const bool inside = range < trusted.size() && trusted[range].begin <= pos;
    const AddedToken* token = longest_at(text, pos, inside, inside ? trusted[range].end : 0);
    if (!token) {
      ++pos;
      continue;
    }
    const size_t end = pos + token->content.size();
    const bool rejected = token->single_word && !is_whole_word(text, pos, end);
    if (!rejected) {
      const size_t from = token->lstrip ? spaces_begin(text, pos, done) : std::max(pos, done);
      const size_t to = token->rstrip ? spaces_end(text, end) : end;
      if (from > done) out.push_back({-1, {done, from}});
      out.push_back({token->id, {from, to}});
      done = to;
    }
    pos = std::max(end, done);
  }
  if (done < text.size()) out.push_back({-1, {done, text.size()}});
}

}  // namespace carpool
