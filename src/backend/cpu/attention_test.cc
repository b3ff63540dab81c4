// The paged KV store and attention of every table and thread count against double precision; and that a row's result
// is the same bits alone, in a batch, in another chunk, in other blocks and beside longer contexts.
#include <gtest/gtest.h>

#include "backend/cpu/test_data.h"

namespace carpool::test {
namespace {

constexpr int kBlockTokens = 4, kBlocks = 64, kPositions = 80;

struct Cache {
  explicit Cache(int heads = 4, int kv_heads = 2, int head_dim = 20, int rotary = 12, bool norms = true)
      : cos(static_cast<size_t>(kPositions * rotary / 2)),
        sin(cos.size()),
        q_norm(norms ? random_values(static_cast<size_t>(head_dim), 1) : std::vector<float>()),
        k_norm(norms ? random_values(static_cast<size_t>(head_dim), 2) : std::vector<float>()),
        keys(random_values(static_cast<size_t>(kBlocks * kBlockTokens * kv_heads * head_dim), 3)),
        values(random_values(keys.size(), 4)) {
    const int half = rotary / 2;
    for (int p = 0; p < kPositions; ++p) {
      for (int i = 0; i < half; ++i) {
        const double angle = p * std::pow(10000.0, -static_cast<double>(i) / half);
        cos[static_cast<size_t>(p * half + i)] = static_cast<float>(std::cos(angle));
        sin[static_cast<size_t>(p * half + i)] = static_cast<float>(std::sin(angle));
      }
    }
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    shape.head_dim = head_dim;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    shape.norm_eps = 1e-6f;
    shape.q_norm = q_norm;
    shape.k_norm = k_norm;
    shape.rope = {cos, sin, rotary};
  }
  Cache(const Cache&) = delete;

  KvLayer layer() { return {keys.data(), values.data(), kBlockTokens}; }
  int entry() const { return shape.kv_heads * shape.head_dim; }
  int64_t at(const int* table, int position) const {
    return (static_cast<int64_t>(table[position / kBlockTokens]) * kBlockTokens + position % kBlockTokens) * entry();
  }

  AttentionShape shape;
  std::vector<float> cos, sin, q_norm, k_norm, keys, values;
};

// `count` different blocks, starting anywhere, in no order.
std::vector<int> block_table(int start, int count) {
  std::vector<int> table;
  for (int i = 0; i < count; ++i) table.push_back((start + i * 7) % kBlocks);
  return table;
}

// RMSNorm and rotation of one head in double; `bound` gets the rounding bound of each element.
std::vector<double> finished_head(const float* head, const Cache& s, const std::vector<float>& norm, int position,
                                  std::vector<double>& bound) {
  const int hd = s.shape.head_dim, half = s.shape.rope.rotary_dims / 2;
  double squares = 0;
  for (int i = 0; i < hd; ++i) squares += static_cast<double>(head[i]) * head[i];
  std::vector<double> x(static_cast<size_t>(hd));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = head[i];
    if (!norm.empty()) x[i] *= norm[i] / std::sqrt(squares / hd + static_cast<double>(s.shape.norm_eps));
  }
  std::vector<double> y = x;
  bound.resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) bound[i] = (hd / 8 + 12) * kUnit * std::fabs(x[i]);
  for (int i = 0; i < half; ++i) {
    const auto a = static_cast<size_t>(i), b = static_cast<size_t>(i + half);
    const double c = s.cos[static_cast<size_t>(position * half + i)],
                 d = s.sin[static_cast<size_t>(position * half + i)];
    y[a] = x[a] * c - x[b] * d;
    y[b] = x[b] * c + x[a] * d;
    bound[a] = bound[b] = (hd / 8 + 16) * kUnit * (std::fabs(x[a]) + std::fabs(x[b]));
  }
  return y;
}

class Attention : public testing::TestWithParam<Backend> {
 protected:
  Attention() : ops_(make_cpu_ops(GetParam().threads, GetParam().isa)) {}
  std::unique_ptr<Ops> ops_;
};

TEST_P(Attention, StoreKvNormalisesRotatesAndWritesEachRowAtItsPlace) {
  for (const bool norms : {true, false}) {
    Cache s(4, 2, 20, norms ? 12 : 20, norms);
    const int rows = 30;
    Rows q(rows, 80, 5, 3), k(rows, 40, 6, 1), v(rows, 40, 7);
    const Rows q0 = q, k0 = k;
    const std::vector<float> old_keys = s.keys;
    const std::vector<int> first = block_table(3, 10), second = block_table(6, 5);
    std::vector<int> position;
    std::vector<const int*> tables;
    for (int t = 0; t < rows; ++t) {
      position.push_back(t == 4 ? -1 : t);
      tables.push_back(t == 4 ? nullptr : t == 9 ? second.data() : first.data());
    }
    ops_->store_kv(s.shape, {position, tables}, q.matrix(), k.matrix(), v.matrix(), s.layer());
    std::vector<double> bound;
    size_t changed = 0;
    for (int t = 0; t < rows; ++t) {
      if (t == 4) {
        EXPECT_TRUE(same_bits(q.row(t), q0.row(t), 80)) << "padding is left alone";
        continue;
      }
      for (int h = 0; h < 4; ++h) {
        const auto expected = finished_head(q0.row(t) + h * 20, s, s.q_norm, t, bound);
        for (int i = 0; i < 20; ++i) {
          ASSERT_NEAR(q.at(t, h * 20 + i), expected[static_cast<size_t>(i)], bound[static_cast<size_t>(i)]) << t;
        }
      }
      const int64_t at = s.at(tables[static_cast<size_t>(t)], t);
      for (int g = 0; g < 2; ++g) {
        const auto expected = finished_head(k0.row(t) + g * 20, s, s.k_norm, t, bound);
        for (int i = 0; i < 20; ++i) {
          ASSERT_NEAR(s.keys[static_cast<size_t>(at + g * 20 + i)], expected[static_cast<size_t>(i)],
                      bound[static_cast<size_t>(i)]);
        }
      }
      EXPECT_TRUE(same_bits(s.values.data() + at, v.row(t), 40)) << t;
      EXPECT_TRUE(same_bits(s.keys.data() + at, k.row(t), 40)) << t;
    }
    for (size_t i = 0; i < old_keys.size(); ++i) changed += old_keys[i] != s.keys[i] ? 1 : 0;
    EXPECT_EQ(changed, static_cast<size_t>((rows - 1) * 40)) << "only the rows' own entries are written";
  }
}

struct Bounded {
  std::vector<double> value, bound;
};

// Softmax attention of one head in double, and the rounding bound of each output.
Bounded oracle(const Cache& s, const float* q, const int* table, int position, int head) {
  const int hd = s.shape.head_dim, length = position + 1;
  const int g = head / (s.shape.heads / s.shape.kv_heads);
  std::vector<double> p(static_cast<size_t>(length));
  double top = -1e300, low = 1e300, worst = 0, sum = 0;
  for (int i = 0; i < length; ++i) {
    const float* key = s.keys.data() + s.at(table, i) + g * hd;
    double dot = 0, absolute = 0;
    for (int c = 0; c < hd; ++c) {
      dot += static_cast<double>(q[c]) * key[c];
      absolute += std::fabs(static_cast<double>(q[c]) * key[c]);
    }
    p[static_cast<size_t>(i)] = dot * s.shape.scale;
    worst = std::max(worst, (sum_bound(hd, absolute) + 2 * kUnit * absolute) * s.shape.scale);
    top = std::max(top, p[static_cast<size_t>(i)]);
    low = std::min(low, p[static_cast<size_t>(i)]);
  }
  for (double& x : p) sum += x = std::exp(x - top);
  // A probability: both scores off by `worst`, the shift, the exponential, the sum and the quotient.
  const double relative = 4 * worst + (top - low + length / 4 + 8 + 6) * kUnit;
  Bounded out{std::vector<double>(static_cast<size_t>(hd)), std::vector<double>(static_cast<size_t>(hd))};
  for (int i = 0; i < length; ++i) {
    const float* value = s.values.data() + s.at(table, i) + g * hd;
    for (int c = 0; c < hd; ++c) {
      const double term = p[static_cast<size_t>(i)] / sum * value[c];
      out.value[static_cast<size_t>(c)] += term;
      out.bound[static_cast<size_t>(c)] += std::fabs(term) * (relative + (length + 2) * kUnit);  // summed one by one
    }
  }
  return out;
}

TEST_P(Attention, AgreesWithDoublePrecisionOverPagedContexts) {
  for (const auto& [heads, kv_heads, hd] : {std::tuple(4, 2, 20), std::tuple(6, 1, 16), std::tuple(3, 3, 33)}) {
    Cache s(heads, kv_heads, hd, 12, false);
    const std::vector<int> table = block_table(5, 20);
    const std::vector<int> position = {0, -1, 1, 3, 4, 17, 50, 79};
    std::vector<const int*> tables(position.size(), table.data());
    tables[1] = nullptr;
    Rows q(8, heads * hd, 8, 2), out(8, heads * hd, 9, 3);
    ops_->attention(s.shape, {position, tables}, q.matrix(), s.layer(), out.matrix());
    for (int t = 0; t < 8; ++t) {
      for (int h = 0; h < heads; ++h) {
        const Bounded expected =
            t == 1 ? Bounded{} : oracle(s, q.row(t) + h * hd, table.data(), position[static_cast<size_t>(t)], h);
        for (int c = 0; c < hd; ++c) {
          if (t == 1) {
            ASSERT_EQ(out.at(t, h * hd + c), 0.0f) << "padding gives zeros";
          } else {
            ASSERT_NEAR(out.at(t, h * hd + c), expected.value[static_cast<size_t>(c)],
                        expected.bound[static_cast<size_t>(c)])
                << t << " " << h << " " << c;
          }
        }
      }
    }
  }
}

TEST_P(Attention, ARowHasTheSameBitsAloneInABatchAndInOtherBlocks) {
  const auto one_thread = make_cpu_ops(1, GetParam().isa);
  Cache s(4, 2, 20, 12, false);
  const std::vector<int> table = block_table(1, 10), moved = block_table(3, 10);
  for (int p = 0; p < 40; ++p) {
    for (int c = 0; c < s.entry(); ++c) {
      s.keys[static_cast<size_t>(s.at(moved.data(), p) + c)] = s.keys[static_cast<size_t>(s.at(table.data(), p) + c)];
      s.values[static_cast<size_t>(s.at(moved.data(), p) + c)] =
          s.values[static_cast<size_t>(s.at(table.data(), p) + c)];
    }
  }
  const int rows = 33;
  Rows q(rows, 80, 10), together(rows, 80, 11), alone(rows, 80, 12);
  std::vector<int> position;
  for (int t = 0; t < rows; ++t) position.push_back((t * 11) % 40);
  const std::vector<const int*> tables(static_cast<size_t>(rows), table.data()), elsewhere(tables.size(), moved.data());
  ops_->attention(s.shape, {position, tables}, q.matrix(), s.layer(), together.matrix());
  for (int t = 0; t < rows; ++t) {
    const auto i = static_cast<size_t>(t);
    one_thread->attention(s.shape, {std::span(position).subspan(i, 1), std::span(elsewhere).subspan(i, 1)},
                          q.slice(t, 1), s.layer(), alone.slice(t, 1));
    ASSERT_TRUE(same_bits(together.row(t), alone.row(t), 80)) << t;
  }
}

TEST_P(Attention, APromptStoredInOneChunkOrInSeveralGivesTheSameBits) {
  const int rows = 21;
  std::vector<int> position;
  for (int t = 0; t < rows; ++t) position.push_back(t);
  const std::vector<int> table = block_table(9, 6);
  const std::vector<const int*> tables(static_cast<size_t>(rows), table.data());
  std::vector<Rows> results;
  for (const int chunk : {rows, 1, 4, 5}) {
    Cache s;
    Rows q(rows, 80, 13), k(rows, 40, 14), v(rows, 40, 15), out(rows, 80, 16);
    for (int first = 0; first < rows; first += chunk) {
      const int count = std::min(chunk, rows - first);
      const RowPlaces places{std::span(position).subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                             std::span(tables).subspan(static_cast<size_t>(first), static_cast<size_t>(count))};
      ops_->store_kv(s.shape, places, q.slice(first, count), k.slice(first, count), v.slice(first, count), s.layer());
      ops_->attention(s.shape, places, q.slice(first, count), s.layer(), out.slice(first, count));
    }
    results.push_back(out);
  }
  for (const Rows& other : results) EXPECT_TRUE(same_bits(other.row(0), results[0].row(0), rows * 80));
}

INSTANTIATE_TEST_SUITE_P(CpuOps, Attention, testing::ValuesIn(all_backends()),
                         [](const auto& param) { return backend_name(param.param); });

}  // namespace
}  // namespace carpool::test
