#include "measure/bench_routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "tensor/random_bits.h"

namespace carpool {
namespace {

constexpr int kMostExperts = 4096, kMostRows = 4096;

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw Error(ErrorKind::kConfig,
              fmt::format("routing \"{}\": {}; there are uniform, skewed, skewed:S and forced:EXPERTSxROWS,...",
                          escape(text, 60), why));
}

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size();
}

// A permutation of 0..n-1.
std::vector<int> shuffled(int n, RandomBits& bits) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[(bits.next() >> 32) * i >> 32]);
  return order;
}

}  // namespace

RoutingSource parse_routing(std::string_view text) {
  RoutingSource source;
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (text == "uniform") return source;
  if (name == "skewed") {
    source.skew = 1;
    if (text == "skewed") return source;
    if (!parse_number(rest, source.skew) || !(source.skew > 0 && source.skew <= 10)) {
      refuse(text, "the exponent must be above 0 and at most 10");
    }
    return source;
  }
  if (name != "forced") refuse(text, "unknown");
  while (true) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const size_t x = item.find('x');
    ForcedRouting f;
    if (x == std::string_view::npos || !parse_number(item.substr(0, x), f.experts) ||
        !parse_number(item.substr(x + 1), f.rows)) {
      refuse(text, fmt::format("\"{}\" is not EXPERTSxROWS", escape(item, 40)));
    }
    if (f.experts < 1 || f.experts > kMostExperts || f.rows < 1 || f.rows > kMostRows) {
      refuse(text, fmt::format("experts and rows must be 1 to {}", kMostRows));
    }
    source.forced.push_back(f);
    if (item.size() == rest.size()) return source;
    rest.remove_prefix(item.size() + 1);
  }
}

LogitSource::LogitSource(int n_experts, double skew, uint64_t seed) {
  RandomBits bits(seed);
  for (const int rank : shuffled(n_experts, bits)) {
    log_popularity_.push_back(static_cast<float>(-skew * std::log(rank + 1.0)));
  }
}

void LogitSource::draw(uint64_t step_seed, std::span<float> logits) const {
  RandomBits bits(step_seed);
  const size_t E = log_popularity_.size();
  for (size_t i = 0; i < logits.size(); ++i) {
    const double u = (static_cast<double>(bits.next() >> 12) + 0.5) * 0x1p-52;  // in (0, 1)
    logits[i] = log_popularity_[i % E] - static_cast<float>(std::log(-std::log(u)));
  }
}

int forced_tokens(const ForcedRouting& forced, int top_k) {
  return std::max(forced.rows, (forced.experts * forced.rows + top_k - 1) / top_k);
}

void force_selection(const ForcedRouting& forced, int n_experts, int top_k, uint64_t seed, Selection& out) {
  CARPOOL_CHECK(forced.experts <= n_experts);
  RandomBits bits(seed);
  const std::vector<int> order = shuffled(n_experts, bits);
  const int T = forced_tokens(forced, top_k), slots = forced.experts * forced.rows;
  out.start(T, top_k);
  // Slot s is row s % R of expert s / R and belongs to token s % T; R <= T keeps an expert's rows apart.
  for (int t = 0; t < T; ++t) {
    for (int s = t; s < slots; s += T) out.push(order[static_cast<size_t>(s / forced.rows)]);
    out.end_row(PlainReason::kApplied);
  }
}

}  // namespace carpool
