// SwiGLU experts of every table and thread count against a naive loop per token in double precision; a token's bits do
// not depend on its neighbours; and a repeated step allocates nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <new>

#include "backend/cpu/test_data.h"

std::atomic<int64_t> carpool::test::allocations{0};

#ifndef CARPOOL_SANITIZED  // which has an operator new of its own
// Counts every allocation of the test program. Kept out of line: seen through, malloc and delete look mismatched.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++carpool::test::allocations;
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++carpool::test::allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace carpool::test {
namespace {

constexpr int kE = 6;
constexpr int kWidth = 75;  // of layers whose format has no blocks

// Widths are ragged where the format has no blocks: neither whole panels nor whole activation blocks. Formats of blocks
// of 32 or 64 end within an activation block.
struct Layer {
  explicit Layer(Format format)
      : Layer(format, fitting_columns(format, kWidth, 192, 256), fitting_columns(format, 53, 320, 512)) {}
  Layer(Format format, int width_in, int hidden_in) : width(width_in), hidden(hidden_in) {
    for (uint32_t e = 0; e < kE; ++e) {
      weights.emplace_back(format, hidden, width, 100 + e);
      weights.emplace_back(format, hidden, width, 200 + e);
      weights.emplace_back(format, width, hidden, 300 + e);
      pairs.emplace_back(weights[weights.size() - 3], weights[weights.size() - 2]);
      gate_up.push_back(pairs.back().panels);
      down.push_back(weights.back().panels);
    }
  }
  ExpertWeights experts() const { return {gate_up, down, gate_up_bias, down_bias, activation, limit}; }
  // Of every output; in the order of the panels of gate_up, 16 gates and 16 ups in turn, zeros in what fills them up.
  void add_biases() {
    const auto rows = static_cast<size_t>(gate_up[0].rows);
    gate_up_bias = random_values(kE * rows, 400);
    for (size_t i = 0; i < gate_up_bias.size(); ++i) {
      const size_t f = i % rows / 32 * 16 + i % 16;
      if (f >= static_cast<size_t>(hidden)) gate_up_bias[i] = 0;
    }
    down_bias = random_values(static_cast<size_t>(kE * width), 401);
  }
  // Of output f of the gate (which = 0) or up (1) matrix.
  double gate_up_bias_of(int expert, int which, int f) const {
    if (gate_up_bias.empty()) return 0;
    return gate_up_bias[static_cast<size_t>(expert * gate_up[0].rows + f / 16 * 32 + which * 16 + f % 16)];
  }
  const Weight& matrix(int expert, int which) const { return weights[static_cast<size_t>(expert * 3 + which)]; }

  int width, hidden;
  std::vector<float> gate_up_bias, down_bias;
  Activation activation = Activation::kSilu;
  float limit = 0;
  std::vector<Weight> weights;  // moved, never copied: views point into the heap
  std::vector<GateUp> pairs;
  std::vector<PanelView> gate_up, down;
};

// Layers that many tests share: encoding some formats is a search, and takes longer than the test.
const Layer& layer_of(Format format) {
  static std::map<Format, Layer> layers;
  return layers.try_emplace(format, format).first->second;
}

// What each row uses.
using Choice = std::vector<std::vector<int>>;

Selection select(const Choice& rows) {
  Selection chosen;
  chosen.start(static_cast<int>(rows.size()), kE);
  for (const auto& row : rows) {
    for (const int expert : row) chosen.push(expert);
    chosen.end_row(PlainReason::kApplied);
  }
  return chosen;
}

Choice random_choice(int rows, uint32_t seed) {
  std::mt19937 random(seed);
  Choice all;
  for (int t = 0; t < rows; ++t) {
    std::vector<int> experts = {0, 1, 2, 3, 4, 5};
    std::shuffle(experts.begin(), experts.end(), random);
    experts.resize(random() % 4);
    all.push_back(experts);
  }
  return all;
}

struct Bounded {
  double value = 0, bound = 0;
};

// g and u with their bounds to what the down projection reads. |silu'| <= 1.1 and |(g sigmoid(1.702 g))'| <= 1.1;
// clamping moves nothing apart.
Bounded activated(const Layer& layer, const Bounded& g, const Bounded& u) {
  if (layer.activation == Activation::kSilu) {
    const double silu = g.value / (1 + std::exp(-g.value)), value = silu * u.value;
    return {value,
            1.1 * g.bound * (std::fabs(u.value) + u.bound) + std::fabs(silu) * u.bound + 10 * kUnit * std::fabs(value)};
  }
  const double limit = layer.limit, gate = std::min(g.value, limit), up = std::clamp(u.value, -limit, limit) + 1;
  const double share = gate / (1 + std::exp(-1.702 * gate)), value = share * up;
  // The exponent is a rounded product of a rounded constant: 2 units of it, and as many more of the result.
  const double steps = 12 + 3 * std::fabs(1.702 * gate);
  return {value, 1.1 * g.bound * (std::fabs(up) + u.bound) + std::fabs(share) * (u.bound + kUnit * std::fabs(up)) +
                     steps * kUnit * std::fabs(value)};
}

// One expert on one row, with the rounding bound carried from sum to sum.
std::vector<Bounded> expert_oracle(const Layer& layer, int expert, const float* x) {
  const auto product = [&](int which, int f) {
    Bounded r;
    double absolute = 0;
    for (int d = 0; d < layer.width; ++d) {
      const double term = static_cast<double>(x[d]) * layer.matrix(expert, which).at(f, d);
      r.value += term;
      absolute += std::fabs(term);
    }
    r.bound = sum_bound(layer.width, absolute);
    const double bias = layer.gate_up_bias_of(expert, which, f);
    r.value += bias;
    r.bound += bias == 0 ? 0 : kUnit * (std::fabs(r.value) + r.bound);
    return r;
  };
  std::vector<Bounded> hidden, out;
  for (int f = 0; f < layer.hidden; ++f) hidden.push_back(activated(layer, product(0, f), product(1, f)));
  for (int d = 0; d < layer.width; ++d) {
    Bounded r;
    double absolute = 0;
    for (int f = 0; f < layer.hidden; ++f) {
      const double w = layer.matrix(expert, 2).at(d, f);
      r.value += w * hidden[static_cast<size_t>(f)].value;
      absolute += std::fabs(w * hidden[static_cast<size_t>(f)].value);
      r.bound += std::fabs(w) * hidden[static_cast<size_t>(f)].bound;
    }
    r.bound += sum_bound(layer.hidden, absolute);
    if (!layer.down_bias.empty()) {
      r.value += layer.down_bias[static_cast<size_t>(expert * layer.width + d)];
      r.bound += kUnit * (std::fabs(r.value) + r.bound);
    }
    out.push_back(r);
  }
  return out;
}

void expect_near_oracle(const Layer& layer, const Choice& choice, const std::vector<float>& weights, const Rows& x,
                        const Rows& out) {
  size_t slot = 0;
  for (int t = 0; t < x.rows; ++t) {
    const auto width = static_cast<size_t>(layer.width);
    std::vector<Bounded> total(width);
    const size_t k = choice[static_cast<size_t>(t)].size();
    for (const int expert : choice[static_cast<size_t>(t)]) {
      const double weight = weights[slot++];
      const std::vector<Bounded> y = expert_oracle(layer, expert, x.row(t));
      for (size_t d = 0; d < width; ++d) {
        total[d].value += weight * y[d].value;
        total[d].bound += std::fabs(weight) * (y[d].bound + static_cast<double>(k + 2) * kUnit * std::fabs(y[d].value));
      }
    }
    for (size_t d = 0; d < width; ++d) {
      ASSERT_NEAR(out.at(t, static_cast<int64_t>(d)), total[d].value, total[d].bound) << "row " << t;
      if (k == 0) {
        ASSERT_EQ(out.at(t, static_cast<int64_t>(d)), 0.0f) << "row " << t << " uses no expert";
      }
    }
  }
}

class Experts : public testing::TestWithParam<Backend> {
 protected:
  Experts() : ops_(make_cpu_ops(GetParam().threads, GetParam().isa)) {}

  void run(Ops& ops, const Layer& layer, Matrix x, const Choice& choice, const std::vector<float>& weights,
           Matrix out) {
    ops.experts(x, layer.experts(), select(choice), weights, out);
  }
  static size_t slots(const Choice& choice) {
    size_t n = 0;
    for (const auto& row : choice) n += row.size();
    return n;
  }
  std::unique_ptr<Ops> ops_;
};

TEST_P(Experts, AgreeWithANaiveLoopPerTokenForOneToSixtyFiveRows) {
  for (const Format format : {Format::kF32, Format::kBF16}) {
    const Layer layer(format);
    for (const int rows : {1, 2, 3, 5, 8, 17, 65}) {
      const Choice choice = random_choice(rows, static_cast<uint32_t>(rows));
      const std::vector<float> weights = random_values(slots(choice), 7);
      Rows x(rows, layer.width, 8, 2), out(rows, layer.width, 9, 1);
      run(*ops_, layer, x.matrix(), choice, weights, out.matrix());
      expect_near_oracle(layer, choice, weights, x, out);
    }
  }
}

// However the second phase cuts its work: shares shorter and longer than a tile, uneven, none at all for some threads,
// and more rows of one expert than are held at once.
TEST(ExpertTiles, EveryPanelIsWorkedOnOnceForAnyThreadsRowsAndWidth) {
  const std::string isa = cpu_isa_names().back();
  const auto alone = make_cpu_ops(1, isa);
  for (const int width : {32, 64, 1024, 2080}) {  // 2 to 130 panels
    const Layer layer(Format::kQ4_0, width, 64);
    for (const int rows : {1, 9, 13, 130}) {
      const Choice choice(static_cast<size_t>(rows), {1, 3});
      const std::vector<float> weights = random_values(static_cast<size_t>(2 * rows), 71);
      Rows x(rows, width, 72), expected(rows, width, 73);
      for (int t = 0; t < rows; ++t) {
        const auto at = weights.begin() + 2 * t;
        alone->experts(x.slice(t, 1), layer.experts(), select({choice[0]}), std::vector<float>(at, at + 2),
                       expected.slice(t, 1));
      }
      for (const int threads : {1, 2, 3, 7, 64}) {
        Rows out(rows, width, 74);
        make_cpu_ops(threads, isa)->experts(x.matrix(), layer.experts(), select(choice), weights, out.matrix());
        ASSERT_TRUE(same_bits(out.row(0), expected.row(0), rows * width))
            << width << " wide, " << rows << " rows, " << threads << " threads";
      }
    }
  }
}

// With float activations nothing but sums is rounded: what a format's panels mean is what its stored rows mean.
TEST_P(Experts, AgreeWithANaiveLoopPerTokenInEveryFormat) {
  const auto exact = make_cpu_ops(GetParam().threads, GetParam().isa, Activations::kFloat);
  for (const Format format : all_formats()) {
    const Layer& layer = layer_of(format);
    for (const int rows : {1, 3, 17}) {
      Choice choice = random_choice(rows, static_cast<uint32_t>(50 + rows));
      choice[0] = {2, 4};
      const std::vector<float> weights = random_values(slots(choice), 51);
      Rows x(rows, layer.width, 52, 2), out(rows, layer.width, 53, 1);
      run(*exact, layer, x.matrix(), choice, weights, out.matrix());
      expect_near_oracle(layer, choice, weights, x, out);
      if (HasFatalFailure()) FAIL() << info(format).name << ", " << rows << " rows";
    }
  }
}

TEST_P(Experts, BiasesAndTheClampedActivationAgreeWithANaiveLoopAndEachChangesTheResult) {
  const auto exact = make_cpu_ops(GetParam().threads, GetParam().isa, Activations::kFloat);
  for (const Format format : {Format::kF32, Format::kBF16, Format::kMXFP4}) {
    Layer layer(format);
    const Choice choice = random_choice(21, 60);
    const std::vector<float> weights = random_values(slots(choice), 61);
    Rows x(21, layer.width, 62, 2), out(21, layer.width, 63, 1), before(21, layer.width, 64, 1);
    run(*exact, layer, x.matrix(), choice, weights, before.matrix());
    for (const int change : {0, 1, 2}) {
      if (change == 0) layer.add_biases();
      if (change == 1) layer.activation = Activation::kClampedSwiglu;
      layer.limit = change == 1 ? 1e30f : 0.75f;  // which half of all gates and ups reach, or none
      run(*exact, layer, x.matrix(), choice, weights, out.matrix());
      expect_near_oracle(layer, choice, weights, x, out);
      if (HasFatalFailure()) FAIL() << info(format).name << ", change " << change;
      EXPECT_NE(out.data, before.data) << info(format).name << ", change " << change;
      before = out;
      for (int t = 0; t < 21; ++t) {
        size_t first = 0;
        for (int r = 0; r < t; ++r) first += choice[static_cast<size_t>(r)].size();
        const Choice row = {choice[static_cast<size_t>(t)]};
        const std::vector<float> own(weights.begin() + static_cast<int64_t>(first),
                                     weights.begin() + static_cast<int64_t>(first + row[0].size()));
        Rows alone(1, layer.width, 65);
        run(*exact, layer, x.slice(t, 1), row, own, alone.matrix());
        ASSERT_TRUE(same_bits(alone.row(0), out.row(t), layer.width)) << info(format).name << " row " << t;
      }
    }
  }
}

TEST_P(Experts, AnExpertOfAllRowsAndAnEmptySelectionWork) {
  const Layer layer(Format::kBF16);
  Rows x(33, kWidth, 10), out(33, kWidth, 11);
  const Choice everybody(33, {4});
  const std::vector<float> weights = random_values(33, 12);
  run(*ops_, layer, x.matrix(), everybody, weights, out.matrix());
  expect_near_oracle(layer, everybody, weights, x, out);
  const Choice nobody(33);
  run(*ops_, layer, x.matrix(), nobody, {}, out.matrix());
  for (int t = 0; t < 33; ++t) {
    for (int d = 0; d < kWidth; ++d) ASSERT_EQ(out.at(t, d), 0.0f);
  }
}

TEST_P(Experts, TwoSlotsOfARowOnOneExpertAddTheirWeights) {
  const Layer layer(Format::kF32);
  Rows x(2, kWidth, 13), out(2, kWidth, 14);
  const Choice choice = {{3, 1, 3}, {1}};
  const std::vector<float> weights = {0.5f, 0.25f, 0.125f, 1.0f};
  run(*ops_, layer, x.matrix(), choice, weights, out.matrix());
  expect_near_oracle(layer, choice, weights, x, out);
}

TEST_P(Experts, ATokenHasTheSameBitsAloneAndInEveryBatch) {
  const auto one_thread = make_cpu_ops(1, GetParam().isa);
  for (const Format format : all_formats()) {
    const Layer& layer = layer_of(format);
    const int rows = GetParam().isa == "scalar" ? 21 : 65, width = layer.width;  // the scalar table is slow
    const Choice choice = random_choice(rows, 15);
    const std::vector<float> weights = random_values(slots(choice), 16);
    Rows x(rows, width, 17), together(rows, width, 18), part(rows, width, 19), alone(rows, width, 20);
    run(*ops_, layer, x.matrix(), choice, weights, together.matrix());
    std::vector<size_t> first = {0};
    for (const auto& row : choice) first.push_back(first.back() + row.size());
    const auto run_rows = [&](Ops& ops, int begin, int end, Rows& out) {
      const auto b = static_cast<size_t>(begin), e = static_cast<size_t>(end);
      const Choice some(choice.begin() + begin, choice.begin() + end);
      const std::vector<float> w(weights.begin() + static_cast<int64_t>(first[b]),
                                 weights.begin() + static_cast<int64_t>(first[e]));
      run(ops, layer, x.slice(begin, end - begin), some, w, out.slice(begin, end - begin));
    };
    for (int t = 0; t < rows; ++t) run_rows(*one_thread, t, t + 1, alone);
    ASSERT_TRUE(same_bits(together.row(0), alone.row(0), rows * width))
        << info(format).name << ", all rows against each alone";
    for (const int batch : {2, 3, 7, 16, 32}) {
      for (int t = 0; t < rows; t += batch) run_rows(*ops_, t, std::min(rows, t + batch), part);
      ASSERT_TRUE(same_bits(part.row(0), alone.row(0), rows * width)) << info(format).name << ", batches of " << batch;
    }
  }
}

TEST_P(Experts, TheOrderInWhichSlotsAreListedDoesNotMatter) {
  const Layer layer(Format::kBF16);
  Rows x(1, kWidth, 21), a(1, kWidth, 22), b(1, kWidth, 23);
  run(*ops_, layer, x.matrix(), {{5, 0, 2}}, {0.1f, 0.7f, 0.3f}, a.matrix());
  run(*ops_, layer, x.matrix(), {{2, 5, 0}}, {0.3f, 0.1f, 0.7f}, b.matrix());
  EXPECT_TRUE(same_bits(a.row(0), b.row(0), kWidth));
}

TEST_P(Experts, PaddingRowsChangeNoOtherRow) {
  const Layer layer(Format::kBF16);
  Rows x(4, kWidth, 24), plain(2, kWidth, 25), padded(4, kWidth, 26);
  run(*ops_, layer, x.slice(0, 2), {{1, 2}, {2, 4}}, {0.5f, 0.5f, 0.9f, 0.1f}, plain.matrix());
  run(*ops_, layer, x.matrix(), {{1, 2}, {2, 4}, {}, {}}, {0.5f, 0.5f, 0.9f, 0.1f}, padded.matrix());
  EXPECT_TRUE(same_bits(plain.row(0), padded.row(0), 2 * kWidth));
  EXPECT_EQ(padded.at(2, 5), 0.0f);
  EXPECT_EQ(padded.at(3, 0), 0.0f);
}

// Known problem T6: rows with fewer slots than others, down to none, between full ones. What is not there is not read:
// other rows keep their bits, and rows without slots are zeros and not what was there before.
TEST_P(Experts, T6RowsWithFewerSlotsOrNoneReadNothingElse) {
  const Layer layer(Format::kBF16);
  const Choice choice = {{}, {5, 0, 2}, {}, {3}, {1, 2, 4}, {}};
  const std::vector<float> weights = {0.2f, 0.5f, 0.3f, 1.0f, 0.25f, 0.25f, 0.5f};
  Rows x(6, kWidth, 61), out(6, kWidth, 62), alone(6, kWidth, 63);
  for (float& v : out.data) v = 1e30f;
  run(*ops_, layer, x.matrix(), choice, weights, out.matrix());
  run(*ops_, layer, x.slice(1, 1), {choice[1]}, {0.2f, 0.5f, 0.3f}, alone.slice(1, 1));
  run(*ops_, layer, x.slice(3, 1), {choice[3]}, {1.0f}, alone.slice(3, 1));
  run(*ops_, layer, x.slice(4, 1), {choice[4]}, {0.25f, 0.25f, 0.5f}, alone.slice(4, 1));
  for (const int t : {1, 3, 4}) EXPECT_TRUE(same_bits(out.row(t), alone.row(t), kWidth)) << t;
  for (const int t : {0, 2, 5}) {
    for (int d = 0; d < kWidth; ++d) EXPECT_EQ(out.at(t, d), 0.0f) << t;
  }
}

// A number that is no expert is our own mistake, and is found before a weight is read.
TEST(KnownProblemT6, NumbersThatAreNoExpertAreFoundBeforeAWeightIsRead) {
  const Layer layer(Format::kBF16);
  const auto ops = make_cpu_ops(1, "auto");
  Rows x(1, kWidth, 64), out(1, kWidth, 65);
  const std::vector<float> weights = {1.0f};
  const auto run_one = [&](int expert) {
    ops->experts(x.matrix(), layer.experts(), select({{expert}}), weights, out.matrix());
  };
  run_one(kE - 1);
  EXPECT_DEATH(run_one(-1), "expert >= 0");
  EXPECT_DEATH(run_one(kE), "expert < experts");
}

TEST_P(Experts, TheDenseBlockIsOneExpertOfAllRows) {
  const Layer layer(Format::kBF16);
  for (const int rows : {1, 6, 40}) {
    Rows x(rows, kWidth, 27, 1), dense(rows, kWidth, 28, 2), routed(rows, kWidth, 29);
    ops_->dense_mlp(x.matrix(), layer.gate_up[2], layer.down[2], dense.matrix());
    const Choice choice(static_cast<size_t>(rows), {2});
    run(*ops_, layer, x.matrix(), choice, std::vector<float>(static_cast<size_t>(rows), 1.0f), routed.matrix());
    for (int t = 0; t < rows; ++t) {
      for (int d = 0; d < kWidth; ++d) ASSERT_EQ(dense.at(t, d), routed.at(t, d));
    }
  }
}

TEST_P(Experts, QuantizedActivationsStayNearTheFloatOnes) {
  const auto exact = make_cpu_ops(GetParam().threads, GetParam().isa, Activations::kFloat);
  for (const Format format :
       {Format::kQ8_0, Format::kQ4_0, Format::kNVFP4, Format::kMXFP4, Format::kQ4_K, Format::kQ6_K}) {
    const Layer& layer = layer_of(format);
    const Choice choice = random_choice(17, 40);
    const std::vector<float> weights = random_values(slots(choice), 41);
    Rows x(17, layer.width, 42), codes(17, layer.width, 43), floats(17, layer.width, 44);
    run(*exact, layer, x.matrix(), choice, weights, floats.matrix());
    expect_near_oracle(layer, choice, weights, x, floats);
    run(*ops_, layer, x.matrix(), choice, weights, codes.matrix());
    double error = 0, size = 0;
    for (int t = 0; t < 17; ++t) {
      for (int d = 0; d < layer.width; ++d) {
        error += std::pow(codes.at(t, d) - floats.at(t, d), 2);
        size += std::pow(floats.at(t, d), 2);
      }
    }
    // Uniform error of half a code of normally distributed values whose largest of 128 is near 2.7: 0.6 % of a value
    // for each of two quantisations, and twice that through the product of gate and up.
    EXPECT_LT(std::sqrt(error / size), 0.03) << info(format).name;
    EXPECT_GT(error, 0) << info(format).name;
  }
}

TEST_P(Experts, AStepAllocatesNothingOnceTheLargestBatchHasBeenSeen) {
#ifdef CARPOOL_SANITIZED
  GTEST_SKIP() << "a sanitizer owns operator new";
#endif
  for (const Format format : {Format::kBF16, Format::kQ4_0}) {
    const Layer layer(format);
    const Choice choice = random_choice(65, 30), small = random_choice(9, 31);
    const std::vector<float> weights = random_values(slots(choice), 32);
    Rows x(65, layer.width, 33), out(65, layer.width, 34);
    const Selection large_chosen = select(choice), small_chosen = select(small);
    const std::span<const float> small_weights = std::span(weights).first(slots(small));
    const auto step = [&] {
      ops_->experts(x.matrix(), layer.experts(), large_chosen, weights, out.matrix());
      ops_->experts(x.slice(0, 9), layer.experts(), small_chosen, small_weights, out.slice(0, 9));
      ops_->dense_mlp(x.matrix(), layer.gate_up[0], layer.down[0], out.matrix());
      multiply(*ops_, x.slice(0, 20), layer.matrix(1, 0), {out.data.data(), 20, layer.hidden, layer.width});
    };
    step();
    const int64_t before = allocations;
    step();
    EXPECT_EQ(allocations - before, 0) << info(format).name;
  }
}

INSTANTIATE_TEST_SUITE_P(CpuOps, Experts, testing::ValuesIn(all_backends()),
                         [](const auto& param) { return backend_name(param.param); });

}  // namespace
}  // namespace carpool::test
