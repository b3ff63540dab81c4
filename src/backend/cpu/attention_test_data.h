// Caches, sequences and the slow attention that the tests of attention share; only tests include it.
//
// What no row has written in a cache is NaN here, so a read past a row's own position shows.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "backend/cpu/test_data.h"

namespace carpool::test {

inline constexpr int kBlocks = 80;
inline constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kQ8};

struct Size {
  int heads = 4, kv_heads = 2, head_dim = 20, rotary = 12;
  bool norms = true;
  int value_dim = 0;  // 0 = head_dim
  bool values_in_keys = false;
  int window = 0;
  bool sinks = false;
  int rotate_from = 0;
  bool interleaved = false;
};

// A model's shape and a cache of kBlocks blocks full of NaN.
struct Cache {
  Cache(const Size& size, KvFormat format)
      : cos(static_cast<size_t>(kBlocks * kKvPositions * size.rotary / 2)),
        sin(cos.size()),
        q_norm(size.norms ? random_values(static_cast<size_t>(size.head_dim), 1) : std::vector<float>()),
        k_norm(size.norms ? random_values(static_cast<size_t>(size.head_dim), 2) : std::vector<float>()),
        sinks(size.sinks ? random_values(static_cast<size_t>(size.heads), 3, 2.0f) : std::vector<float>()) {
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
    shape.value_dim = size.value_dim > 0 ? size.value_dim : size.head_dim;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(size.head_dim));
    shape.norm_eps = 1e-6f;
    shape.q_norm = q_norm;
    shape.k_norm = k_norm;
    shape.rope = {cos, sin, size.rotate_from, size.rotary, size.interleaved};
    shape.window = size.window;
    shape.sinks = sinks;
    layer.block = KvBlock(format, size.head_dim, shape.value_dim, size.values_in_keys);
    layer.kv_heads = size.kv_heads;
    bytes.assign(layer.stride() * kBlocks + 64, std::byte{0xff});
    layer.data = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64);
  }
  Cache(const Cache&) = delete;

  int keys() const { return shape.kv_heads * shape.head_dim; }
  int values() const { return shape.kv_heads * shape.value_dim; }
  int queries() const { return shape.heads * shape.head_dim; }
  int outputs() const { return shape.heads * shape.value_dim; }
  // Stores the rows of `keys` [positions, G * head_dim] and `values` [positions, G * value_dim] as they are.
  void fill(const std::vector<int>& table, const Rows& keys, const Rows& values) {
    for (int p = 0; p < keys.rows; ++p) {
      for (int g = 0; g < shape.kv_heads; ++g) {
        layer.block.store(layer.at(table[static_cast<size_t>(p / kKvPositions)], g), p % kKvPositions,
                          keys.row(p) + g * shape.head_dim, values.row(p) + g * shape.value_dim);
      }
    }
  }

  AttentionShape shape;
  KvLayer layer;
  std::vector<float> cos, sin, q_norm, k_norm, sinks;
  std::vector<std::byte> bytes;
};

// `count` different ones of kBlocks blocks, starting anywhere, in no order.
inline std::vector<int> block_table(int start, int count) {
  std::vector<int> table;
  for (int i = 0; i < count; ++i) table.push_back((start + i * 7) % kBlocks);
  return table;
}

// Largest error of each stored element of a head: half a unit of bfloat16 (8 significant bits), or half the scale of
// its group of 32, which is rounded up by at most 2^-7, and the rounding of the quotient.
inline std::vector<double> format_bound(KvFormat format, const float* x, int n) {
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
inline std::vector<double> finished_head(const float* head, const Cache& s, const std::vector<float>& norm,
                                         int position, std::vector<double>& bound) {
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
    const RopeTable& rope = s.shape.rope;
    const auto a = static_cast<size_t>(rope.first + (rope.interleaved ? 2 * i : i));
    const size_t b = rope.interleaved ? a + 1 : a + static_cast<size_t>(half);
    const double c = s.cos[static_cast<size_t>(position * half + i)],
                 d = s.sin[static_cast<size_t>(position * half + i)];
    y[a] = x[a] * c - x[b] * d;
    y[b] = x[b] * c + x[a] * d;
    bound[a] = bound[b] = (hd / 8 + 16) * kUnit * (std::fabs(x[a]) + std::fabs(x[b]));
  }
  return y;
}

struct Bounded {
  std::vector<double> value, bound;
};

// One head of softmax attention in double over exact keys and values, of which values may be the start of the keys.
struct Oracle {
  Oracle(const Cache& cache, const Rows& k, const Rows& v) : s(cache), keys(k), values(v) {
    for (int i = 0; i < keys.rows * s.shape.kv_heads; ++i) {
      const int row = i / s.shape.kv_heads, g = i % s.shape.kv_heads;
      key_off.push_back(format_bound(s.layer.block.format, keys.row(row) + g * s.shape.head_dim, s.shape.head_dim));
      value_off.push_back(s.layer.block.values_in_keys
                              ? key_off.back()
                              : format_bound(s.layer.block.format, value(row, g), s.shape.value_dim));
    }
  }
  const float* value(int position, int g) const {
    return s.layer.block.values_in_keys ? keys.row(position) + g * s.shape.head_dim
                                        : values.row(position) + g * s.shape.value_dim;
  }
  const Cache& s;
  const Rows& keys;
  const Rows& values;
  std::vector<std::vector<double>> key_off, value_off;  // [position * G + g] what the format may change of an element

  // Over all positions that the window leaves of those up to `position`.
  Bounded head(const float* q, int position, int head) const {
    std::vector<int> all;
    for (int p = s.shape.window == 0 ? 0 : std::max(0, position - s.shape.window + 1); p <= position; ++p) {
      all.push_back(p);
    }
    return head_over(q, all, head);
  }

  // Bounds: a score is one chain of hd products of a rounded query (hd + 2 roundings) off by the format's error of the
  // key. Weights are relative to each other, so score errors enter twice; shifts round by the range of the scores, each
  // exponential by 4 units, each of the tiles and spans rescales once; sums of weights run in 16 chains, sums of values
  // in one. 5 % cover products of such errors, which the test keeps small.
  Bounded head_over(const float* q, const std::vector<int>& positions, int head) const {
    const int hd = s.shape.head_dim, g = head / (s.shape.heads / s.shape.kv_heads);
    const auto length = static_cast<int>(positions.size());
    std::vector<double> p;
    const bool sink = !s.sinks.empty();
    double top = sink ? s.sinks[static_cast<size_t>(head)] : -1e300, low = sink ? top : 1e300, rounding = 0,
           storage = 0;
    for (const int i : positions) {
      const float* key = keys.row(i) + g * hd;
      const std::vector<double>& off = key_off[static_cast<size_t>(i * s.shape.kv_heads + g)];
      double dot = 0, absolute = 0, stored = 0;
      for (int c = 0; c < hd; ++c) {
        dot += static_cast<double>(q[c]) * key[c];
        stored += std::fabs(q[c]) * off[static_cast<size_t>(c)];
        absolute += std::fabs(static_cast<double>(q[c])) * (std::fabs(key[c]) + off[static_cast<size_t>(c)]);
      }
      p.push_back(dot * s.shape.scale);
      rounding = std::max(rounding, (hd + 2) * kUnit * absolute * s.shape.scale);
      storage = std::max(storage, stored * s.shape.scale);
      top = std::max(top, p.back());
      low = std::min(low, p.back());
    }
    double sum = sink ? std::exp(s.sinks[static_cast<size_t>(head)] - top) : 0;
    for (double& x : p) sum += x = std::exp(x - top);
    const double steps = length / 64 + length / 512 + (sink ? 4 : 2);
    const double relative = std::expm1(2 * (rounding + storage)) +
                            1.05 * kUnit * (2 * (top - low + 2 * storage + 6 * steps) + length / 16 + 8 + length + 2);
    const auto vd = static_cast<size_t>(s.shape.value_dim);
    Bounded out{std::vector<double>(vd), std::vector<double>(vd)};
    for (size_t n = 0; n < positions.size(); ++n) {
      const std::vector<double>& off = value_off[static_cast<size_t>(positions[n] * s.shape.kv_heads + g)];
      const double weight = p[n] / sum;
      for (size_t c = 0; c < vd; ++c) {
        const double x = value(positions[n], g)[c];
        out.value[c] += weight * x;
        out.bound[c] += weight * ((std::fabs(x) + off[c]) * relative + off[c]);
      }
    }
    return out;
  }
};

// A sequence of rows with their projections, and the result of attention on each.
struct Sequence {
  Sequence(int length, const Size& size, uint32_t seed, int table_start)
      : q(length, size.heads * size.head_dim, seed),
        k(length, size.kv_heads * size.head_dim, seed + 1),
        v(length, size.kv_heads * (size.value_dim > 0 ? size.value_dim : size.head_dim), seed + 2),
        out(length, size.heads * (size.value_dim > 0 ? size.value_dim : size.head_dim), seed + 3),
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
    const int T = static_cast<int>(position.size());
    Rows q(T, cache.queries(), 1), k(T, cache.keys(), 2), v(T, cache.values(), 3), out(T, cache.outputs(), 4);
    PositionSets sets;
    if (choose) sets.begin.push_back(0);
    for (int t = 0; t < T; ++t) {
      const auto [s, r] = rows[static_cast<size_t>(t)];
      if (s && choose) {
        const std::vector<int> list = choose(r);
        sets.positions.insert(sets.positions.end(), list.begin(), list.end());
      }
      if (choose) sets.begin.push_back(static_cast<int>(sets.positions.size()));
      if (!s) continue;
      std::copy_n(s->q.row(r), q.cols, q.matrix().row(t));
      std::copy_n(s->k.row(r), k.cols, k.matrix().row(t));
      std::copy_n(s->v.row(r), v.cols, v.matrix().row(t));
    }
    const bool values = cache.layer.block.has_values();
    ops.store_kv(cache.shape, {position, tables}, q.matrix(), k.matrix(), values ? v.matrix() : Matrix{}, cache.layer);
    ops.attention(cache.shape, {position, tables}, sets, q.matrix(), cache.layer, out.matrix());
    for (int t = 0; t < T; ++t) {
      const auto [s, r] = rows[static_cast<size_t>(t)];
      if (s) std::copy_n(out.row(t), out.cols, s->out.matrix().row(r));
    }
  }
  std::function<std::vector<int>(int position)> choose;  // what rows attend to; none = all
  std::vector<int> position;
  std::vector<const int*> tables;
  std::vector<std::pair<Sequence*, int>> rows;
};

// The sequence alone on one thread, in one call: the reference of the tests of bits.
inline std::vector<float> reference(const std::string& isa, const Size& size, KvFormat format, Sequence s,
                                    std::function<std::vector<int>(int)> choose = {}) {
  const auto ops = make_cpu_ops(1, isa);
  Cache cache(size, format);
  Call call;
  call.choose = std::move(choose);
  call.add(s, 0, s.q.rows);
  call.run(*ops, cache);
  for (const float x : s.out.data) EXPECT_TRUE(std::isfinite(x));
  return s.out.data;
}

}  // namespace carpool::test
