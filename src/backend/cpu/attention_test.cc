// The paged KV store and attention of every table, thread count and element format against double precision; and that a
// row's result is the same bits alone, in a batch, in another chunk, in other blocks and beside longer contexts. What
// no row has written in a cache is NaN here, so a read past a row's own position shows.
#include <gtest/gtest.h>

#include "backend/cpu/test_data.h"

namespace carpool::test {
namespace {

constexpr int kBlocks = 80;
constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kQ8};

struct Size {
  int heads = 4, kv_heads = 2, head_dim = 20, rotary = 12;
  bool norms = true;
};

// A model's shape and a cache of kBlocks blocks full of NaN.
struct Cache {
  Cache(const Size& size, KvFormat format)
      : cos(static_cast<size_t>(kBlocks * kKvPositions * size.rotary / 2)),
        sin(cos.size()),
        q_norm(size.norms ? random_values(static_cast<size_t>(size.head_dim), 1) : std::vector<float>()),
        k_norm(size.norms ? random_values(static_cast<size_t>(size.head_dim), 2) : std::vector<float>()) {
    const int half = size.rotary / 2;
    for (int p = 0; p < kBlocks * kKvPositions; ++p) {
      for (int i = 0; i < half; ++i) {
        const double angle = p * std::pow(10000.0, -static_cast<double>(i) / half);
        cos[static_cast<size_t>(p * half + i)] = static_cast<float>(std::cos(angle));
        sin[static_cast<size_t>(p * half + i)] = static_cast<float>(std::sin(angle));
      }
    }
    shape.heads = size.heads;
    shape.kv_heads = size.kv_heads;
    shape.head_dim = size.head_dim;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(size.head_dim));
    shape.norm_eps = 1e-6f;
    shape.q_norm = q_norm;
    shape.k_norm = k_norm;
    shape.value_dim = size.head_dim;
    shape.rope = {cos, sin, 0, size.rotary};
    layer.block = KvBlock(format, size.head_dim, size.head_dim);
    layer.kv_heads = size.kv_heads;
    bytes.assign(layer.stride() * kBlocks + 64, std::byte{0xff});
    layer.data = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64);
  }
  Cache(const Cache&) = delete;

  int entry() const { return shape.kv_heads * shape.head_dim; }
  // Stores the rows of `keys` and `values` [positions, G * hd] as they are.
  void fill(const std::vector<int>& table, const Rows& keys, const Rows& values) {
    for (int p = 0; p < keys.rows; ++p) {
      for (int g = 0; g < shape.kv_heads; ++g) {
        layer.block.store(layer.at(table[static_cast<size_t>(p / kKvPositions)], g), p % kKvPositions,
                          keys.row(p) + g * shape.head_dim, values.row(p) + g * shape.head_dim);
      }
    }
  }

  AttentionShape shape;
  KvLayer layer;
  std::vector<float> cos, sin, q_norm, k_norm;
  std::vector<std::byte> bytes;
};

// `count` different ones of kBlocks blocks, starting anywhere, in no order.
std::vector<int> block_table(int start, int count) {
  std::vector<int> table;
  for (int i = 0; i < count; ++i) table.push_back((start + i * 7) % kBlocks);
  return table;
}

// Largest error of each stored element of a head: half a unit of bfloat16 (8 significant bits), or half the scale of
// its group of 32, which is rounded up by at most 2^-7, and the rounding of the quotient.
std::vector<double> format_bound(KvFormat format, const float* x, int n) {
  std::vector<double> bound(static_cast<size_t>(n), 0.0);
  for (int i = 0; i < n; ++i) {
    const double own = std::fabs(static_cast<double>(x[i]));
    if (format == KvFormat::kBF16) bound[static_cast<size_t>(i)] = own * 0x1p-8;
    if (format != KvFormat::kQ8) continue;
    double most = 0;
    for (int j = i / 32 * 32; j < std::min(n, i / 32 * 32 + 32); ++j) most = std::max<double>(most, std::fabs(x[j]));
    bound[static_cast<size_t>(i)] = 0.5 * most / 127 * (1 + 0x1p-7) + 2 * kUnit * own;
  }
  return bound;
}

// RMSNorm and rotation of one head in double; `bound` gets the rounding bound of each element.
std::vector<double> finished_head(const float* head, const Cache& s, const std::vector<float>& norm, int position,
                                  std::vector<double>& bound) {
  const int hd = s.shape.head_dim, half = s.shape.rope.dims / 2;
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
  for (const KvFormat format : kFormats) {
    for (const bool norms : {true, false}) {
      Cache s({4, 2, 20, norms ? 12 : 20, norms}, format);
      const int rows = 30;
      Rows q(rows, 80, 5, 3), k(rows, 40, 6, 1), v(rows, 40, 7);
      const Rows q0 = q, k0 = k;
      const std::vector<std::byte> before = s.bytes;
      const std::vector<int> first = block_table(3, 10), second = block_table(6, 5);
      std::vector<int> position;
      std::vector<const int*> tables;
      for (int t = 0; t < rows; ++t) {
        position.push_back(t == 4 ? -1 : t);
        tables.push_back(t == 4 ? nullptr : t == 9 ? second.data() : first.data());
      }
      ops_->store_kv(s.shape, {position, tables}, q.matrix(), k.matrix(), v.matrix(), s.layer);
      std::vector<double> bound;
      for (int t = 0; t < rows; ++t) {
        if (t == 4) {
          EXPECT_TRUE(same_bits(q.row(t), q0.row(t), 80)) << "padding is left alone";
          continue;
        }
        for (int h = 0; h < 6; ++h) {
          const float* from = h < 4 ? q0.row(t) + h * 20 : k0.row(t) + (h - 4) * 20;
          const float* to = h < 4 ? q.row(t) + h * 20 : k.row(t) + (h - 4) * 20;
          const auto expected = finished_head(from, s, h < 4 ? s.q_norm : s.k_norm, t, bound);
          for (size_t i = 0; i < 20; ++i) ASSERT_NEAR(to[i], expected[i], bound[i]) << t << " " << h;
        }
      }
      // The same rows written one by one by the definition of the format give the same memory, byte for byte.
      Cache one_by_one({4, 2, 20, norms ? 12 : 20, norms}, format);
      for (int t = 0; t < rows; ++t) {
        for (int g = 0; g < 2 && t != 4; ++g) {
          const int id = tables[static_cast<size_t>(t)][t / kKvPositions];
          s.layer.block.store(one_by_one.layer.at(id, g), t % kKvPositions, k.row(t) + g * 20, v.row(t) + g * 20);
        }
      }
      const size_t size = s.layer.stride() * kBlocks;
      EXPECT_EQ(std::memcmp(s.layer.data, one_by_one.layer.data, size), 0) << "only the rows' own entries are written";
      EXPECT_NE(before, s.bytes);
    }
  }
}

struct Bounded {
  std::vector<double> value, bound;
};

// One head of softmax attention in double over exact keys and values.
struct Oracle {
  Oracle(const Cache& cache, const Rows& k, const Rows& v) : s(cache), keys(k), values(v) {
    const int hd = s.shape.head_dim;
    for (int i = 0; i < keys.rows * s.shape.kv_heads; ++i) {
      const int row = i / s.shape.kv_heads, g = i % s.shape.kv_heads;
      key_off.push_back(format_bound(s.layer.block.format, keys.row(row) + g * hd, hd));
      value_off.push_back(format_bound(s.layer.block.format, values.row(row) + g * hd, hd));
    }
  }
  const Cache& s;
  const Rows& keys;
  const Rows& values;
  std::vector<std::vector<double>> key_off, value_off;  // [position * G + g] what the format may change of an element

  // Bounds: a score is one chain of hd products of a rounded query (hd + 2 roundings) off by the format's error of the
  // key. Weights are relative to each other, so score errors enter twice; shifts round by the range of the scores, each
  // exponential by 4 units, each of the tiles and spans rescales once; sums of weights run in 16 chains, sums of values
  // in one. 5 % cover products of such errors, which the test keeps small.
  Bounded head(const float* q, int position, int head) const {
    const int hd = s.shape.head_dim, length = position + 1, g = head / (s.shape.heads / s.shape.kv_heads);
    std::vector<double> p(static_cast<size_t>(length));
    double top = -1e300, low = 1e300, rounding = 0, storage = 0, sum = 0;
    for (int i = 0; i < length; ++i) {
      const float* key = keys.row(i) + g * hd;
      const std::vector<double>& off = key_off[static_cast<size_t>(i * s.shape.kv_heads + g)];
      double dot = 0, absolute = 0, stored = 0;
      for (int c = 0; c < hd; ++c) {
        dot += static_cast<double>(q[c]) * key[c];
        stored += std::fabs(q[c]) * off[static_cast<size_t>(c)];
        absolute += std::fabs(static_cast<double>(q[c])) * (std::fabs(key[c]) + off[static_cast<size_t>(c)]);
      }
      p[static_cast<size_t>(i)] = dot * s.shape.scale;
      rounding = std::max(rounding, (hd + 2) * kUnit * absolute * s.shape.scale);
      storage = std::max(storage, stored * s.shape.scale);
      top = std::max(top, p[static_cast<size_t>(i)]);
      low = std::min(low, p[static_cast<size_t>(i)]);
    }
    for (double& x : p) sum += x = std::exp(x - top);
    const double steps = length / 64 + length / 512 + 2;
    const double relative = std::expm1(2 * (rounding + storage)) +
                            1.05 * kUnit * (2 * (top - low + 2 * storage + 6 * steps) + length / 16 + 8 + length + 2);
    Bounded out{std::vector<double>(static_cast<size_t>(hd)), std::vector<double>(static_cast<size_t>(hd))};
    for (int i = 0; i < length; ++i) {
      const float* value = values.row(i) + g * hd;
      const std::vector<double>& off = value_off[static_cast<size_t>(i * s.shape.kv_heads + g)];
      const double weight = p[static_cast<size_t>(i)] / sum;
      for (size_t c = 0; c < static_cast<size_t>(hd); ++c) {
        out.value[c] += weight * value[c];
        out.bound[c] += weight * ((std::fabs(value[c]) + off[c]) * relative + off[c]);
      }
    }
    return out;
  }
};

struct Geometry {
  int ratio, head_dim, step;  // every step-th position is a row
};

TEST_P(Attention, AgreesWithDoublePrecisionOverPagedContextsInEveryFormat) {
  const bool scalar = GetParam().isa == "scalar";
  for (const auto& [ratio, hd, step] : {Geometry{1, 16, 1}, Geometry{4, 20, 1}, Geometry{8, 33, 3}, Geometry{8, 64, 7},
                                        Geometry{4, 128, 15}, Geometry{1, 256, 31}}) {
    for (const KvFormat format : kFormats) {
      const int groups = ratio == 8 ? 1 : 2, heads = ratio * groups, length = 200;
      Cache s({heads, groups, hd, 12, false}, format);
      const std::vector<int> table = block_table(5, 13);
      const Rows keys(length, groups * hd, 3), values(length, groups * hd, 4);
      s.fill(table, keys, values);
      std::vector<int> position;
      for (int p = 0; p < length; p += scalar ? 2 * step : step) position.push_back(p);
      position.push_back(-1);
      for (const int p : {15, 16, 17, 63, 64, 199}) position.push_back(p);
      std::vector<const int*> tables;
      for (const int p : position) tables.push_back(p < 0 ? nullptr : table.data());
      const int rows = static_cast<int>(position.size());
      Rows q(rows, heads * hd, 8, 2), out(rows, heads * hd, 9, 3);
      ops_->attention(s.shape, {position, tables}, {}, q.matrix(), s.layer, out.matrix());
      const Oracle oracle(s, keys, values);
      for (int t = 0; t < rows; ++t) {
        const int p = position[static_cast<size_t>(t)];
        for (int h = 0; h < heads; ++h) {
          if (p < 0) {
            for (int c = 0; c < hd; ++c) ASSERT_EQ(out.at(t, h * hd + c), 0.0f) << "padding gives zeros";
            continue;
          }
          const Bounded expected = oracle.head(q.row(t) + h * hd, p, h);
          for (int c = 0; c < hd; ++c) {
            ASSERT_NEAR(out.at(t, h * hd + c), expected.value[static_cast<size_t>(c)],
                        expected.bound[static_cast<size_t>(c)])
                << name(format) << " " << hd << " position " << p << " head " << h << " element " << c;
          }
        }
      }
    }
  }
}

// Scores that rise along the sequence, so that every tile moves the maximum, and a few huge ones.
TEST_P(Attention, AgreesWithDoublePrecisionWhenEveryTileRaisesTheMaximum) {
  Cache s({2, 1, 32, 12, false}, KvFormat::kF32);
  const std::vector<int> table = block_table(1, 64);
  const int length = 1000;
  Rows keys(length, 32, 3), values(length, 32, 4), q(1, 64, 5), out(1, 64, 6);
  for (int i = 0; i < length; ++i) {
    for (int c = 0; c < 32; ++c) {
      keys.data[static_cast<size_t>(i * 32 + c)] = q.at(0, c) * static_cast<float>(i) * (i == 700 ? 0.06f : 0.04f);
    }
  }
  s.fill(table, keys, values);
  const int position = length - 1;
  const int* places = table.data();
  ops_->attention(s.shape, {{&position, 1}, {&places, 1}}, {}, q.matrix(), s.layer, out.matrix());
  const Oracle oracle(s, keys, values);
  for (int h = 0; h < 2; ++h) {
    const Bounded expected = oracle.head(q.row(0) + h * 32, position, h);
    for (int c = 0; c < 32; ++c) {
      ASSERT_NEAR(out.at(0, h * 32 + c), expected.value[static_cast<size_t>(c)],
                  expected.bound[static_cast<size_t>(c)] + 1e-40);
    }
  }
}

// A sequence of rows with their projections, and the result of attention on each.
struct Sequence {
  Sequence(int length, const Size& size, uint32_t seed, int table_start)
      : q(length, size.heads * size.head_dim, seed),
        k(length, size.kv_heads * size.head_dim, seed + 1),
        v(length, size.kv_heads * size.head_dim, seed + 2),
        out(length, size.heads * size.head_dim, seed + 3),
        table(block_table(table_start, (length + 15) / 16)) {}
  Rows q, k, v, out;
  std::vector<int> table;
};

// Rows [begin, end) of each sequence as one call; `pads` rows of padding stand between the sequences.
struct Call {
  void add(Sequence& s, int begin, int end) {
    for (int t = begin; t < end; ++t) {
      position.push_back(t);
      tables.push_back(s.table.data());
      rows.emplace_back(&s, t);
    }
  }
  void pad() {
    position.push_back(-1);
    tables.push_back(nullptr);
    rows.emplace_back(nullptr, 0);
  }
  void run(Ops& ops, Cache& cache) {
    const int T = static_cast<int>(position.size()), entry = cache.entry(),
              width = cache.shape.heads * cache.shape.head_dim;
    Rows q(T, width, 1), k(T, entry, 2), v(T, entry, 3), out(T, width, 4);
    for (int t = 0; t < T; ++t) {
      const auto [s, r] = rows[static_cast<size_t>(t)];
      if (!s) continue;
      std::copy_n(s->q.row(r), width, q.matrix().row(t));
      std::copy_n(s->k.row(r), entry, k.matrix().row(t));
      std::copy_n(s->v.row(r), entry, v.matrix().row(t));
    }
    ops.store_kv(cache.shape, {position, tables}, q.matrix(), k.matrix(), v.matrix(), cache.layer);
    ops.attention(cache.shape, {position, tables}, {}, q.matrix(), cache.layer, out.matrix());
    for (int t = 0; t < T; ++t) {
      const auto [s, r] = rows[static_cast<size_t>(t)];
      if (s) std::copy_n(out.row(t), width, s->out.matrix().row(r));
    }
  }
  std::vector<int> position;
  std::vector<const int*> tables;
  std::vector<std::pair<Sequence*, int>> rows;
};

// The sequence alone on one thread, in one call: the reference of the tests of bits.
std::vector<float> reference(const std::string& isa, const Size& size, KvFormat format, Sequence s) {
  const auto ops = make_cpu_ops(1, isa);
  Cache cache(size, format);
  Call call;
  call.add(s, 0, s.q.rows);
  call.run(*ops, cache);
  for (const float x : s.out.data) EXPECT_TRUE(std::isfinite(x));
  return s.out.data;
}

TEST_P(Attention, APromptOfSeventyTokensHasTheSameBitsInEveryChunking) {
  const Size size{6, 2, 20, 12, true};
  for (const KvFormat format : kFormats) {
    const Sequence prompt(70, size, 13, 9);
    const std::vector<float> expected = reference(GetParam().isa, size, format, prompt);
    for (int chunk = 1; chunk <= 70; ++chunk) {
      Sequence s = prompt;
      Cache cache(size, format);
      for (int first = 0; first < 70; first += chunk) {
        Call call;
        call.add(s, first, std::min(70, first + chunk));
        call.run(*ops_, cache);
      }
      ASSERT_TRUE(same_bits(s.out.data.data(), expected.data(), static_cast<int64_t>(expected.size())))
          << name(format) << " in chunks of " << chunk;
    }
  }
}

TEST_P(Attention, ARowHasTheSameBitsBesideOneToFiveNeighboursThatDecodeOrPrefill) {
  const Size size{8, 1, 24, 24, true};
  for (const KvFormat format : kFormats) {
    const Sequence prompt(70, size, 13, 0);
    const std::vector<float> expected = reference(GetParam().isa, size, format, prompt);
    for (int neighbours = 1; neighbours <= 5; ++neighbours) {
      Sequence s = prompt;
      Cache cache(size, format);
      std::vector<Sequence> others;
      // Seven steps of the table further on, each: no block in common.
      for (int n = 0; n < neighbours; ++n)
        others.emplace_back(100, size, 100u + static_cast<uint32_t>(n), 49 * (n + 1));
      std::vector<int> done(others.size(), 0);
      int own = 0;
      for (int step = 0; own < 70; ++step) {
        Call call;
        const auto neighbour = [&](size_t n) {
          const int take = std::min(100 - done[n], (step + static_cast<int>(n)) % 4 == 0 ? 17 : 1);
          call.add(others[n], done[n], done[n] + take);
          done[n] += take;
        };
        for (size_t n = 0; n < others.size(); n += 2) neighbour(n);
        if (step % 3 == 0) call.pad();
        const int take = std::min(70 - own, step % 5 == 0 ? 9 : 1);
        call.add(s, own, own + take);
        own += take;
        for (size_t n = 1; n < others.size(); n += 2) neighbour(n);
        call.run(*ops_, cache);
      }
      ASSERT_TRUE(same_bits(s.out.data.data(), expected.data(), static_cast<int64_t>(expected.size())))
          << name(format) << " beside " << neighbours;
    }
  }
}

// Contexts of three spans: decoded rows are cut into spans for the threads there, prompts are not.
TEST_P(Attention, LongContextsHaveTheSameBitsDecodedAndInAPromptOfAnyChunk) {
  const Size size{4, 2, 16, 16, false};
  const int length = 1024 + 20;
  for (const KvFormat format : kFormats) {
    if (GetParam().isa == "scalar" && format != KvFormat::kQ8) continue;  // seconds each
    const Sequence prompt(length, size, 31, 2);
    Sequence whole = prompt;
    whole.out.data = reference(GetParam().isa, size, format, prompt);
    Sequence s = prompt;
    Cache cache(size, format);
    for (int first = 0, chunk = 0; first < length; first += chunk) {
      chunk = first < 500 ? 250 : first < 530 ? 1 : first < 1020 ? 490 : 1;  // 250, 500, by one, 530, 1020, by one
      Call call;
      call.add(s, first, std::min(length, first + chunk));
      call.run(*ops_, cache);
    }
    for (int t = 0; t < length; ++t) ASSERT_TRUE(same_bits(s.out.row(t), whole.out.row(t), 64)) << name(format) << t;
    // All of them again, one row each, in one call and out of order: pieces of one row.
    Sequence again = s;
    Call call;
    for (const int t : {1043, 0, 511, 512, 513, 15, 1023, 1024}) call.add(again, t, t + 1);
    call.run(*ops_, cache);
    for (const int t : {1043, 0, 511, 512, 513, 15, 1023, 1024}) {
      ASSERT_TRUE(same_bits(again.out.row(t), whole.out.row(t), 64)) << name(format) << t;
    }
  }
}

TEST_P(Attention, ARowHasTheSameBitsInOtherBlocks) {
  const Size size{4, 2, 20, 12, false};
  for (const KvFormat format : kFormats) {
    Sequence s(40, size, 10, 1), moved = s;
    moved.table = block_table(3, 10);
    Cache a(size, format), b(size, format);
    Call first, second;
    first.add(s, 0, 40);
    first.run(*ops_, a);
    second.add(moved, 0, 40);
    second.run(*ops_, b);
    EXPECT_TRUE(same_bits(s.out.row(0), moved.out.row(0), 40 * 80)) << name(format);
  }
}

TEST_P(Attention, TheFormatsDifferInBits) {
  const Size size;
  std::vector<std::vector<float>> outs;
  for (const KvFormat format : kFormats)
    outs.push_back(reference(GetParam().isa, size, format, Sequence(5, size, 1, 0)));
  EXPECT_NE(outs[0], outs[1]);
  EXPECT_NE(outs[0], outs[2]);
  EXPECT_NE(outs[1], outs[2]);
}

INSTANTIATE_TEST_SUITE_P(CpuOps, Attention, testing::ValuesIn(all_backends()),
                         [](const auto& param) { return backend_name(param.param); });

}  // namespace
}  // namespace carpool::test
