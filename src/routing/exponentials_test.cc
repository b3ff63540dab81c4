// Every set of exponentials that this processor runs gives the bits of the first one, and the sums are those of the
// row.
#include "routing/exponentials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "routing/cases_test_util.h"

namespace carpool {
namespace {

using test::below;
using test::chance;
using test::kInf;
using test::kNan;
using test::Rng;

std::vector<uint32_t> bits(const std::vector<float>& row) {
  std::vector<uint32_t> out;
  for (const float x : row) out.push_back(std::bit_cast<uint32_t>(x));
  return out;
}

// Router logits, now and then of sizes and kinds that no router gives. Never +inf, which softmax_terms need not take.
std::vector<float> random_row(Rng& rng, size_t n) {
  const float specials[] = {kNan, -kInf, -0.0f, 0.0f, 127.9f, -127.9f, 128, -128, -1e30f, -1e-40f, 3e38f, -3e38f};
  const bool odd = chance(rng, 30);
  std::vector<float> row(n);
  for (float& x : row) {
    x = static_cast<float>(below(rng, 1 << 24)) / (1 << 19) - 16;
    if (odd && chance(rng, 20)) x = specials[below(rng, 12)];
    if (odd && chance(rng, 20)) x *= 10;
  }
  return row;
}

TEST(Exponentials, EverySetHasTheBitsOfTheFirst) {
  const std::span<const ExponentialSet> sets = exponential_sets();
  ASSERT_STREQ(sets.front().isa, "baseline");
  Rng rng(5);
  for (int i = 0; i < 4000; ++i) {
    const size_t n = chance(rng, 20) ? 256 : 1 + static_cast<size_t>(below(rng, 70));  // whole vectors and their ends
    const std::vector<float> logits = random_row(rng, n);
    float top = 0;
    for (const float x : logits) top = std::max(top, x);
    std::vector<float> want_sigmoid(n), want_terms(n);
    sets.front().sigmoid(logits, want_sigmoid);
    const float want_sum = sets.front().softmax_terms(logits, top, want_terms);
    for (const ExponentialSet& set : sets.subspan(1)) {
      std::vector<float> got(n, -77);
      set.sigmoid(logits, got);
      ASSERT_EQ(bits(got), bits(want_sigmoid)) << set.isa << ", case " << i;
      std::fill(got.begin(), got.end(), -77.0f);
      const float sum = set.softmax_terms(logits, top, got);
      ASSERT_EQ(bits(got), bits(want_terms)) << set.isa << ", case " << i;
      ASSERT_EQ(std::bit_cast<uint32_t>(sum), std::bit_cast<uint32_t>(want_sum)) << set.isa << ", case " << i;
    }
  }
}

TEST(Exponentials, TheyAreTheRoundedRealNumbers) {
  for (const ExponentialSet& set : exponential_sets()) {
    Rng rng(6);
    for (int i = 0; i < 400; ++i) {
      const std::vector<float> logits = random_row(rng, 1 + static_cast<size_t>(below(rng, 70)));
      float top = 0;
      for (const float x : logits) top = std::max(top, x);
      std::vector<float> sigmoid(logits.size()), terms(logits.size());
      set.sigmoid(logits, sigmoid);
      const float sum = set.softmax_terms(logits, top, terms);
      long double total = 0;
      for (size_t e = 0; e < logits.size(); ++e) {
        const long double x = logits[e];
        if (std::isnan(logits[e])) {
          ASSERT_EQ(sigmoid[e], 0);
          ASSERT_EQ(terms[e], 0);
          continue;
        }
        const float want = std::abs(x) < 128 ? static_cast<float>(1 / (1 + std::exp(-x))) : (x > 0 ? 1.0f : 0.0f);
        ASSERT_EQ(sigmoid[e], want) << logits[e];
        const long double below_top = logits[e] - top;  // in float32, as a softmax takes it
        ASSERT_EQ(terms[e], below_top > -128 ? static_cast<float>(std::exp(below_top)) : 0.0f) << logits[e];
        total += terms[e];
      }
      ASSERT_EQ(sum, static_cast<float>(total));
    }
  }
}

}  // namespace
}  // namespace carpool
