// What attention can be beside plain: values of another size, latent vectors that are keys and values at once, windows,
// sinks and chosen positions, on every table and thread count against double precision, and bit for bit however rows
// are cut and whoever stands beside them.
#include <numeric>

#include "backend/cpu/attention_test_data.h"

namespace carpool::test {
namespace {

class AttentionFeatures : public testing::TestWithParam<Backend> {
 protected:
  AttentionFeatures() : ops_(make_cpu_ops(GetParam().threads, GetParam().isa)) {}
  std::unique_ptr<Ops> ops_;
};

constexpr Size kLatent{.heads = 16,
                       .kv_heads = 1,
                       .head_dim = 40,
                       .rotary = 8,
                       .norms = false,
                       .value_dim = 32,
                       .values_in_keys = true,
                       .rotate_from = 32,
                       .interleaved = true};
const Size kSizes[] = {
    {.heads = 4, .kv_heads = 2, .head_dim = 40, .norms = false, .value_dim = 24},
    {.heads = 3, .kv_heads = 1, .head_dim = 24, .norms = false, .value_dim = 40},
    kLatent,
    {.heads = 6, .kv_heads = 2, .head_dim = 24, .norms = false, .value_dim = 20, .values_in_keys = true, .window = 33},
    {.heads = 4, .kv_heads = 2, .head_dim = 16, .norms = false, .window = 1},
    {.heads = 8, .kv_heads = 1, .head_dim = 20, .norms = false, .window = 70, .sinks = true},
    {.heads = 4, .kv_heads = 2, .head_dim = 20, .norms = false, .sinks = true},
};

TEST_P(AttentionFeatures, StoreKvRotatesWhereAndHowTheTableSaysAndStoresOnlyWhatTheCacheHolds) {
  for (const KvFormat format : kFormats) {
    for (const bool interleaved : {false, true}) {
      for (const Size& size : {Size{.heads = 4, .kv_heads = 2, .head_dim = 20, .rotary = 12, .rotate_from = 7},
                               Size{.heads = 4, .kv_heads = 2, .head_dim = 40, .rotary = 8, .value_dim = 24},
                               Size{.heads = 4,
                                    .kv_heads = 1,
                                    .head_dim = 40,
                                    .rotary = 8,
                                    .norms = false,
                                    .value_dim = 32,
                                    .values_in_keys = true,
                                    .rotate_from = 32}}) {
        Size wanted = size;
        wanted.interleaved = interleaved;
        Cache s(wanted, format), one_by_one(wanted, format);
        const int rows = 18, hd = size.head_dim, G = size.kv_heads;
        Rows q(rows, s.queries(), 5, 3), k(rows, s.keys(), 6, 1), v(rows, s.values(), 7);
        const Rows q0 = q, k0 = k;
        const std::vector<int> table = block_table(3, 10);
        std::vector<int> position(rows);
        std::iota(position.begin(), position.end(), 0);
        const std::vector<const int*> tables(rows, table.data());
        ops_->store_kv(s.shape, {position, tables}, q.matrix(), k.matrix(), size.values_in_keys ? Matrix{} : v.matrix(),
                       s.layer);
        std::vector<double> bound;
        for (int t = 0; t < rows; ++t) {
          for (int h = 0; h < 4 + G; ++h) {
            const float* from = h < 4 ? q0.row(t) + h * hd : k0.row(t) + (h - 4) * hd;
            const float* to = h < 4 ? q.row(t) + h * hd : k.row(t) + (h - 4) * hd;
            const auto expected = finished_head(from, s, h < 4 ? s.q_norm : s.k_norm, t, bound);
            for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(to[i], expected[i], bound[i]) << t << " " << h;
          }
        }
        one_by_one.fill(table, k, v);
        EXPECT_EQ(std::memcmp(s.layer.data, one_by_one.layer.data, s.layer.stride() * kBlocks), 0);
      }
    }
  }
}

// Some positions up to `position`, with the first, the own one and a run of neighbours among them.
std::vector<int> some_positions(int position, int step) {
  std::vector<int> chosen;
  for (int p = 0; p <= position; ++p) {
    if (p % step == 0 || p == position || (p >= 16 && p < 40)) chosen.push_back(p);
  }
  return chosen;
}

TEST_P(AttentionFeatures, AgreeWithDoublePrecisionOverPagedContextsInEveryFormat) {
  const bool scalar = GetParam().isa == "scalar";
  for (const Size& size : kSizes) {
    for (const KvFormat format : kFormats) {
      for (const bool sparse : {false, true}) {
        if (sparse && size.window > 0) continue;
        const int length = 200;
        Cache s(size, format);
        const std::vector<int> table = block_table(5, 13);
        const Rows keys(length, s.keys(), 3), values(length, s.values(), 4);
        s.fill(table, keys, values);
        std::vector<int> position = {-1, 0, 15, 16, 17, 63, 64};
        for (int p = 70; p < length; p += scalar ? 40 : 7) position.push_back(p);
        std::vector<const int*> tables;
        PositionSets sets;
        if (sparse) sets.begin.push_back(0);
        for (const int p : position) {
          tables.push_back(p < 0 ? nullptr : table.data());
          if (!sparse) continue;
          if (p >= 0 && p != 63) {
            const std::vector<int> list = some_positions(p, 3);
            sets.positions.insert(sets.positions.end(), list.begin(), list.end());
          }
          sets.begin.push_back(static_cast<int>(sets.positions.size()));
        }
        const int rows = static_cast<int>(position.size());
        Rows q(rows, s.queries(), 8, 2), out(rows, s.outputs(), 9, 3);
        ops_->attention(s.shape, {position, tables}, sets, q.matrix(), s.layer, out.matrix());
        const Oracle oracle(s, keys, values);
        const int vd = s.shape.value_dim;
        for (int t = 0; t < rows; ++t) {
          const int p = position[static_cast<size_t>(t)];
          for (int h = 0; h < size.heads; ++h) {
            if (p < 0) {
              for (int c = 0; c < vd; ++c) ASSERT_EQ(out.at(t, h * vd + c), 0.0f) << "padding gives zeros";
              continue;
            }
            const float* head = q.row(t) + h * size.head_dim;
            const Bounded expected =
                sparse && p != 63 ? oracle.head_over(head, some_positions(p, 3), h) : oracle.head(head, p, h);
            for (int c = 0; c < vd; ++c) {
              ASSERT_NEAR(out.at(t, h * vd + c), expected.value[static_cast<size_t>(c)],
                          expected.bound[static_cast<size_t>(c)])
                  << name(format) << " " << size.head_dim << "/" << vd << " window " << size.window << " sparse "
                  << sparse << " position " << p << " head " << h << " element " << c;
            }
          }
        }
      }
    }
  }
}

TEST_P(AttentionFeatures, APromptHasTheSameBitsInEveryChunking) {
  const bool one_format = GetParam().threads > 1 || GetParam().isa == "scalar";  // enough, and the others take seconds
  for (const Size& size : kSizes) {
    for (const KvFormat format : kFormats) {
      for (const bool sparse : {false, true}) {
        if ((sparse && size.window > 0) || (one_format && format != KvFormat::kBF16)) continue;
        const auto choose = [&](int p) { return p % 5 == 0 ? std::vector<int>() : some_positions(p, 2); };
        const Sequence prompt(90, size, 13, 9);
        const std::vector<float> expected = sparse ? reference(GetParam().isa, size, format, prompt, choose)
                                                   : reference(GetParam().isa, size, format, prompt);
        for (const int chunk : {1, 7, 33, 64}) {
          Sequence s = prompt;
          Cache cache(size, format);
          for (int first = 0; first < 90; first += chunk) {
            Call call;
            if (sparse) call.choose = choose;
            call.add(s, first, std::min(90, first + chunk));
            call.run(*ops_, cache);
          }
          ASSERT_TRUE(same_bits(s.out.data.data(), expected.data(), static_cast<int64_t>(expected.size())))
              << name(format) << " " << size.head_dim << " window " << size.window << " in chunks of " << chunk;
        }
      }
    }
  }
}

TEST_P(AttentionFeatures, ARowHasTheSameBitsBesideNeighboursThatDecodeOrPrefill) {
  for (const Size& size : kSizes) {
    const KvFormat format = KvFormat::kBF16;
    const Sequence prompt(70, size, 13, 0);
    const std::vector<float> expected = reference(GetParam().isa, size, format, prompt);
    Sequence s = prompt;
    Cache cache(size, format);
    std::vector<Sequence> others;
    for (int n = 0; n < 3; ++n) others.emplace_back(100, size, 100u + static_cast<uint32_t>(n), 49 * (n + 1));
    std::vector<int> done(others.size(), 0);
    for (int own = 0, step = 0; own < 70; ++step) {
      Call call;
      for (size_t n = 0; n < others.size(); ++n) {
        const int take = std::min(100 - done[n], (step + static_cast<int>(n)) % 4 == 0 ? 17 : 1);
        call.add(others[n], done[n], done[n] + take);
        done[n] += take;
        if (n == 1) {
          call.pad();
          const int mine = std::min(70 - own, step % 5 == 0 ? 9 : 1);
          call.add(s, own, own + mine);
          own += mine;
        }
      }
      call.run(*ops_, cache);
    }
    ASSERT_TRUE(same_bits(s.out.data.data(), expected.data(), static_cast<int64_t>(expected.size())))
        << size.head_dim << " window " << size.window;
  }
}

// Contexts of several spans, with windows that start in earlier ones: cut into spans for the threads, or not.
TEST_P(AttentionFeatures, LongContextsHaveTheSameBitsDecodedAndInAPrompt) {
  if (GetParam().isa == "scalar") GTEST_SKIP() << "seconds each";
  const int length = 1024 + 20;
  Size sizes[] = {kLatent,
                  {.heads = 4, .kv_heads = 2, .head_dim = 16, .norms = false, .window = 515, .sinks = true},
                  {.heads = 4, .kv_heads = 2, .head_dim = 16, .norms = false, .window = 40},
                  {.heads = 16, .kv_heads = 1, .head_dim = 24, .norms = false, .value_dim = 16}};
  for (const Size& size : sizes) {
    const Sequence prompt(length, size, 31, 2);
    Sequence whole = prompt;
    whole.out.data = reference(GetParam().isa, size, KvFormat::kBF16, prompt);
    Sequence s = prompt;
    Cache cache(size, KvFormat::kBF16);
    for (int first = 0, chunk = 0; first < length; first += chunk) {
      chunk = first < 500 ? 250 : first < 530 ? 1 : first < 1020 ? 490 : 1;
      Call call;
      call.add(s, first, std::min(length, first + chunk));
      call.run(*ops_, cache);
    }
    const int width = whole.out.cols;
    for (int t = 0; t < length; ++t) ASSERT_TRUE(same_bits(s.out.row(t), whole.out.row(t), width)) << t;
    Sequence again = s;
    Call call;
    for (const int t : {1043, 0, 511, 512, 513, 15, 1023, 1024}) call.add(again, t, t + 1);
    call.run(*ops_, cache);
    for (const int t : {1043, 0, 511, 512, 513, 15, 1023, 1024}) {
      ASSERT_TRUE(same_bits(again.out.row(t), whole.out.row(t), width)) << t;
    }
  }
}

TEST_P(AttentionFeatures, ChoosingAllPositionsGivesTheBitsOfChoosingNone) {
  const bool scalar = GetParam().isa == "scalar";
  const auto all = [](int p) {
    std::vector<int> positions(static_cast<size_t>(p) + 1);
    std::iota(positions.begin(), positions.end(), 0);
    return positions;
  };
  for (const Size& size : kSizes) {
    for (const KvFormat format : kFormats) {
      if (GetParam().threads > 1 && format != KvFormat::kBF16) continue;
      Sequence dense(scalar ? 40 : 600, size, 17, 0), sparse = dense;
      Cache cache(size, format);
      Call prompt;
      prompt.add(dense, 0, dense.q.rows);
      prompt.run(*ops_, cache);
      for (const auto& [begin, end] : {std::pair(dense.q.rows - 1, dense.q.rows), std::pair(20, 40)}) {
        Call call;
        call.choose = all;
        call.add(sparse, begin, end);
        call.run(*ops_, cache);
        for (int t = begin; t < end; ++t) {
          ASSERT_TRUE(same_bits(sparse.out.row(t), dense.out.row(t), dense.out.cols))
              << name(format) << " " << size.head_dim << " window " << size.window << " row " << t;
        }
      }
    }
  }
}

TEST_P(AttentionFeatures, AWindowThatLeavesNoChosenPositionGivesZeros) {
  const Size size{.heads = 4, .kv_heads = 2, .head_dim = 16, .norms = false, .window = 8};
  Sequence s(40, size, 5, 0);
  Cache cache(size, KvFormat::kF32);
  Call call;
  call.choose = [](int p) { return p < 30 ? std::vector<int>() : std::vector<int>{3, 4}; };
  call.add(s, 0, 40);
  call.run(*ops_, cache);
  for (int t = 0; t < 40; ++t) {
    for (int c = 0; c < s.out.cols; ++c) ASSERT_EQ(s.out.at(t, c) == 0.0f, t >= 30) << t;
  }
}

// An indexer's rows and keys, and the scores in double.
struct Index {
  Index(KvFormat format, int heads, int head_dim, int length, uint32_t seed)
      : q(length, heads * head_dim, seed, 3),
        keys(length, head_dim, seed + 1),
        weights(length, heads, seed + 2, 1),
        table(block_table(4, (length + 15) / 16)) {
    shape.heads = heads;
    shape.kv_heads = 1;
    shape.head_dim = head_dim;
    shape.scale = 0.25f;
    layer.block = KvBlock(format, head_dim, 0);
    layer.kv_heads = 1;
    bytes.assign(layer.stride() * kBlocks + 64, std::byte{0xff});
    layer.data = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64);
  }
  void store() {
    for (int p = 0; p < keys.rows; ++p) {
      layer.block.store(layer.at(table[static_cast<size_t>(p / kKvPositions)], 0), p % kKvPositions, keys.row(p),
                        nullptr);
    }
  }
  // As stored; `bound` gets the rounding of the two sums.
  double score(int row, int position, double& bound) const {
    std::vector<float> key(static_cast<size_t>(shape.head_dim));
    layer.block.load(layer.at(table[static_cast<size_t>(position / kKvPositions)], 0), position % kKvPositions,
                     key.data(), nullptr);
    double sum = 0;
    bound = 0;
    for (int h = 0; h < shape.heads; ++h) {
      double dot = 0, absolute = 0;
      for (int d = 0; d < shape.head_dim; ++d) {
        const double x = static_cast<double>(q.at(row, h * shape.head_dim + d)) * key[static_cast<size_t>(d)] * 0.25;
        dot += x;
        absolute += std::fabs(x);
      }
      const double weight = weights.at(row, h), above = dot < 0 ? 0 : dot;
      sum += weight * above;
      bound += 1.01 * std::fabs(weight) * kUnit * ((shape.head_dim + 2) * absolute + shape.heads * above);
    }
    return sum;
  }
  // Rows of the positions given, or -1.
  PositionSets choose(Ops& ops, const std::vector<int>& positions, int top) {
    const int T = static_cast<int>(positions.size());
    Rows some_q(T, q.cols, 1), some_weights(T, weights.cols, 2);
    std::vector<const int*> tables;
    for (int t = 0; t < T; ++t) {
      const int p = positions[static_cast<size_t>(t)];
      tables.push_back(p < 0 ? nullptr : table.data());
      if (p < 0) continue;
      std::copy_n(q.row(p), q.cols, some_q.matrix().row(t));
      std::copy_n(weights.row(p), weights.cols, some_weights.matrix().row(t));
    }
    PositionSets sets;
    sets.positions = {7, 8};  // of another call
    sets.begin = {0, 2};
    ops.choose_positions(shape, {positions, tables}, some_q.matrix(), some_weights.matrix(), layer, top, sets);
    return sets;
  }

  AttentionShape shape;
  KvLayer layer;
  Rows q, keys, weights;
  std::vector<int> table;
  std::vector<std::byte> bytes;
};

std::vector<int> to_vector(std::span<const int> list) { return {list.begin(), list.end()}; }

TEST_P(AttentionFeatures, AnIndexerChoosesTheLargestScoresWithinRounding) {
  const int length = GetParam().isa == "scalar" ? 90 : 700;
  for (const KvFormat format : kFormats) {
    Index x(format, 5, 40, length, 3);
    x.store();
    for (const int top : {1, 17, 64, length - 1}) {
      const std::vector<int> positions = {-1, 0, top - 1, top, length / 2, length - 2, length - 1, -1, 5};
      const PositionSets sets = x.choose(*ops_, positions, top);
      for (size_t t = 0; t < positions.size(); ++t) {
        const int own = positions[t];
        const std::vector<int> list = sets.empty() ? std::vector<int>() : to_vector(sets.row(static_cast<int>(t)));
        if (own < top) {
          EXPECT_TRUE(list.empty()) << own;
          continue;
        }
        ASSERT_EQ(list.size(), static_cast<size_t>(top)) << own;
        double lowest = 1e300;  // of the chosen ones, at most
        for (size_t i = 0; i < list.size(); ++i) {
          ASSERT_TRUE(list[i] >= 0 && list[i] <= own && (i == 0 || list[i - 1] < list[i])) << "ascending";
          double bound = 0;
          const double score = x.score(own, list[i], bound);
          lowest = std::min(lowest, score + bound);
        }
        for (int p = 0, i = 0; p <= own; ++p) {
          if (i < top && list[static_cast<size_t>(i)] == p) {
            ++i;
            continue;
          }
          double bound = 0;
          const double score = x.score(own, p, bound);
          ASSERT_LE(score - bound, lowest) << name(format) << " row " << own << " leaves out " << p;
        }
      }
    }
  }
}

// Small integers, of which all sums are exact, so that many scores are equal and the lower positions must win; and a
// NaN, which is chosen last.
TEST_P(AttentionFeatures, AnIndexerGivesTiesToLowerPositionsAndTakesNaNLast) {
  const int length = GetParam().isa == "scalar" ? 130 : 1100;
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16}) {
    Index x(format, 3, 4, length, 9);
    for (Rows* rows : {&x.q, &x.keys, &x.weights}) {
      for (float& value : rows->data) value = std::nearbyint(value);
    }
    x.keys.matrix().row(20)[1] = std::numeric_limits<float>::quiet_NaN();
    x.store();
    for (const int top : {1, 16, 20, 21, 50}) {
      std::vector<int> positions;
      for (int p = length - 70; p < length; p += 3) positions.push_back(p);
      const PositionSets sets = x.choose(*ops_, positions, top);
      for (size_t t = 0; t < positions.size(); ++t) {
        std::vector<double> scores;
        for (int p = 0; p <= positions[t]; ++p) {
          double bound = 0;
          const double score = x.score(positions[t], p, bound);
          scores.push_back(std::isnan(score) || p == 20 ? -1e300 : score);
        }
        std::vector<int> order(scores.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
        order.resize(static_cast<size_t>(top));
        std::sort(order.begin(), order.end());
        ASSERT_EQ(to_vector(sets.row(static_cast<int>(t))), order) << name(format) << " " << positions[t] << " " << top;
      }
    }
  }
}

TEST_P(AttentionFeatures, AnIndexersChoiceDoesNotDependOnTheBatch) {
  const int length = GetParam().isa == "scalar" ? 90 : 600;
  Index x(KvFormat::kBF16, 8, 32, length, 21);
  x.store();
  std::vector<int> all(static_cast<size_t>(length));
  std::iota(all.begin(), all.end(), 0);
  const int top = 40;
  const PositionSets together = x.choose(*ops_, all, top);
  const auto one_thread = make_cpu_ops(1, GetParam().isa);
  for (const int p : {top - 1, top, 64, length / 2, length - 1}) {
    const PositionSets alone = x.choose(*one_thread, {p}, top);
    EXPECT_EQ(to_vector(together.row(p)), alone.empty() ? std::vector<int>() : to_vector(alone.row(0))) << p;
  }
  EXPECT_TRUE(x.choose(*ops_, {3, top - 1}, top).empty()) << "no row has more than `top` positions";
}

TEST_P(AttentionFeatures, AStepAllocatesNothingOnceTheLargestBatchHasBeenSeen) {
  const int length = GetParam().isa == "scalar" ? 90 : 600, rows = 30, first = length - rows;
  Sequence s(length, kLatent, 17, 0);
  Cache cache(kLatent, KvFormat::kBF16);
  Call prompt;
  prompt.add(s, 0, length);
  prompt.run(*ops_, cache);
  Index x(KvFormat::kBF16, 4, 32, length, 21);
  x.store();
  std::vector<int> positions;
  for (int p = first; p < length; ++p) positions.push_back(p);
  const std::vector<const int*> tables(positions.size(), s.table.data()),
      index_tables(positions.size(), x.table.data());
  Rows out(rows, cache.outputs(), 3);
  PositionSets sets;
  const auto step = [&] {
    ops_->choose_positions(x.shape, {positions, index_tables}, x.q.slice(first, rows), x.weights.slice(first, rows),
                           x.layer, 50, sets);
    ops_->attention(cache.shape, {positions, tables}, sets, s.q.slice(first, rows), cache.layer, out.matrix());
    ops_->attention(cache.shape, {positions, tables}, {}, s.q.slice(first, rows), cache.layer, out.matrix());
    ops_->attention(cache.shape, {std::span(positions).first(1), std::span(tables).first(1)}, {}, s.q.slice(first, 1),
                    cache.layer, out.slice(0, 1));
  };
  step();
  const int64_t before = allocations;
  step();
  EXPECT_EQ(allocations - before, 0);
}

INSTANTIATE_TEST_SUITE_P(CpuOps, AttentionFeatures, testing::ValuesIn(all_backends()),
                         [](const auto& param) { return backend_name(param.param); });

}  // namespace
}  // namespace carpool::test
