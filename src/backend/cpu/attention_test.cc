// The paged KV store and attention of every table, thread count and element format against double precision; and that a
// row's result is the same bits alone, in a batch, in another chunk, in other blocks and beside longer contexts.
// Windows, sinks, latent vectors and chosen positions: attention_features_test.cc.
#include <gtest/gtest.h>

#include "backend/cpu/attention_test_data.h"

namespace carpool::test {
namespace {

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
