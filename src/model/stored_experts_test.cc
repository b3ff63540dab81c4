// Experts that share a tensor, transposed matrices and parts of heads: each must be, bit for bit, what slicing and
// transposing the stored values by hand gives.
#include "model/stored_experts.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/error.h"
#include "io/test_files.h"
#include "model/weights.h"

namespace carpool {
namespace {

using test::contains;
using test::Part;

// E experts of [R, C] values, as a test of slicing wants them: all different.
constexpr int64_t kE = 3, kRows = 24, kCols = 32;

std::string random_bytes(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::string out(n, '\0');
  for (char& c : out) c = static_cast<char>(random() & 0x3f);  // small exponents: no NaN in any format
  return out;
}

class StoredExpertFiles : public testing::Test {
 protected:
  // Rows of what `take` plans from a file of `parts`, as float32; refuses nothing that `finish` would.
  std::vector<std::vector<float>> rows_of(const std::vector<Part>& parts,
                                          const std::function<PanelView(TensorReader&)>& take) {
    folder_.write("model.safetensors", test::safetensors_file(parts));
    const WeightSource source = WeightSource::open(folder_.path());
    PanelPlan plan;
    TensorReader reader(source, true, plan);
    PanelView view = take(reader);
    reader.finish();
    std::vector<std::byte> bytes(plan.bytes(), std::byte{0xcd});
    const auto ops = make_cpu_ops(2, "auto");
    plan.fill(bytes.data(), *ops, nullptr);
    view.data = bytes.data() + reinterpret_cast<size_t>(view.data);
    format_ = view.format;
    std::vector<std::vector<float>> out;
    for (int64_t r = 0; r < view.rows; ++r) {
      out.emplace_back(static_cast<size_t>(view.cols));
      unpack_row(view, r, out.back().data());
    }
    return out;
  }
  std::string refusal(const std::vector<Part>& parts, const std::function<void(TensorReader&)>& take) {
    folder_.write("model.safetensors", test::safetensors_file(parts));
    const WeightSource source = WeightSource::open(folder_.path());
    PanelPlan plan;
    TensorReader reader(source, true, plan);
    return test::error_of(ErrorKind::kMalformed, [&] {
      take(reader);
      reader.finish();
    });
  }
  test::ScratchFolder folder_;
  Format format_ = Format::kF32;
};

// Row `r` of gate (half 0) or up in a pair of `rows` rows.
int64_t pair_row(int64_t rows, int64_t half, int64_t r) {
  EXPECT_LT(r, (rows + 15) / 16 * 16);
  return (2 * (r / 16) + half) * 16 + r % 16;
}

// The stored values [rows, cols] of one expert.
std::vector<std::vector<float>> decoded(WeightView view) {
  std::vector<std::vector<float>> out;
  for (int64_t r = 0; r < view.rows; ++r) {
    out.emplace_back(static_cast<size_t>(view.cols));
    decode_row(view, r, out.back().data());
  }
  return out;
}

struct Plain {
  const char* dtype;
  Format format;
  size_t bytes;
};

TEST_F(StoredExpertFiles, PlainExpertsAreTakenInHalvesOrInTurnsTransposedOrNotWithTheirBits) {
  for (const Plain& plain : {Plain{"BF16", Format::kBF16, 2}, {"F16", Format::kF16, 2}, {"F32", Format::kF32, 4}}) {
    const std::string data = random_bytes(static_cast<size_t>(kE * 2 * kRows * kCols) * plain.bytes, 1);
    const size_t expert = data.size() / kE;
    for (const bool transposed : {false, true}) {
      const std::string shape = transposed ? "3,32,48" : "3,48,32";
      for (const Order order : {Order::kHalves, Order::kInterleaved}) {
        for (int64_t e = 0; e < kE; ++e) {
          const int64_t stored_rows = transposed ? kCols : 2 * kRows, stored_cols = transposed ? 2 * kRows : kCols;
          const auto values =
              decoded({plain.format, data.data() + static_cast<size_t>(e) * expert, stored_rows, stored_cols});
          const auto rows = rows_of({{"x.gate_up_proj", plain.dtype, shape, data}}, [&](TensorReader& r) {
            return r.expert_pair("x.gate_up_proj", e, {kE, kRows, kCols, transposed}, order);
          });
          EXPECT_EQ(format_, plain.format);
          for (int64_t half = 0; half < 2; ++half) {
            for (int64_t r = 0; r < kRows; ++r) {
              const auto stored = static_cast<size_t>(order == Order::kHalves ? half * kRows + r : 2 * r + half);
              for (size_t c = 0; c < kCols; ++c) {
                const float want = transposed ? values[c][stored] : values[stored][c];
                ASSERT_EQ(rows[static_cast<size_t>(pair_row(kRows, half, r))][c], want)
                    << plain.dtype << " expert " << e << " half " << half << " row " << r << " column " << c;
              }
            }
          }
        }
      }
    }
  }
}

TEST_F(StoredExpertFiles, ADownMatrixOfAnExpertIsItsSliceOrTheTransposedSlice) {
  const std::string data = random_bytes(static_cast<size_t>(kE * kRows * kCols) * 2, 2);
  for (const bool transposed : {false, true}) {
    for (int64_t e = 0; e < kE; ++e) {
      const auto values = decoded({Format::kBF16, data.data() + static_cast<size_t>(e * kRows * kCols) * 2,
                                   transposed ? kCols : kRows, transposed ? kRows : kCols});
      const auto rows =
          rows_of({{"x.down_proj", "BF16", transposed ? "3,32,24" : "3,24,32", data}},
                  [&](TensorReader& r) { return r.expert("x.down_proj", e, {kE, kRows, kCols, transposed}); });
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t c = 0; c < kCols; ++c) ASSERT_EQ(rows[r][c], transposed ? values[c][r] : values[r][c]);
      }
    }
  }
}

// gpt-oss: rows of gate and up in turns, blocks never transposed.
TEST_F(StoredExpertFiles, Mxfp4BlocksOfExpertsAreTakenInTurns) {
  const std::string blocks = random_bytes(kE * 2 * kRows * kCols / 2, 3);
  std::string scales = random_bytes(kE * 2 * kRows * kCols / 32, 4);
  for (char& c : scales) c = static_cast<char>(c + 100);
  const std::vector<Part> parts = {{"x.gate_up_proj_blocks", "U8", "3,48,1,16", blocks},
                                   {"x.gate_up_proj_scales", "U8", "3,48,1", scales}};
  for (int64_t e = 0; e < kE; ++e) {
    const auto values = decoded(
        {Format::kMXFP4, blocks.data() + e * 2 * kRows * kCols / 2, 2 * kRows, kCols, scales.data() + e * 2 * kRows});
    const auto rows = rows_of(parts, [&](TensorReader& r) {
      return r.expert_pair("x.gate_up_proj", e, {kE, kRows, kCols, true}, Order::kInterleaved);
    });
    EXPECT_EQ(format_, Format::kMXFP4);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t half = 0; half < 2; ++half) {
        ASSERT_EQ(rows[static_cast<size_t>(pair_row(kRows, half, r))], values[static_cast<size_t>(2 * r + half)]);
      }
    }
  }
}

// 160 rows of gate and as many of up: the block scales of up begin inside a block of 128 rows.
TEST_F(StoredExpertFiles, Fp8ScalesOfExpertsAreThoseOfTheirRowsInTheFile) {
  constexpr int64_t kGate = 160, kWidth = 130;
  const std::string data = random_bytes(2 * 2 * kGate * kWidth, 5);
  std::vector<float> scales(2 * 3 * 2);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.5f + static_cast<float>(i);
  std::string bytes(scales.size() * 4, '\0');
  std::memcpy(bytes.data(), scales.data(), bytes.size());
  for (int64_t e = 0; e < 2; ++e) {
    const auto values = decoded({Format::kFP8, data.data() + e * 2 * kGate * kWidth, 2 * kGate, kWidth,
                                 bytes.data() + static_cast<size_t>(e) * 6 * 4});
    const auto rows = rows_of(
        {{"x.gate_up_proj", "F8_E4M3", "2,320,130", data}, {"x.gate_up_proj_scale_inv", "F32", "2,3,2", bytes}},
        [&](TensorReader& r) { return r.expert_pair("x.gate_up_proj", e, {2, kGate, kWidth, false}, Order::kHalves); });
    EXPECT_EQ(format_, Format::kFP8);
    for (int64_t r = 0; r < 2 * kGate; ++r) {
      ASSERT_EQ(rows[static_cast<size_t>(pair_row(kGate, r / kGate, r % kGate))], values[static_cast<size_t>(r)]) << r;
    }
  }
}

TEST_F(StoredExpertFiles, WhatIsMissingOrMisshapenIsNamedOnceForAllExperts) {
  const auto take = [](TensorReader& r) {
    for (int64_t e = 0; e < kE; ++e) r.expert_pair("x.gate_up_proj", e, {kE, kRows, kCols, false}, Order::kHalves);
  };
  const Part plain{"x.gate_up_proj", "BF16", "3,48,32", std::string(3 * 48 * 32 * 2, '\0')};
  std::string what = refusal({{"y", "F32", "1", "1234"}}, take);
  EXPECT_TRUE(contains(what, ": 2 tensors cannot be used: \"x.gate_up_proj\" is missing; \"y\" is not")) << what;
  what = refusal({{"x.gate_up_proj", "BF16", "3,32,48", plain.data}}, take);
  EXPECT_TRUE(contains(what, ": 1 tensor cannot be used")) << what;
  EXPECT_TRUE(contains(what, "has shape [3, 32, 48], the config needs [3, 48, 32]")) << what;
  what = refusal({{"x.gate_up_proj", "BF16", "2,48,48", std::string(2 * 48 * 48 * 2, '\0')}}, take);
  EXPECT_TRUE(contains(what, "has shape [2, 48, 48], the config needs [3, 48, 32]")) << what;
  what = refusal({{"x.gate_up_proj_blocks", "U8", "3,48,1,16", std::string(3 * 48 * 16, '\0')}}, take);
  EXPECT_TRUE(contains(what, "\"x.gate_up_proj_scales\" is missing")) << what;
  what = refusal({{"x.gate_up_proj_blocks", "U8", "3,48,1,16", std::string(3 * 48 * 16, '\0')},
                  {"x.gate_up_proj_scales", "U8", "3,48,2", std::string(3 * 48 * 2, '\0')}},
                 take);
  EXPECT_TRUE(contains(what, "must be U8 [3, 48, 1] beside \"x.gate_up_proj_blocks\", is U8 [3, 48, 2]")) << what;
  Part infinite = plain;
  infinite.data[(48 * 32 + 5) * 2] = '\x80', infinite.data[(48 * 32 + 5) * 2 + 1] = '\x7f';
  what = refusal({infinite}, take);
  EXPECT_TRUE(contains(what, "\"x.gate_up_proj\" has 1 values that are NaN or infinite, the first at index 5")) << what;
}

// MXFP4's scale byte 255 is NaN although its tensor is of plain bytes.
TEST_F(StoredExpertFiles, ANanScaleOfMxfp4IsFound) {
  std::string scales(3 * 48, '\x70');
  scales[50] = '\xff';
  const std::string what =
      refusal({{"x.gate_up_proj_blocks", "U8", "3,48,1,16", std::string(3 * 48 * 16, '\0')},
               {"x.gate_up_proj_scales", "U8", "3,48,1", scales}},
              [](TensorReader& r) {
                for (int64_t e = 0; e < kE; ++e)
                  r.expert_pair("x.gate_up_proj", e, {kE, kRows, kCols, true}, Order::kInterleaved);
              });
  EXPECT_TRUE(contains(what, "\"x.gate_up_proj_scales\" has 1 values that are NaN or infinite, the first at index 2"));
}

// Keys and values of each head in one matrix, as latent attention stores them: heads x (20 key rows + 12 value rows).
TEST_F(StoredExpertFiles, PartsOfHeadsAreTakenAsTheyAreOrTransposed) {
  constexpr int64_t kHeads = 3, kKey = 20, kPerHead = 32, kLatent = 40;
  for (const auto& [dtype, format, bytes] :
       {Plain{"BF16", Format::kBF16, 2}, {"F32", Format::kF32, 4}, {"F8_E4M3", Format::kFP8, 1}}) {
    const std::string data = random_bytes(static_cast<size_t>(kHeads * kPerHead * kLatent) * bytes, 6);
    const auto values = decoded({format, data.data(), kHeads * kPerHead, kLatent});
    const std::vector<Part> parts = {{"kv_b.weight", dtype, "96,40", data}};
    const auto v = rows_of(parts, [&](TensorReader& r) {
      return r.head_rows("kv_b.weight", {kHeads, kPerHead, kKey, kPerHead}, kLatent);
    });
    EXPECT_EQ(format_, format);
    ASSERT_EQ(v.size(), static_cast<size_t>(kHeads * (kPerHead - kKey)));
    for (int64_t r = 0; r < static_cast<int64_t>(v.size()); ++r) {
      ASSERT_EQ(v[static_cast<size_t>(r)], values[static_cast<size_t>(r / 12 * kPerHead + kKey + r % 12)]);
    }
    const auto k = rows_of(parts, [&](TensorReader& r) {
      return r.heads_transposed("kv_b.weight", {kHeads, kPerHead, 0, kKey}, kLatent);
    });
    EXPECT_EQ(format_, format == Format::kFP8 ? Format::kF32 : format);
    ASSERT_EQ(k.size(), static_cast<size_t>(kHeads * kLatent));
    for (size_t h = 0; h < kHeads; ++h) {
      for (size_t c = 0; c < kLatent; ++c) {
        for (size_t r = 0; r < kKey; ++r) ASSERT_EQ(k[h * kLatent + c][r], values[h * kPerHead + r][c]);
      }
    }
  }
}

// More rows than a job packs at once.
TEST_F(StoredExpertFiles, AWideMatrixIsTransposedInSeveralJobs) {
  constexpr int64_t kWide = 2500, kShort = 3;
  const std::string data = random_bytes(kWide * kShort * 2, 7);
  const auto values = decoded({Format::kF16, data.data(), kShort, kWide});
  const auto rows = rows_of({{"w.weight", "F16", "3,2500", data}},
                            [&](TensorReader& r) { return r.transposed("w.weight", kWide, kShort); });
  for (size_t r = 0; r < kWide; ++r) {
    for (size_t c = 0; c < kShort; ++c) ASSERT_EQ(rows[r][c], values[c][r]);
  }
}

TEST_F(StoredExpertFiles, ValuesOfAWholeMatrix) {
  std::vector<float> biases = {1, 2, 3, 4, 5, 6};
  std::string bytes(24, '\0');
  std::memcpy(bytes.data(), biases.data(), 24);
  folder_.write("model.safetensors", test::safetensors_file({{"x.gate_up_proj_bias", "F32", "2,3", bytes}}));
  const WeightSource source = WeightSource::open(folder_.path());
  PanelPlan plan;
  TensorReader reader(source, true, plan);
  EXPECT_FALSE(reader.has("x.gate_up_proj"));
  EXPECT_TRUE(reader.has("x.gate_up_proj_bias"));
  EXPECT_EQ(reader.values("x.gate_up_proj_bias", 2, 3), biases);
  reader.finish();
}

}  // namespace
}  // namespace carpool
