// Encoders that search: never worse than rounding to the whole range of a block, and better on the
// values that weights have. The oracles are that rounding, written plainly in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tensor/format.h"

namespace carpool {
namespace {

double half(double value) { return f16_to_float(float_to_f16(static_cast<float>(value))); }

// Nearest multiple of `step` in [low, high] steps, or 0 where there is no step.
double nearest(double x, double step, double low, double high) {
  return step == 0 ? 0 : std::clamp(std::nearbyint(x / step), low, high);
}

double square(double x) { return x * x; }

// Squared error of a block of 256 whose kParts parts cover their own ranges in kCodes steps.
template <int kParts, int kCodes, int kScales>
double plain_affine(const float* x) {
  constexpr int kPart = 256 / kParts;
  double steps[kParts], offsets[kParts], largest_step = 0, largest_offset = 0, sum = 0;
  for (int p = 0; p < kParts; ++p) {
    const auto [low, high] = std::minmax_element(x + kPart * p, x + kPart * p + kPart);
    offsets[p] = std::max(-static_cast<double>(*low), 0.0);
    steps[p] = (*high + offsets[p]) / kCodes;
    largest_step = std::max(largest_step, steps[p]), largest_offset = std::max(largest_offset, offsets[p]);
  }
  const double d = half(largest_step / kScales), dmin = half(largest_offset / kScales);
  for (int p = 0; p < kParts; ++p) {
    const double step = d * nearest(steps[p], d, 0, kScales), offset = dmin * nearest(offsets[p], dmin, 0, kScales);
    for (int i = kPart * p; i < kPart * p + kPart; ++i)
      sum += square(step * nearest(x[i] + offset, step, 0, kCodes) - offset - x[i]);
  }
  return sum;
}

double extreme_of(const float* x, int n) {
  return *std::max_element(x, x + n, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

// Squared error of a block of 256 whose 16 parts cover their own ranges.
template <int kCodes, int kScales>
double plain_symmetric(const float* x) {
  double steps[16], extreme = 0, sum = 0;
  for (int p = 0; p < 16; ++p) {
    steps[p] = extreme_of(x + 16 * p, 16) / -kCodes;
    if (std::fabs(steps[p]) > std::fabs(extreme)) extreme = steps[p];
  }
  const double d = half(extreme / -kScales);
  for (int p = 0; p < 16; ++p) {
    const double step = d * nearest(steps[p], d, -kScales, kScales - 1);
    for (int i = 16 * p; i < 16 * p + 16; ++i) sum += square(step * nearest(x[i], step, -kCodes, kCodes - 1) - x[i]);
  }
  return sum;
}

// Squared error of `n` values whose scale makes the largest magnitude the level -127; parts of 32.
template <int n>
double plain_iq4(const float* x) {
  static constexpr double kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  double sum = 0;
  for (int p = 0; p < n / 32; ++p) {
    const double scale = half(extreme_of(x + 32 * p, 32) / -127);
    for (int i = 32 * p; i < 32 * p + 32; ++i) {
      double least = INFINITY;
      for (const double level : kLevels) least = std::min(least, square(scale * level - x[i]));
      sum += least;
    }
  }
  return sum;
}

// Squared error of 64 values in NVFP4 blocks whose largest value is a 6.
double plain_nvfp4(const float* x) {
  double sum = 0;
  for (int b = 0; b < 4; ++b) {
    const double scale = e4m3_to_float(float_to_e4m3(static_cast<float>(std::fabs(extreme_of(x + 16 * b, 16)) / 6)));
    for (int i = 16 * b; i < 16 * b + 16; ++i) {
      double least = square(x[i]);
      for (int code = 0; code < 16; ++code) {
        least = std::min(least, square(scale * e2m1_to_float(static_cast<uint8_t>(code)) - x[i]));
      }
      sum += least;
    }
  }
  return sum;
}

// `share`: what is left of the squared error of plain rounding, at most, on normally distributed values.
struct Searched {
  Format format;
  double (*plain)(const float*);
  double share;
};

class SearchedFormat : public testing::TestWithParam<Searched> {};

// Squared errors of the encoder and of plain rounding, summed over blocks that `draw` fills; the first of them is
// checked block by block.
template <class Draw>
void compare(const Searched& searched, double share, Draw draw) {
  const int n = info(searched.format).block_elements;
  std::vector<float> x(static_cast<size_t>(n)), out(x.size());
  std::vector<uint8_t> stored(static_cast<size_t>(info(searched.format).block_bytes));
  const WeightView view{.format = searched.format, .data = stored.data(), .rows = 1, .cols = n};
  double ours = 0, plain = 0;
  for (int block = 0; block < 200; ++block) {
    for (int i = 0; i < n; ++i) x[static_cast<size_t>(i)] = draw(i);
    encode_row(searched.format, x.data(), n, stored.data());
    decode_row(view, 0, out.data());
    double error = 0, size = 0;
    for (size_t i = 0; i < x.size(); ++i) error += square(out[i] - static_cast<double>(x[i])), size += square(x[i]);
    const double limit = searched.plain(x.data());
    // The encoder compares sums of float32, whose terms are rounded relative to the values.
    ASSERT_LE(error, limit * (1 + 1e-4) + size * 0x1p-40) << block;
    ours += error, plain += limit;
  }
  EXPECT_LE(ours, share * plain);
}

TEST_P(SearchedFormat, IsBetterThanPlainRoundingOnNormallyDistributedValues) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  compare(GetParam(), GetParam().share, [&](int) { return 20 * normal(random); });
}

TEST_P(SearchedFormat, IsNeverWorseThanPlainRoundingOnOtherValues) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(-1, 1);
  compare(GetParam(), 1, [&](int) { return uniform(random); });
  compare(GetParam(), 1, [&](int i) { return std::pow(10.0f, static_cast<float>(i / 16 % 4)) * uniform(random); });
  compare(GetParam(), 1, [&](int) { return std::pow(normal(random), 5.0f); });
  compare(GetParam(), 1, [&](int) { return 5 + uniform(random); });
  compare(GetParam(), 1, [&](int) { return std::nearbyint(3 * normal(random)); });
}

std::string name_of(const testing::TestParamInfo<Searched>& param) {
  return std::string(info(param.param.format).name);
}

INSTANTIATE_TEST_SUITE_P(All, SearchedFormat,
                         testing::Values(Searched{Format::kQ2_K, plain_affine<16, 3, 15>, 0.8},
                                         Searched{Format::kQ4_K, plain_affine<8, 15, 63>, 0.83},
                                         Searched{Format::kQ5_K, plain_affine<8, 31, 63>, 0.9},
                                         Searched{Format::kQ3_K, plain_symmetric<4, 32>, 0.88},
                                         Searched{Format::kQ6_K, plain_symmetric<32, 128>, 0.84},
                                         Searched{Format::kIQ4_NL, plain_iq4<32>, 0.9},
                                         Searched{Format::kNVFP4, plain_nvfp4, 0.77}),
                         name_of);

}  // namespace
}  // namespace carpool
