// The finite check (case N1) for every dtype: all 8- and 16-bit patterns against their definitions, and the edges
// of the wider ones at every place of a block and at any address.
#include "io/tensor_info.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "io/dtype.h"
#include "tensor/format.h"

namespace carpool {
namespace {

template <typename Word>
NonFinite scan_words(const std::string& dtype, const std::vector<Word>& words) {
  TensorInfo t;
  t.dtype = dtype;
  t.shape = {static_cast<int64_t>(words.size())};
  t.bytes = words.size() * sizeof(Word);
  t.data = reinterpret_cast<const std::byte*>(words.data());
  return scan_non_finite(t);
}

float half_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float magnitude = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                          : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                          : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

TEST(NonFinite, IsRightForEveryPatternOf16BitFloats) {
  for (uint32_t b = 0; b <= 0xffff; ++b) {
    const std::vector<uint16_t> word = {static_cast<uint16_t>(b)};
    ASSERT_EQ(scan_words("BF16", word).count == 0, std::isfinite(bf16_to_float(word[0]))) << b;
    ASSERT_EQ(scan_words("F16", word).count == 0, std::isfinite(half_to_float(word[0]))) << b;
  }
}

TEST(NonFinite, IsRightForEveryPatternOf8BitTypes) {
  for (int b = 0; b < 256; ++b) {
    const std::vector<uint8_t> word = {static_cast<uint8_t>(b)};
    const int low = b & 0x7f;
    EXPECT_EQ(scan_words("F8_E4M3", word).count, low == 0x7f ? 1u : 0u) << b;
    EXPECT_EQ(scan_words("F8_E5M2", word).count, low >> 2 == 31 ? 1u : 0u) << b;
    EXPECT_EQ(scan_words("F8_E8M0", word).count, b == 255 ? 1u : 0u) << b;
    EXPECT_EQ(scan_words("F8_E4M3FNUZ", word).count, b == 128 ? 1u : 0u) << b;
    EXPECT_EQ(scan_words("F8_E5M2FNUZ", word).count, b == 128 ? 1u : 0u) << b;
    for (const char* integer : {"U8", "I8", "BOOL", "F4", "F6_E2M3", "F6_E3M2"}) {
      EXPECT_EQ(scan_words(integer, word).count, 0u) << integer << b;
    }
  }
}

TEST(NonFinite, IsRightAtTheEdgesOfFloat32AndFloat64) {
  using F = std::numeric_limits<float>;
  using D = std::numeric_limits<double>;
  EXPECT_EQ(scan_words<float>("F32", {0, -0.0f, F::max(), F::lowest(), F::min(), F::denorm_min()}).count, 0u);
  EXPECT_EQ(scan_words<float>("F32", {1, F::infinity(), -F::infinity(), F::quiet_NaN(), -F::quiet_NaN()}).count, 4u);
  EXPECT_EQ(scan_words<uint32_t>("F32", {0x7f800001, 0xffbfffff, 0x7f7fffff}).count, 2u);
  EXPECT_EQ(scan_words<double>("F64", {0, D::max(), D::lowest(), D::denorm_min()}).count, 0u);
  EXPECT_EQ(scan_words<double>("F64", {1, D::infinity(), -D::infinity(), D::quiet_NaN()}).count, 3u);
  EXPECT_EQ(scan_words<uint64_t>("I64", {~uint64_t{0}}).count, 0u);
}

TEST(NonFinite, FindsTheFirstAndCountsAllAtAnyPlace) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const size_t n : {size_t{1}, size_t{7}, size_t{16383}, size_t{16384}, size_t{16385}, size_t{40000}}) {
    std::vector<float> values(n, 1.0f);
    EXPECT_EQ(scan_words("F32", values).first_index, -1);
    for (const size_t at : {size_t{0}, n / 2, n - 1}) {
      values[at] = nan;
      const NonFinite found = scan_words("F32", values);
      EXPECT_EQ(found.count, 1u) << n << " " << at;
      EXPECT_EQ(found.first_index, static_cast<int64_t>(at)) << n;
      values[at] = 1.0f;
    }
    values.assign(n, nan);
    EXPECT_EQ(scan_words("F32", values).count, n);
    EXPECT_EQ(scan_words("F32", values).first_index, 0);
  }
}

TEST(NonFinite, ReadsUnalignedData) {
  const std::vector<float> values = {1, INFINITY, 2};
  std::vector<std::byte> bytes(13);
  std::memcpy(bytes.data() + 1, values.data(), 12);
  TensorInfo t{"t", "F32", {3}, bytes.data() + 1, 12, 0, 0};
  EXPECT_EQ(scan_non_finite(t).count, 1u);
  EXPECT_EQ(scan_non_finite(t).first_index, 1);
}

TEST(NonFinite, AnEmptyTensorIsFinite) { EXPECT_EQ(scan_words<float>("F32", {}).count, 0u); }

// A bad scale spoils exactly the elements that decoding makes NaN or infinite.
TEST(NonFinite, CountsWhatDecodingOfEveryBlockFormatMakesOfBadScales) {
  std::mt19937 random(5);
  for (int i = 0; i < kFormatCount; ++i) {
    const auto format = static_cast<Format>(i);
    const FormatInfo& f = info(format);
    if (f.block_elements == 1 || f.gguf_type < 0) continue;
    constexpr int64_t kBlocks = 400;
    std::vector<uint8_t> bytes(static_cast<size_t>(kBlocks * f.block_bytes));
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    // Large powers of two overflow by themselves.
    for (size_t b = 0; format == Format::kMXFP4 && b < bytes.size(); b += 17)
      bytes[b] = bytes[b] > 250 ? 255 : bytes[b];
    const WeightView view{format, bytes.data(), 1, kBlocks * f.block_elements};
    std::vector<float> values(static_cast<size_t>(view.cols));
    decode_row(view, 0, values.data());
    uint64_t count = 0;
    int64_t first = -1;
    for (int64_t c = 0; c < view.cols; ++c) {
      if (std::isfinite(values[static_cast<size_t>(c)])) continue;
      if (count++ == 0) first = c;
    }
    EXPECT_GT(count, 0u) << f.name;
    const NonFinite found = scan_non_finite({"t",
                                             std::string(f.name),
                                             {1, view.cols},
                                             reinterpret_cast<const std::byte*>(bytes.data()),
                                             bytes.size(),
                                             0,
                                             0});
    EXPECT_EQ(found.count, count) << f.name;
    EXPECT_EQ(found.first_index, first) << f.name;
  }
}

TEST(Dtype, EveryFormatThatKernelsReadIsADtypeOfTheSameWidth) {
  for (int i = 0; i < kFormatCount; ++i) {
    const FormatInfo& f = info(static_cast<Format>(i));
    if (f.safetensors_name.empty() || f.block_elements != 1) continue;
    const DtypeInfo* dtype = find_dtype(f.safetensors_name);
    ASSERT_NE(dtype, nullptr) << f.name;
    EXPECT_EQ(dtype->bits, f.block_bytes * 8) << f.name;
    EXPECT_NE(dtype_names().find(f.safetensors_name), std::string::npos);
  }
  EXPECT_EQ(find_dtype("bf16"), nullptr);
  EXPECT_EQ(find_dtype(""), nullptr);
}

}  // namespace
}  // namespace carpool
