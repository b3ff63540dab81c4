// See json_number.h. A number is its sign and its magnitude; magnitudes are compared digit by digit, with what is still
// equal to a bound as the state.
#include "grammar/json_number.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace carpool {
namespace {

constexpr int kFreeIntegerDigits = 18, kFreeDigits = 15, kMaxSide = 30;

// Bounds of a magnitude; `max` may be absent.
struct Magnitudes {
  Decimal min;
  std::optional<Decimal> max;
  bool open_min = false, open_max = false;
};

unsigned char digit(int d) { return static_cast<unsigned char>('0' + d); }
NodeId digits(GrammarBuilder& b, int low, int high) { return low > high ? b.fail() : b.bytes(digit(low), digit(high)); }

int compare(const Decimal& a, const Decimal& b) {  // of magnitudes
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int c = a.whole.compare(b.whole); c != 0) return c;
  return a.fraction.compare(b.fraction);
}

// The rest of a fraction after `at` digits. `low` and `high`: the bounds that all digits so far were equal to, null
// once they are passed. `started`: there is a digit already, so it may end here.
NodeId fraction_from(GrammarBuilder& b, const Decimal* low, bool open_low, const Decimal* high, bool open_high,
                     size_t at) {
  const int room = kMaxSide - static_cast<int>(at);
  if (!low && !high) return b.repeat(digits(b, 0, 9), at == 0 ? 1 : 0, std::min(room, kFreeDigits));
  const size_t n_low = low ? low->fraction.size() : 0, n_high = high ? high->fraction.size() : 0;
  // What is left of a bound is zeros: equal to it for good, unless another digit leads away.
  const bool low_is_here = low && at >= n_low, high_is_here = high && at >= n_high;
  std::vector<NodeId> options;
  const bool end_ok = (!low || (low_is_here && !open_low)) && (!high || !high_is_here || !open_high);
  if (high_is_here && (!low || low_is_here)) {  // nothing but zeros may follow
    return end_ok ? b.repeat(digits(b, 0, 0), at == 0 ? 1 : 0, std::min(room, kFreeDigits)) : b.fail();
  }
  if (end_ok && at > 0) options.push_back(b.empty());
  if (room == 0) return b.alt(options);
  const int low_digit = !low ? 0 : low_is_here ? 0 : low->fraction[at] - '0';
  const int high_digit = !high ? 9 : high_is_here ? 0 : high->fraction[at] - '0';
  for (int d = low_digit; d <= high_digit;) {
    const Decimal* next_low = low && d == low_digit ? low : nullptr;
    const Decimal* next_high = high && d == high_digit ? high : nullptr;
    int last = d;
    if (!next_low && !next_high) last = high ? high_digit - 1 : high_digit;
    if (last < d) break;
    options.push_back(b.seq({digits(b, d, last), fraction_from(b, next_low, open_low, next_high, open_high, at + 1)}));
    d = last + 1;
  }
  return b.alt(options);
}

// What may follow a whole part that is equal to those bounds that are not null: nothing or a fraction.
NodeId fraction(GrammarBuilder& b, const Decimal* low, bool open_low, const Decimal* high, bool open_high) {
  const bool none_ok =
      (!low || (low->fraction.empty() && !open_low)) && (!high || !high->fraction.empty() || !open_high);
  if (low && low->fraction.empty() && !open_low) low = nullptr;  // any fraction is above it
  const NodeId some = b.seq({b.literal("."), fraction_from(b, low, open_low, high, open_high, 0)});
  return b.alt({none_ok ? b.empty() : b.fail(), some});
}

// What follows the whole part. `fractions`: else integers alone.
NodeId tail(GrammarBuilder& b, const Magnitudes& m, bool equal_low, bool equal_high, bool fractions) {
  const Decimal* low = equal_low ? &m.min : nullptr;
  const Decimal* high = equal_high && m.max ? &*m.max : nullptr;
  if (fractions) return fraction(b, low, m.open_min, high, m.open_max);
  const bool ok = (!low || (low->fraction.empty() && !m.open_min)) && (!high || !high->fraction.empty() || !m.open_max);
  return ok ? b.empty() : b.fail();
}

// Whole parts of `length` digits from digit `at` on, between those of the bounds that were equal so far.
NodeId whole_from(GrammarBuilder& b, const Magnitudes& m, const std::string& low, const std::string& high, size_t at,
                  bool equal_low, bool equal_high, bool fractions) {
  const bool is_min = low == m.min.whole, is_max = m.max && high == m.max->whole;
  if (at == low.size()) return tail(b, m, equal_low && is_min, equal_high && is_max, fractions);
  if (!equal_low && !equal_high) {
    const int left = static_cast<int>(low.size() - at);
    return b.seq({b.repeat(digits(b, 0, 9), left, left), tail(b, m, false, false, fractions)});
  }
  const int low_digit = equal_low ? low[at] - '0' : 0, high_digit = equal_high ? high[at] - '0' : 9;
  std::vector<NodeId> options;
  for (int d = low_digit; d <= high_digit;) {
    const bool next_low = equal_low && d == low_digit, next_high = equal_high && d == high_digit;
    int last = d;
    if (!next_low && !next_high) last = equal_high ? high_digit - 1 : high_digit;
    options.push_back(b.seq({digits(b, d, last), whole_from(b, m, low, high, at + 1, next_low, next_high, fractions)}));
    d = last + 1;
  }
  return b.alt(options);
}

// Magnitudes within bounds, as their digits.
NodeId magnitude(GrammarBuilder& b, const Magnitudes& m, bool fractions) {
  if (m.max && compare(m.min, *m.max) > 0) return b.fail();
  const size_t most = m.max ? m.max->whole.size()
                            : std::max<size_t>(m.min.whole.size() + 1, fractions ? kFreeDigits : kFreeIntegerDigits);
  std::vector<NodeId> options;
  int first_free = 0, last_free = 0;  // counts of digits that lie between those of the bounds
  for (size_t n = m.min.whole.size(); n <= most; ++n) {
    const bool at_min = n == m.min.whole.size(), at_max = m.max && n == m.max->whole.size();
    if (!at_min && !at_max) {
      if (first_free == 0) first_free = static_cast<int>(n);
      last_free = static_cast<int>(n);
      continue;
    }
    const std::string low = at_min ? m.min.whole : "1" + std::string(n - 1, '0');
    const std::string high = at_max ? m.max->whole : std::string(n, '9');
    options.push_back(whole_from(b, m, low, high, 0, true, true, fractions));
  }
  if (first_free > 0) {
    options.push_back(b.seq({digits(b, 1, 9), b.repeat(digits(b, 0, 9), first_free - 1, last_free - 1),
                             tail(b, m, false, false, fractions)}));
  }
  return b.alt(options);
}

Decimal magnitude_of(Decimal d) {
  d.negative = false;
  return d;
}

NodeId bounded(GrammarBuilder& b, const NumberRange& range, bool fractions) {
  std::vector<NodeId> options;
  const bool max_negative = range.max && range.max->negative, min_negative = !range.min || range.min->negative;
  if (!max_negative) {  // numbers from 0 on
    Magnitudes m;
    if (range.min && !range.min->negative) m.min = *range.min, m.open_min = range.open_min;
    m.max = range.max;
    m.open_max = range.open_max;
    options.push_back(magnitude(b, m, fractions));
  }
  if (min_negative) {
    Magnitudes m;
    if (max_negative) {
      m.min = magnitude_of(*range.max);
      m.open_min = range.open_max;
    } else {
      m.open_min = true;  // -0 is written 0
    }
    if (range.min) m.max = magnitude_of(*range.min), m.open_max = range.open_min;
    options.push_back(b.seq({b.literal("-"), magnitude(b, m, fractions)}));
  }
  return b.alt(options);
}

}  // namespace

std::optional<Decimal> read_decimal(std::string_view text) {
  Decimal out;
  if (text.starts_with('-')) {
    out.negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view power = text.substr(e + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    const auto parsed = std::from_chars(power.data(), power.data() + power.size(), exponent);
    if (parsed.ec != std::errc() || parsed.ptr != power.data() + power.size()) return std::nullopt;
    text = text.substr(0, e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string all(text.substr(0, point));
  int whole = static_cast<int>(all.size());
  if (point < text.size()) all += text.substr(point + 1);
  if (all.empty() || all.find_first_not_of("0123456789") != std::string::npos || std::abs(exponent) > 400) {
    return std::nullopt;
  }
  whole += exponent;
  if (whole < 0) all.insert(0, static_cast<size_t>(-whole), '0'), whole = 0;
  if (whole > static_cast<int>(all.size())) all.append(static_cast<size_t>(whole) - all.size(), '0');
  out.whole = all.substr(0, static_cast<size_t>(whole));
  out.fraction = all.substr(static_cast<size_t>(whole));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  if (out.whole.size() > kMaxSide || out.fraction.size() >= kMaxSide - 1) return std::nullopt;
  if (out.whole == "0" && out.fraction.empty()) out.negative = false;
  return out;
}

NodeId integer_node(GrammarBuilder& b, const NumberRange& range) { return bounded(b, range, /*fractions=*/false); }

NodeId number_node(GrammarBuilder& b, const NumberRange& range) {
  if (range.min || range.max) return bounded(b, range, /*fractions=*/true);
  const NodeId whole = b.alt({b.literal("0"), b.seq({digits(b, 1, 9), b.repeat(digits(b, 0, 9), 0, kFreeDigits - 1)})});
  const NodeId fraction = b.seq({b.literal("."), b.repeat(digits(b, 0, 9), 1, kFreeDigits)});
  ByteSet e, sign;
  e.set('e').set('E');
  sign.set('+').set('-');
  const NodeId exponent = b.seq({b.bytes(e), b.optional(b.bytes(sign)), b.repeat(digits(b, 0, 9), 1, 2)});
  return b.seq({b.optional(b.literal("-")), whole, b.optional(fraction), b.optional(exponent)});
}

}  // namespace carpool
