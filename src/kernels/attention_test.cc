// The attention entries of every table: rotation and spans against double precision, how queries may be cut without
// moving a bit, what memory they leave alone, and that vector tables agree with each other. Whole attention, with its
// tolerances per element format, is tested in backend/cpu/attention_test.cc.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/kernels.h"
#include "kernels/tables_under_test.h"

namespace carpool {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kQ8};
constexpr float kGuard = -12345.0f;

std::vector<float> values(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// `n` floats at a multiple of 64 bytes, all kGuard, with 16 more behind them.
struct Aligned {
  explicit Aligned(size_t n) : size(n), memory(n + 48, kGuard) {}
  float* get() { return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) / 4; }
  bool untouched_behind() {
    for (size_t i = 0; i < 16; ++i) {
      if (get()[size + i] != kGuard) return false;
    }
    return true;
  }
  size_t size;
  std::vector<float> memory;
};

// What queries, keys and values are like.
struct Sizes {
  int head_dim, value_dim;
  bool values_in_keys = false;
  int window = 0;
};

// A sequence of positions in blocks that lie in descending order, one kv head of two, and queries at its end. Blocks
// that no row sees, and slots past the last one, are NaN.
struct Context {
  Context(KvFormat format, const Sizes& sizes_in, int length_in, int rows_in, int heads_in)
      : block(format, sizes_in.head_dim, sizes_in.value_dim, sizes_in.values_in_keys),
        sizes(sizes_in),
        head_dim(sizes_in.head_dim),
        value_dim(sizes_in.value_dim),
        length(length_in),
        rows(rows_in),
        heads(heads_in),
        q(values(static_cast<size_t>(rows * heads * head_dim + rows), 7)),
        memory(static_cast<size_t>((length + 15) / 16) * 2 * block.bytes + 64, std::byte{0xff}) {
    const int count = (length + 15) / 16;
    for (int i = 0; i < count; ++i) blocks.push_back(count - 1 - i);
    for (int p = 0; p < length; ++p) {
      const std::vector<float> key = values(static_cast<size_t>(head_dim), static_cast<uint32_t>(1000 + p)),
                               value = values(static_cast<size_t>(value_dim), static_cast<uint32_t>(p));
      std::byte* at = base() + static_cast<size_t>(blocks[static_cast<size_t>(p / 16)]) * 2 * block.bytes;
      if (p / 16 >= first_seen(length - rows) / 16) block.store(at, p % 16, key.data(), value.data());
      keys.emplace_back(static_cast<size_t>(head_dim));
      rows_of_values.emplace_back(static_cast<size_t>(value_dim));
      block.load(at, p % 16, keys.back().data(), rows_of_values.back().data());
    }
  }
  Context(KvFormat format, int head_dim_in, int length_in, int rows_in, int heads_in)
      : Context(format, Sizes{head_dim_in, head_dim_in}, length_in, rows_in, heads_in) {}
  std::byte* base() { return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64); }
  int first_seen(int position) const { return sizes.window == 0 ? 0 : std::max(0, position - sizes.window + 1); }
  // Rows [row, row + n_rows) and heads [head, head + n_heads) of the queries; one float lies between two rows.
  AttentionTile tile(int row, int n_rows, int head, int n_heads) {
    AttentionTile t;
    t.q_stride = heads * head_dim + 1;
    t.q = q.data() + row * t.q_stride + head * head_dim;
    t.rows = n_rows;
    t.heads = n_heads;
    t.first = length - rows + row;
    t.window = sizes.window;
    t.head_dim = head_dim;
    t.value_dim = value_dim;
    t.values_in_keys = sizes.values_in_keys;
    t.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    t.format = block.format;
    t.blocks = blocks.data();
    t.base = base();
    t.block_stride = 2 * block.bytes;
    t.value_offset = block.value_offset;
    return t;
  }
  // Attention of those queries, [n_rows][n_heads][value_dim].
  std::vector<float> attend(const AttentionKernels& k, int row, int n_rows, int head, int n_heads,
                            const float* sink = nullptr) {
    AttentionTile t = tile(row, n_rows, head, n_heads);
    const int queries = n_rows * n_heads;
    const size_t record = attention_record(value_dim);
    Aligned scratch(attention_scratch(queries, head_dim, value_dim)), total(record * static_cast<size_t>(queries)),
        later(total.size);
    t.scratch = scratch.get();
    std::vector<float> out(static_cast<size_t>(queries * value_dim));
    for (int s = 0; s * kAttentionSpan < t.first + n_rows; ++s) {
      k.span(t, s, later.get());
      for (int i = 0; i < queries; ++i) {
        const size_t at = static_cast<size_t>(i) * record;
        const int own = t.first + i / n_heads, begin = first_seen(own) / kAttentionSpan;
        if (begin == s) std::copy_n(later.get() + at, record, total.get() + at);
        if (begin < s && own >= s * kAttentionSpan) k.merge(total.get() + at, later.get() + at, value_dim);
      }
    }
    for (int i = 0; i < queries; ++i) {
      k.finish(total.get() + static_cast<size_t>(i) * record, sink, out.data() + static_cast<size_t>(i * value_dim),
               value_dim);
    }
    EXPECT_TRUE(scratch.untouched_behind() && total.untouched_behind() && later.untouched_behind());
    return out;
  }

  KvBlock block;
  Sizes sizes;
  int head_dim, value_dim, length, rows, heads;
  std::vector<float> q;
  std::vector<std::byte> memory;
  std::vector<int> blocks;
  std::vector<std::vector<float>> keys, rows_of_values;  // as stored
};

class EveryAttention : public testing::TestWithParam<const Kernels*> {
 protected:
  const AttentionKernels& kernels() const { return GetParam()->attention; }
};

TEST_P(EveryAttention, RotatesPairsHalfAHeadApartOrNeighboursAndNothingElse) {
  for (const bool pairs : {false, true}) {
    for (int half = 0; half <= 70; ++half) {
      const auto n = static_cast<size_t>(half);
      const std::vector<float> cos = values(n, 1), sin = values(n, 2), before = values(2 * n + 3, 3);
      std::vector<float> head = before;
      (pairs ? kernels().rotate_pairs : kernels().rotate)(head.data(), cos.data(), sin.data(), half);
      for (size_t i = 0; i < n; ++i) {
        const size_t first = pairs ? 2 * i : i, second = pairs ? 2 * i + 1 : i + n;
        const double a = before[first], b = before[second], c = cos[i], s = sin[i];
        EXPECT_NEAR(head[first], a * c - b * s, 2 * kUnit * (std::fabs(a * c) + std::fabs(b * s)));
        EXPECT_NEAR(head[second], b * c + a * s, 2 * kUnit * (std::fabs(b * c) + std::fabs(a * s)));
      }
      for (size_t i = 2 * n; i < head.size(); ++i) EXPECT_EQ(head[i], before[i]);
    }
  }
}

// The bound follows the order of sums: a score is head_dim + 2 roundings; weights are relative to each other, their
// exponents round by the range of scores and they are rescaled per tile and span; sums run over 16 chains and over all.
void expect_near_double(Context& c, const std::vector<float>& out, const float* sink) {
  const auto vd = static_cast<size_t>(c.value_dim);
  const double scale = c.tile(0, 1, 0, 1).scale;
  for (int i = 0; i < c.rows * c.heads; ++i) {
    const float* q = c.tile(i / c.heads, 1, i % c.heads, 1).q;
    const int own = c.length - c.rows + i / c.heads, begin = c.first_seen(own), seen = own + 1 - begin;
    std::vector<double> p;
    double top = sink ? *sink : -1e300, low = sink ? *sink : 1e300, worst = 0;
    for (int j = begin; j <= own; ++j) {
      double dot = 0, absolute = 0;
      for (size_t d = 0; d < static_cast<size_t>(c.head_dim); ++d) {
        dot += static_cast<double>(q[d]) * c.keys[static_cast<size_t>(j)][d];
        absolute += std::fabs(static_cast<double>(q[d]) * c.keys[static_cast<size_t>(j)][d]);
      }
      p.push_back(dot * scale);
      worst = std::max(worst, (c.head_dim + 2) * kUnit * absolute * scale);
      top = std::max(top, p.back());
      low = std::min(low, p.back());
    }
    double sum = sink ? std::exp(*sink - top) : 0;
    for (double& x : p) sum += x = std::exp(x - top);
    const double steps = seen / 64 + seen / 512 + 3;
    const double relative = 1.05 * (2 * worst + kUnit * (2 * (top - low + 6 * steps) + seen / 16 + 8 + seen + 4));
    for (size_t d = 0; d < vd; ++d) {
      double expected = 0, absolute = 0;
      for (size_t j = 0; j < p.size(); ++j) {
        const float value = c.rows_of_values[static_cast<size_t>(begin) + j][d];
        expected += p[j] / sum * value;
        absolute += p[j] / sum * std::fabs(value);
      }
      ASSERT_NEAR(out[static_cast<size_t>(i) * vd + d], expected, relative * absolute)
          << name(c.block.format) << " " << c.head_dim << "/" << c.value_dim << " window " << c.sizes.window
          << " query " << i << " element " << d;
    }
  }
}

TEST_P(EveryAttention, ASpanOrTwoAgreeWithDoublePrecision) {
  for (const KvFormat format : kFormats) {
    for (const auto& [head_dim, length, heads] : {std::tuple(1, 3, 1), std::tuple(33, 67, 2), std::tuple(64, 512, 8),
                                                  std::tuple(16, 513, 3), std::tuple(48, 640, 5)}) {
      Context c(format, head_dim, length, 3, heads);
      expect_near_double(c, c.attend(kernels(), 0, 3, 0, heads), nullptr);
    }
  }
}

// Values of their own size and values that are the start of the keys, with windows that end in every place of a tile.
const Sizes kSizes[] = {
    {40, 24},           {24, 40},           {40, 24, true},      {40, 40, true},     {96, 64, true},
    {40, 24, false, 1}, {16, 16, false, 7}, {24, 24, false, 70}, {40, 24, true, 33}, {20, 20, false, 600}};

TEST_P(EveryAttention, ValuesOfAnotherSizeOrOutOfKeysAndWindowsAgreeWithDoublePrecision) {
  for (const KvFormat format : kFormats) {
    for (const Sizes& sizes : kSizes) {
      for (const auto& [length, rows, heads] : {std::tuple(5, 5, 1), std::tuple(90, 20, 3), std::tuple(700, 9, 2)}) {
        Context c(format, sizes, length, rows, heads);
        expect_near_double(c, c.attend(kernels(), 0, rows, 0, heads), nullptr);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(EveryAttention, ASinkTakesItsShareAndGivesNothing) {
  for (const float sink : {-30.0f, 0.5f, 4.0f, 30.0f}) {
    Context c(KvFormat::kF32, 32, 70, 3, 2);
    const std::vector<float> out = c.attend(kernels(), 0, 3, 0, 2, &sink);
    expect_near_double(c, out, &sink);
    if (sink > -30.0f) {  // whose share is below a rounding
      EXPECT_NE(out, c.attend(kernels(), 0, 3, 0, 2)) << sink;
    }
  }
  const float none = -std::numeric_limits<float>::infinity();
  Context c(KvFormat::kF32, 32, 70, 3, 2);
  EXPECT_EQ(c.attend(kernels(), 0, 3, 0, 2, &none), c.attend(kernels(), 0, 3, 0, 2));
}

TEST_P(EveryAttention, AQueryHasTheSameBitsHoweverRowsAndHeadsAreCut) {
  for (const KvFormat format : kFormats) {
    for (const auto& [length, sizes] :  // rows that all, some or none stand in the first block, tile and span
         {std::pair(9, Sizes{24, 24}), std::pair(70, Sizes{24, 24}), std::pair(520, Sizes{24, 24}),
          std::pair(520, Sizes{40, 24}), std::pair(70, Sizes{40, 24, true}), std::pair(70, Sizes{24, 24, false, 5}),
          std::pair(520, Sizes{40, 24, true, 60}), std::pair(1030, Sizes{24, 24, false, 512})}) {
      if (std::string(GetParam()->name) == "scalar" && format != KvFormat::kQ8 && length > 100) continue;  // seconds
      const int rows = 9, heads = 7, value_dim = sizes.value_dim;
      Context c(format, sizes, length, rows, heads);
      const std::vector<float> whole = c.attend(kernels(), 0, rows, 0, heads);
      for (int n_rows = 1; n_rows <= rows; n_rows += 2) {
        for (int n_heads = 1; n_heads <= heads; ++n_heads) {
          for (int row = 0; row + n_rows <= rows; row += n_rows) {
            const int head = heads - n_heads;
            const std::vector<float> part = c.attend(kernels(), row, n_rows, head, n_heads);
            for (int r = 0; r < n_rows; ++r) {
              ASSERT_EQ(std::memcmp(part.data() + r * n_heads * value_dim,
                                    whole.data() + ((row + r) * heads + head) * value_dim,
                                    sizeof(float) * static_cast<size_t>(n_heads * value_dim)),
                        0)
                  << name(format) << " " << length << ": " << n_rows << " rows from " << row << ", " << n_heads
                  << " heads";
            }
          }
        }
      }
    }
  }
}

TEST_P(EveryAttention, RecordsOfRowsBeforeASpanAreLeftAlone) {
  const int head_dim = 16, heads = 2, rows = 4;
  Context c(KvFormat::kF32, head_dim, kAttentionSpan + 2, rows, heads);  // two rows end before the second span
  AttentionTile t = c.tile(0, rows, 0, heads);
  Aligned scratch(attention_scratch(rows * heads, head_dim, head_dim)),
      records(attention_record(head_dim) * rows * heads);
  t.scratch = scratch.get();
  kernels().span(t, 1, records.get());
  for (size_t i = 0; i < attention_record(head_dim) * 2 * heads; ++i) ASSERT_EQ(records.get()[i], kGuard) << i;
  EXPECT_NE(records.get()[attention_record(head_dim) * 2 * heads], kGuard);
}

TEST_P(EveryAttention, NaNInAKeyOrAValueReachesTheRowsThatSeeItAndNoOther) {
  for (const bool in_key : {true, false}) {
    Context c(KvFormat::kF32, 16, 40, 20, 1);
    std::vector<float> bad(16, std::numeric_limits<float>::quiet_NaN()), good(16, 1.0f);
    std::byte* at = c.base() + static_cast<size_t>(c.blocks[30 / 16]) * 2 * c.block.bytes;
    c.block.store(at, 30 % 16, (in_key ? bad : good).data(), (in_key ? good : bad).data());
    const std::vector<float> out = c.attend(kernels(), 0, 20, 0, 1);  // positions 20 to 39
    for (int row = 0; row < 20; ++row) {
      for (int d = 0; d < 16; ++d) ASSERT_EQ(std::isnan(out[static_cast<size_t>(row * 16 + d)]), 20 + row >= 30) << row;
    }
  }
}

TEST_P(EveryAttention, RecordsOfRowsWhoseWindowStartsPastASpanAreLeftAlone) {
  const int head_dim = 16, rows = 4;
  Context c(KvFormat::kF32, Sizes{head_dim, head_dim, false, 8}, kAttentionSpan + 9, rows, 1);  // the last two do
  AttentionTile t = c.tile(0, rows, 0, 1);
  const size_t record = attention_record(head_dim);
  Aligned scratch(attention_scratch(rows, head_dim, head_dim)), records(record * rows);
  t.scratch = scratch.get();
  kernels().span(t, 0, records.get());
  EXPECT_NE(records.get()[0], kGuard);
  EXPECT_NE(records.get()[record], kGuard);
  for (size_t i = 2 * record; i < 4 * record; ++i) ASSERT_EQ(records.get()[i], kGuard) << i;
}

// One sum of head_dim products for each head, then one over heads.
TEST_P(EveryAttention, AnIndexersScoresAgreeWithDoublePrecisionAndInEveryBitWithTheScalarTable) {
  for (const KvFormat format : kFormats) {
    for (const auto& [head_dim, length, rows, heads] :
         {std::tuple(1, 3, 3, 1), std::tuple(40, 70, 9, 5), std::tuple(64, 600, 3, 8)}) {
      Context c(format, Sizes{head_dim, 0}, length, rows, heads);
      AttentionTile t = c.tile(0, rows, 0, heads);
      Aligned scratch(attention_scratch(rows * heads, head_dim, 0));
      t.scratch = scratch.get();
      const std::vector<float> weights = values(static_cast<size_t>(rows * (heads + 1)), 5);
      for (int span = 0; span * kAttentionSpan < length; ++span) {
        const size_t stride = kAttentionSpan;
        std::vector<float> out(stride * static_cast<size_t>(rows)), scalar = out;
        kernels().index(t, weights.data(), heads + 1, span, out.data(), kAttentionSpan);
        EXPECT_TRUE(scratch.untouched_behind());
        available_kernels().front()->attention.index(t, weights.data(), heads + 1, span, scalar.data(), kAttentionSpan);
        for (int row = 0; row < rows; ++row) {
          const int end = std::min(kAttentionSpan, t.first + row + 1 - span * kAttentionSpan);
          for (int i = 0; i < end; ++i) {
            const std::vector<float>& key = c.keys[static_cast<size_t>(span * kAttentionSpan + i)];
            double expected = 0, bound = 0;
            for (int h = 0; h < heads; ++h) {
              double dot = 0, absolute = 0;
              for (int d = 0; d < head_dim; ++d) {
                const double x = static_cast<double>(c.tile(row, 1, h, 1).q[d]) * key[static_cast<size_t>(d)] * t.scale;
                dot += x;
                absolute += std::fabs(x);
              }
              const double weight = weights[static_cast<size_t>(row * (heads + 1) + h)];
              expected += weight * std::max(0.0, dot);
              bound += 1.01 * std::fabs(weight) * kUnit * ((head_dim + 2) * absolute + heads * std::max(0.0, dot));
            }
            const size_t at = static_cast<size_t>(row) * stride + static_cast<size_t>(i);
            ASSERT_NEAR(out[at], expected, bound) << name(format) << " " << head_dim << " " << row << " " << i;
            ASSERT_EQ(out[at], scalar[at]) << name(format) << " " << head_dim << " " << row << " " << i;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, EveryAttention, testing::ValuesIn(tables_under_test()),
                         [](const auto& param) { return std::string(param.param->name); });

// With one vector table there is nothing to compare; an emulated one is compared with that one.
TEST(AttentionTables, VectorTablesGiveTheSameBits) {
  if (available_kernels().size() < 2) GTEST_SKIP() << "no vector table here";
  const Kernels& reference = *available_kernels()[1];
  for (const KvFormat format : kFormats) {
    for (const auto& [sizes, length] :
         {std::pair(Sizes{20, 20}, 50), std::pair(Sizes{128, 128}, 200), std::pair(Sizes{64, 64}, 1100),
          std::pair(Sizes{40, 24}, 100), std::pair(Sizes{72, 64, true}, 600),
          std::pair(Sizes{64, 64, false, 50}, 600)}) {
      Context c(format, sizes, length, 9, 5);
      const float sink = 1.5f;
      const std::vector<float> want = c.attend(reference.attention, 0, 9, 0, 5, &sink);
      for (const Kernels* table : tables_under_test()) {
        if (table == &reference || table == available_kernels().front()) continue;  // itself; another exponential
        EXPECT_EQ(c.attend(table->attention, 0, 9, 0, 5, &sink), want)
            << table->name << " " << name(format) << " " << length;
      }
    }
  }
}

}  // namespace
}  // namespace carpool
