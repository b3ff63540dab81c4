// What every format of formats.def must satisfy: rounding within a bound derived from the format, panels that hold the
// bits of the rows, and random panels that are noise of the right size. Values against references of others:
// format_golden_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tensor/panels.h"

namespace carpool {
namespace {

class FormatContract : public testing::TestWithParam<Format> {
 protected:
  Format format() const { return GetParam(); }
  int64_t block() const { return info(format()).block_elements; }
};

std::vector<Format> all_formats() {
  std::vector<Format> out;
  for (int i = 0; i < kFormatCount; ++i) out.push_back(static_cast<Format>(i));
  return out;
}

std::string name_of(const testing::TestParamInfo<Format>& param) { return std::string(info(param.param).name); }

INSTANTIATE_TEST_SUITE_P(All, FormatContract, testing::ValuesIn(all_formats()), name_of);

// A row of `cols` values, encoded and decoded; nothing may be written past either end.
std::vector<float> there_and_back(Format format, const std::vector<float>& values) {
  const auto cols = static_cast<int64_t>(values.size());
  WeightView view{.format = format, .rows = 1, .cols = cols};
  std::vector<uint8_t> stored(view.row_bytes() + 8, 0xcd);
  encode_row(format, values.data(), cols, stored.data());
  view.data = stored.data();
  std::vector<float> out(values.size() + 1, 42.0f);
  decode_row(view, 0, out.data());
  for (size_t i = view.row_bytes(); i < stored.size(); ++i) EXPECT_EQ(stored[i], 0xcd) << "encoded past the row";
  EXPECT_EQ(out.back(), 42.0f) << "decoded past the row";
  out.pop_back();
  return out;
}

double largest_of(const float* x, int64_t n) {
  double out = 0;
  for (int64_t i = 0; i < n; ++i) out = std::max(out, std::fabs(static_cast<double>(x[i])));
  return out;
}

// Rounding a scale to half precision: relative to it, and absolute where halves are subnormal.
constexpr double kHalf = 0x1p-11, kTiny = 0x1p-25;

// Largest error of a value of a block of 256 when every part covers its own range in `codes` steps and step and offset
// are rounded to the nearest of `scales`: half a step, what the rounded step is off after all of them, what the offset
// is off.
double affine_bound(const float* x, int parts, int codes, int scales) {
  double range = 0, offset = 0;
  const int n = 256 / parts;
  for (int p = 0; p < parts; ++p) {
    const auto [low, high] = std::minmax_element(x + n * p, x + n * p + n);
    const double below = std::max(-static_cast<double>(*low), 0.0);
    range = std::max(range, static_cast<double>(*high) + below);
    offset = std::max(offset, below);
  }
  const double d = range / (codes * scales) * (1 + kHalf) + kTiny, dmin = offset / scales * (1 + kHalf) + kTiny;
  const double clamped = range * kHalf + codes * scales * kTiny + offset * kHalf + scales * kTiny;
  return (range / codes + d / 2) / 2 + codes * d / 2 + dmin / 2 + clamped;
}

// A bound of |decoded - x| for each value of a block, and for the formats whose encoder searches (it minimises the sum
// of squares, so that single values may be off by more) of the root mean square over the block.
double bound_of(Format format, const float* block, int64_t n, double x) {
  const double largest = largest_of(block, n), magnitude = std::fabs(x);
  switch (format) {
    case Format::kF32:
      return 0;
    case Format::kBF16:
      return magnitude * 0x1p-8 + 0x1p-134;
    case Format::kF16:
      return magnitude * 0x1p-11 + kTiny;
    case Format::kFP8:
      return magnitude * 0x1p-4 + 0x1p-10;
    case Format::kQ8_0:
      return largest / 127 * (0.5001 + 127 * kHalf) + 127 * kTiny;
    // The code 8 does not exist: the negative of the extreme is off by a whole step.
    case Format::kQ4_0:
      return largest / 8 * (1.0001 + 8 * kHalf) + 8 * kTiny;
    // The scale is above largest / 8 and at most largest / 4; 8 times the scale becomes 6 times.
    case Format::kMXFP4:
      return 2 * (largest / 4 + 0x1p-127);
    case Format::kNVFP4: {  // half of the widest gap, 4 to 6, or what lies beyond 6
      const double scale = e4m3_to_float(float_to_e4m3(static_cast<float>(largest / 6)));
      return 1.0001 * std::max(scale, largest - 6 * scale);
    }
    case Format::kQ4_K:
      return 1.0001 * affine_bound(block, 8, 15, 63);
    case Format::kQ5_K:
      return 1.0001 * affine_bound(block, 8, 31, 63);
    case Format::kQ2_K:
      return 1.0001 * affine_bound(block, 16, 3, 15);
    // Half a step of a range of at most twice the largest, and what the two halves are off; the minimum once more where
    // all values are the same.
    case Format::kQ4_1:
      return 2 * largest / 15 * (0.5001 + 15 * kHalf) + largest * kHalf + 16 * kTiny;
    case Format::kQ5_1:
      return 2 * largest / 31 * (0.5001 + 31 * kHalf) + largest * kHalf + 32 * kTiny;
    case Format::kQ5_0:
      return largest / 16 * (1.0001 + 16 * kHalf) + 16 * kTiny;
    // As Q6_K, with 4 steps and the rounded scale off by half of 1/32 of the largest.
    case Format::kQ3_K:
      return 1.0001 * (largest / 4 * (1 + 4.0 / 32 / 2 * 2 + 4 * kHalf) + 4 * 32 * kTiny);
    // The widest gap of the levels is 24 of 127; what the other end cannot reach is 14 of 127.
    case Format::kIQ4_NL:
      return largest / 127 * (14 + 127 * kHalf) + 127 * kTiny;
    // Scales of parts are rounded to the nearest of 32.
    case Format::kIQ4_XS:
      return largest / 127 * (14 + 127.0 / 64 + 127 * kHalf) + 127 * 32 * kTiny;
    // As Q4_0, with 8 bits of a scale; inverses of scales below 2^-127 are taken for 0.
    case Format::kINT4:
      return largest / 8 * (1.0001 + 8 * 0x1p-8) + 0x1p-123;
    // The zero point is rounded too: up to a step at the ends of a range of at most twice the largest.
    case Format::kINT4F:
      return 2 * largest / 15 * 1.0001 + 0x1p-123;
    case Format::kINT8:
      return largest / 127 * 0.5001 + 0x1p-120;
    // A step is largest / 32; 32 of them are a code too many; the rounded scale is off by half of 1/128 of the largest.
    case Format::kQ6_K:
      return 1.0001 * (largest / 32 * (1 + 0.125 + 32 * kHalf) + 32 * 128 * kTiny);
  }
  return 0;
}

bool searches(Format format) {
  switch (format) {
    case Format::kNVFP4:
    case Format::kQ2_K:
    case Format::kQ3_K:
    case Format::kQ4_K:
    case Format::kQ5_K:
    case Format::kQ6_K:
    case Format::kIQ4_NL:
    case Format::kIQ4_XS:
      return true;
    default:
      return false;
  }
}

// Rows of 512 values of many kinds, all within the range of every format.
struct Sample {
  std::string name;
  std::vector<float> values;
};

std::vector<Sample> samples() {
  constexpr int kCols = 512;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0, 1);
  const auto fill = [&](auto value) {
    std::vector<float> out(kCols);
    for (int i = 0; i < kCols; ++i) out[static_cast<size_t>(i)] = value(i);
    return out;
  };
  return {
      {"usual weights", fill([&](int) { return 0.05f * normal(random); })},
      {"large", fill([&](int) { return 60.0f * normal(random); })},
      {"heavy tails", fill([&](int) { return 0.02f * std::pow(normal(random), 3.0f); })},
      {"all positive", fill([&](int) { return 1 + uniform(random); })},
      {"all negative", fill([&](int) { return -3 - uniform(random); })},
      {"all the same", fill([&](int) { return -0.7f; })},
      {"zeros", fill([&](int) { return 0.0f; })},
      {"negative zeros", fill([&](int) { return -0.0f; })},
      {"subnormals", fill([&](int i) { return std::ldexp(static_cast<float>(i % 5 - 2), -146); })},
      {"tiny", fill([&](int) { return 1e-20f * normal(random); })},
      {"scales become subnormal halves", fill([&](int) { return 1e-5f * normal(random); })},
      {"one outlier", fill([&](int i) { return i == 77 ? -400.0f : 0.01f * normal(random); })},
      {"one value", fill([&](int i) { return i == 300 ? 3.25f : 0.0f; })},
      {"parts of very different size", fill([&](int i) { return std::ldexp(normal(random), i / 32 - 10); })},
  };
}

TEST_P(FormatContract, EncodingKeepsValuesWithinTheBoundOfTheFormat) {
  for (const Sample& sample : samples()) {
    const std::vector<float> out = there_and_back(format(), sample.values);
    for (size_t first = 0; first < out.size(); first += static_cast<size_t>(block())) {
      double squares = 0, bound = 0;
      for (size_t i = first; i < first + static_cast<size_t>(block()); ++i) {
        const double error = std::fabs(static_cast<double>(out[i]) - static_cast<double>(sample.values[i]));
        bound = bound_of(format(), sample.values.data() + first, block(), sample.values[i]);
        if (!searches(format())) {
          ASSERT_LE(error, bound) << sample.name << ": " << sample.values[i] << " became " << out[i];
        }
        squares += error * error;
      }
      if (format() == Format::kNVFP4) continue;  // four blocks of 16, see below
      ASSERT_LE(std::sqrt(squares / static_cast<double>(block())), bound * (1 + 1e-4))
          << sample.name << " at " << first;
    }
  }
}

TEST(Nvfp4, EncodingKeepsEveryBlockOf16WithinItsBound) {
  for (const Sample& sample : samples()) {
    const std::vector<float> out = there_and_back(Format::kNVFP4, sample.values);
    for (size_t first = 0; first < out.size(); first += 16) {
      double squares = 0;
      for (size_t i = first; i < first + 16; ++i)
        squares += std::pow(out[i] - static_cast<double>(sample.values[i]), 2);
      ASSERT_LE(std::sqrt(squares / 16), bound_of(Format::kNVFP4, sample.values.data() + first, 16, 0)) << sample.name;
    }
  }
}

TEST_P(FormatContract, ZerosStayZeros) {
  for (const float zero : {0.0f, -0.0f}) {
    for (const float v : there_and_back(format(), std::vector<float>(512, zero))) ASSERT_EQ(v, 0.0f);
  }
}

TEST_P(FormatContract, HugeValuesSaturateWhereAFormatHasAnEnd) {
  std::vector<float> values(512, 1.0f);
  for (size_t i = 0; i < values.size(); i += 16) values[i] = i % 32 ? 3e38f : -3e38f;
  for (const float huge : there_and_back(format(), values)) {
    if (format() == Format::kF16 || format() == Format::kBF16) {
      ASSERT_FALSE(std::isnan(huge));  // infinity is their way to say so
    } else {
      ASSERT_TRUE(std::isfinite(huge));
    }
  }
  values.assign(512, 3e38f);
  for (const float huge : there_and_back(format(), values)) ASSERT_GE(huge, 448.0f);
}

TEST_P(FormatContract, EncodedRowsDoNotDependOnTheirNeighbours) {
  const std::vector<float> row = samples()[0].values;
  const auto n = static_cast<size_t>(block());
  const std::vector<float> all = there_and_back(format(), row);
  for (size_t first = 0; first < row.size(); first += n) {
    const auto begin = static_cast<std::ptrdiff_t>(first);
    const std::vector<float> one(row.begin() + begin, row.begin() + begin + static_cast<std::ptrdiff_t>(n));
    const std::vector<float> alone = there_and_back(format(), one);
    ASSERT_EQ(std::memcmp(alone.data(), all.data() + first, n * sizeof(float)), 0) << first;
  }
}

// Where scales lie: in blocks, or in a tensor of their own.
enum class Apart { kNo, kYes, kZeros };

// A matrix of random bytes: every pattern is a value of its format, NaN and infinity among them.
struct Matrix {
  std::vector<uint8_t> data, scales, zeros;
  WeightView view;
};

// Bytes of the scales of a view whose grid is set.
size_t scale_bytes(const WeightView& v) {
  const auto blocks = [](int64_t n, int64_t block) { return (n + block - 1) / block; };
  if (v.format == Format::kNVFP4) return static_cast<size_t>(v.rows * v.cols / 16);
  if (v.format == Format::kMXFP4) return static_cast<size_t>(v.rows * v.cols / 32);
  const int64_t count = blocks(v.rows, v.grid.rows) * blocks(v.cols, v.grid.cols);
  return static_cast<size_t>(count * (v.grid.format == Format::kF32 ? 4 : 2));
}

Matrix random_matrix(Format format, int64_t rows, int64_t cols, Apart apart, uint32_t seed) {
  std::mt19937 random(seed);
  Matrix m;
  m.view = {.format = format, .rows = rows, .cols = cols, .scale = seed % 2 ? 1.0f : 0.37f};
  const auto fill = [&](std::vector<uint8_t>& bytes, size_t n) {
    for (size_t i = 0; i < n; ++i) bytes.push_back(static_cast<uint8_t>(random()));
  };
  if (apart != Apart::kNo) {
    constexpr Format kTypes[] = {Format::kF32, Format::kBF16, Format::kF16};
    if (format == Format::kINT4) m.view.grid = {Format::kBF16, 1, seed % 2 ? 32 : cols};
    if (format == Format::kINT4F || format == Format::kINT8) m.view.grid = {kTypes[seed % 3], 1, seed % 2 ? 32 : cols};
    if (format == Format::kFP8 && apart == Apart::kZeros) m.view.grid = {kTypes[seed % 3], 1, cols};  // by row
    fill(m.scales, scale_bytes(m.view));
    m.view.scales = m.scales.data();
    if (apart == Apart::kZeros && format != Format::kFP8) {
      const int64_t per_word = format == Format::kINT8 ? 4 : 8;
      fill(m.zeros, static_cast<size_t>((rows + per_word - 1) / per_word * (cols / m.view.grid.cols) * 4));
      m.view.zeros = m.zeros.data();
    }
  }
  for (size_t i = 0; i < m.view.bytes(); ++i) m.data.push_back(static_cast<uint8_t>(random()));
  m.view.data = m.data.data();
  return m;
}

struct Shape {
  int64_t rows, cols;
  Apart apart = Apart::kNo;
};

std::vector<Shape> shapes(Format format) {
  const int64_t n = info(format).block_elements;
  using enum Apart;
  std::vector<Shape> out = {{37, n}, {16, 3 * n}, {1, 2 * n}};
  if (n == 1) out.insert(out.end(), {{37, 5}, {20, 67}, {33, 300}});
  if (format == Format::kNVFP4) out.insert(out.end(), {{37, 48, kYes}, {5, 16, kYes}});
  if (format == Format::kMXFP4) out.insert(out.end(), {{37, 96, kYes}, {5, 32, kYes}});
  if (format == Format::kFP8) {
    out.insert(out.end(), {{150, 300, kYes}, {16, 128, kYes}, {5, 1, kYes}, {37, 300, kZeros}, {20, 5, kZeros}});
  }
  if (format == Format::kINT4) out.insert(out.end(), {{37, 96, kYes}, {5, 32, kYes}});
  if (format == Format::kINT4F || format == Format::kINT8) {
    out.insert(out.end(), {{37, 96, kYes}, {5, 32, kYes}, {37, 96, kZeros}, {20, 64, kZeros}, {33, 32, kZeros}});
  }
  return out;
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || __builtin_bit_cast(uint32_t, a) == __builtin_bit_cast(uint32_t, b);
}

// Panels of `view`, packed into memory that was full of other things.
std::vector<std::byte> packed(const WeightView& view, PanelView& panels) {
  panels = {.format = view.format, .rows = view.rows, .cols = view.cols, .scale = {view.scale, view.scale}};
  std::vector<std::byte> out(panels.bytes() + 8, std::byte{0xcd});
  panels.data = out.data();
  for (int64_t p = 0; p < panels.panels(); ++p) {
    code(view.format).pack_panel(view, p, out.data() + static_cast<size_t>(p) * panels.panel_bytes());
  }
  for (size_t i = panels.bytes(); i < out.size(); ++i) EXPECT_EQ(out[i], std::byte{0xcd}) << "packed past the panels";
  return out;
}

TEST_P(FormatContract, PanelsHoldTheBitsOfTheRows) {
  uint32_t seed = 1;
  for (const Shape& shape : shapes(format())) {
    for (int repeat = 0; repeat < 2; ++repeat, ++seed) {
      const Matrix m = random_matrix(format(), shape.rows, shape.cols, shape.apart, seed);
      PanelView panels;
      const std::vector<std::byte> bytes = packed(m.view, panels);
      std::vector<float> expected(static_cast<size_t>(shape.cols)), out(expected.size() + 1, 42.0f);
      for (int64_t r = 0; r < shape.rows; ++r) {
        decode_row(m.view, r, expected.data());
        unpack_row(panels, r, out.data());
        ASSERT_EQ(out.back(), 42.0f);
        for (size_t c = 0; c < expected.size(); ++c) {
          ASSERT_TRUE(same(out[c], expected[c])) << shape.rows << " x " << shape.cols << ", row " << r << " column "
                                                 << c << ": " << out[c] << ", expected " << expected[c];
        }
      }
    }
  }
}

// One row of `cols` columns whose data and scales are all the given byte.
void expect_all_nan(Format format, int64_t cols, bool scales_apart, uint8_t byte) {
  std::vector<uint8_t> data(static_cast<size_t>(cols), byte), scales(static_cast<size_t>(cols), byte);
  WeightView view{.format = format, .data = data.data(), .rows = 1, .cols = cols};
  if (scales_apart) view.scales = scales.data();
  PanelView panels;
  const std::vector<std::byte> bytes = packed(view, panels);
  std::vector<float> row(static_cast<size_t>(cols)), unpacked(row.size());
  decode_row(view, 0, row.data());
  unpack_row(panels, 0, unpacked.data());
  for (size_t c = 0; c < row.size(); ++c) ASSERT_TRUE(std::isnan(row[c]) && std::isnan(unpacked[c])) << c;
}

TEST(BlockScales, ThatAreNanMakeTheirValuesNan) {
  for (const bool scales_apart : {false, true}) {
    expect_all_nan(Format::kMXFP4, 64, scales_apart, 255);
    expect_all_nan(Format::kNVFP4, 64, scales_apart, 255);
  }
  expect_all_nan(Format::kNVFP4, 64, true, 0x7f);  // without scales apart it is 0, see the golden file
  expect_all_nan(Format::kFP8, 64, true, 0xff);
}

TEST_P(FormatContract, WhatAPanelHasBeyondTheMatrixIsZero) {
  for (const Shape& shape : shapes(format())) {
    Matrix m = random_matrix(format(), shape.rows, shape.cols, shape.apart, 3);
    std::fill(m.scales.begin(), m.scales.end(), uint8_t{0x30});  // a scale may be NaN, which no zero survives
    PanelView panels;
    const std::vector<std::byte> bytes = packed(m.view, panels);
    const int64_t step = info(format()).panel_elements;
    panels.rows = panels.panels() * kPanelRows;
    panels.cols = (shape.cols + step - 1) / step * step;
    std::vector<float> out(static_cast<size_t>(panels.cols));
    for (int64_t r = 0; r < panels.rows; ++r) {
      unpack_row(panels, r, out.data());
      for (int64_t c = r < shape.rows ? shape.cols : 0; c < panels.cols; ++c) {
        ASSERT_EQ(out[static_cast<size_t>(c)], 0.0f) << "row " << r << " column " << c;
      }
    }
  }
}

// A view of some of the stored rows is what a view of all of them has there.
TEST_P(FormatContract, ViewsOfSomeRowsHaveTheBitsOfThoseRows) {
  uint32_t seed = 40;
  for (const Shape& shape : shapes(format())) {
    const Matrix m = random_matrix(format(), shape.rows, shape.cols, shape.apart, seed++);
    for (const RowMap map : {RowMap{shape.rows / 3, 0, 0}, RowMap{1, 1, 2}, RowMap{1, 3, 7}}) {
      WeightView some = m.view;
      some.map = map;
      some.rows = 0;
      while (map(some.rows) < shape.rows) ++some.rows;
      if (some.rows == 0) continue;
      PanelView panels;
      const std::vector<std::byte> bytes = packed(some, panels);
      std::vector<float> expected(static_cast<size_t>(shape.cols)), out(expected.size()), row(expected.size());
      for (int64_t r = 0; r < some.rows; ++r) {
        decode_row(m.view, map(r), expected.data());
        decode_row(some, r, row.data());
        unpack_row(panels, r, out.data());
        for (size_t c = 0; c < expected.size(); ++c) {
          ASSERT_TRUE(same(row[c], expected[c]) && same(out[c], expected[c])) << r << " " << c;
        }
      }
    }
  }
}

TEST_P(FormatContract, EvenAndOddPanelsHaveScalesOfTheirOwn) {
  Matrix m;
  std::vector<float> values(static_cast<size_t>(block()), 0.5f);
  m.view = {.format = format(), .rows = 48, .cols = block()};
  m.data.resize(m.view.bytes());
  m.view.data = m.data.data();
  for (int64_t r = 0; r < 48; ++r) {
    encode_row(format(), values.data(), block(), m.data.data() + static_cast<size_t>(r) * m.view.row_bytes());
  }
  PanelView panels;
  const std::vector<std::byte> bytes = packed(m.view, panels);
  std::vector<float> plain(values.size()), out(values.size());
  decode_row(m.view, 0, plain.data());
  ASSERT_GT(plain[0], 0.2f);
  panels.scale[0] = 2.0f, panels.scale[1] = -8.0f;  // powers of two: exact
  for (int64_t r = 0; r < 48; ++r) {
    unpack_row(panels, r, out.data());
    ASSERT_EQ(out[0], plain[0] * (r / 16 == 1 ? -8.0f : 2.0f)) << r;
  }
}

// `panels` random panels from consecutive seeds, unpacked: [16 panels, cols].
std::vector<float> random_values(Format format, int64_t cols, int panels) {
  PanelView view{.format = format, .rows = kPanelRows, .cols = cols};
  std::vector<std::byte> bytes(view.bytes());
  view.data = bytes.data();
  std::vector<float> out(static_cast<size_t>(panels * kPanelRows * cols));
  for (int p = 0; p < panels; ++p) {
    code(format).random_panel(cols, static_cast<uint64_t>(p), bytes.data());
    for (int64_t r = 0; r < kPanelRows; ++r) unpack_row(view, r, out.data() + (p * kPanelRows + r) * cols);
  }
  return out;
}

TEST_P(FormatContract, RandomPanelsHaveMeanZeroAndTheirStandardDeviation) {
  // Six standard errors of a mean, and of the sum of a row. Widest is the spread of the mean square where 128 columns
  // of 16 rows share a random factor (FP8): 0.52 relative over 1024 factors is 0.016, of the root 0.008; six are 0.05.
  constexpr int64_t kCols = 4096, kPanels = 32;
  const std::vector<float> values = random_values(format(), kCols, kPanels);
  double sum = 0, squares = 0;
  for (const float v : values) sum += v, squares += static_cast<double>(v) * v;
  const auto n = static_cast<double>(values.size());
  EXPECT_LE(std::fabs(sum) * std::sqrt(kCols), 6 * std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n * kCols), 1.0, 0.05);
  double row_squares = 0;
  for (int64_t r = 0; r < kPanels * kPanelRows; ++r) {
    double row = 0;
    for (int64_t c = 0; c < kCols; ++c) row += values[static_cast<size_t>(r * kCols + c)];
    EXPECT_LE(std::fabs(row), 6.0) << r;
    row_squares += row * row;
  }
  // Independent values: the mean square of 512 sums is 1, with a standard error of sqrt(2 / 512).
  EXPECT_NEAR(row_squares / (kPanels * kPanelRows), 1.0, 6 * std::sqrt(2.0 / (kPanels * kPanelRows)));
}

TEST_P(FormatContract, RandomPanelsOfSmallAndLargeWidthsHaveTheirStandardDeviationToo) {
  for (const int64_t cols : {int64_t{256}, int64_t{65536}}) {
    const std::vector<float> values = random_values(format(), cols, cols == 256 ? 64 : 2);
    double squares = 0;
    for (const float v : values) squares += static_cast<double>(v) * v;
    // At least 128 factors, see above: six standard errors of the root of the mean square.
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size()) * static_cast<double>(cols)), 1.0, 0.15) << cols;
  }
}

TEST_P(FormatContract, RandomRowsAndPanelsAreNotRelated) {
  constexpr int64_t kCols = 4096;
  const std::vector<float> values = random_values(format(), kCols, 2);
  const double limit = 6 * std::sqrt(1.0 / kCols);  // products have mean 0 and standard deviation 1 / cols
  for (const int64_t other : {1, 2, 3, 8, 15, 16, 17, 31}) {
    double product = 0;
    for (int64_t c = 0; c < kCols; ++c)
      product += values[static_cast<size_t>(c)] * values[static_cast<size_t>(other * kCols + c)];
    EXPECT_LE(std::fabs(product), limit) << "row 0 and row " << other;
  }
}

TEST_P(FormatContract, RandomPanelsAreWrittenWholeAndDependOnTheSeedAlone) {
  const int64_t cols = block() == 1 ? 333 : 2 * block();
  const PanelView view{.format = format(), .rows = kPanelRows, .cols = cols};
  std::vector<std::byte> one(view.bytes() + 8, std::byte{0xcd}), two(view.bytes() + 8, std::byte{0x11}), three = one;
  code(format()).random_panel(cols, 5, one.data());
  code(format()).random_panel(cols, 5, two.data());
  code(format()).random_panel(cols, 6, three.data());
  EXPECT_EQ(std::memcmp(one.data(), two.data(), view.bytes()), 0);
  EXPECT_NE(std::memcmp(one.data(), three.data(), view.bytes()), 0);
  for (size_t i = view.bytes(); i < one.size(); ++i) EXPECT_EQ(one[i], std::byte{0xcd});
  PanelView wider = view;  // to the end of the last block
  const int64_t step = info(format()).panel_elements;
  wider.data = one.data(), wider.cols = (cols + step - 1) / step * step;
  std::vector<float> out(static_cast<size_t>(wider.cols));
  for (int64_t r = 0; r < kPanelRows; ++r) {
    unpack_row(wider, r, out.data());
    for (int64_t c = cols; c < wider.cols; ++c) EXPECT_EQ(out[static_cast<size_t>(c)], 0.0f) << r;
  }
}

}  // namespace
}  // namespace carpool
