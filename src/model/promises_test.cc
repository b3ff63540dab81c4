// The promises that hold to the bit at the level of logits: a row is a row, plain means plain, padding is nothing,
// isolated rows neither lend nor borrow, cold copies change nothing, and a step allocates nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "model/golden_test_util.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Counts every allocation of the test program; see AStepAllocatesNothingAfterWarmUp.
void* operator new(size_t n) {
  ++allocations;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace carpool {
namespace {

using namespace golden;  // NOLINT(google-build-using-namespace)

constexpr int kSteps = 12;      // of most tests
constexpr int kManySteps = 64;  // where the promise is about a whole text

// Decodes `tokens` one by one beside `neighbours` sequences that join at step n and leave at step 2n, under `policy`.
// Returns the row's logits of every step. `info` is the row's own.
struct Company {
  int neighbours = 0;
  int pads = 0;
  unsigned seed = 1;
  bool isolated = false;
  bool neighbours_isolated = false;
  int steps = kSteps;
};

std::vector<std::vector<float>> decode_in_company(Model& model, const Policy& policy, const std::vector<int>& tokens,
                                                  const Company& company) {
  KvCache kv(model.config(), int64_t{KvCache::kBlockTokens} * 5 * (company.neighbours + 1));
  Place own(kv, company.steps);
  std::vector<Place> places;
  for (int n = 0; n < company.neighbours; ++n) places.emplace_back(kv, company.steps);
  RoutingCounters counters;
  std::vector<std::vector<float>> out;
  Rows rows;
  for (int t = 0; t < company.steps; ++t) {
    rows.clear();
    int own_row = 0;
    for (int n = 0; n <= company.neighbours; ++n) {
      if (n == company.neighbours / 2) {
        own_row = static_cast<int>(rows.logit_rows.size());
        rows.push(tokens[static_cast<size_t>(t) % tokens.size()], t, own.blocks.data(),
                  {Phase::kDecode, company.isolated, 0}, true);
      }
      const int start = n % 4, age = t - start;  // neighbour n lives from step n % 4 on, some for 5 steps only
      if (n == company.neighbours || age < 0 || (n % 3 == 0 && age > 5)) continue;
      const int token = static_cast<int>(
          (company.seed * 7919u + static_cast<unsigned>(n) * 104729u + static_cast<unsigned>(t) * 1299709u) %
          static_cast<unsigned>(model.config().vocab));
      rows.push(token, age, places[static_cast<size_t>(n)].blocks.data(),
                {Phase::kDecode, company.neighbours_isolated, 0}, n % 2 == 0);
    }
    for (int p = 0; p < company.pads; ++p) rows.push(-1, -1, nullptr, {Phase::kPad, false, 0}, false);
    // The own row's place among logit rows: neighbours with even n before it have logits too.
    own_row = 0;
    int own_index = -1;
    for (size_t r = 0; r < rows.tokens.size(); ++r) {
      if (rows.block_tables[r] == own.blocks.data()) own_index = static_cast<int>(r);
    }
    while (rows.logit_rows[static_cast<size_t>(own_row)] != own_index) ++own_row;
    out.push_back(row_of(model.forward(rows, kv, policy, counters), own_row));
  }
  return out;
}

const std::vector<int> kTokens = {3, 17, 5, 90, 41, 2, 66, 8, 23, 71, 11, 50};

TEST(Promises, ARowIsARowAloneAndAmongNeighboursOnEveryIsaAndThreadCount) {
  const auto topk = make_policy("topk");
  for (const std::string& name : cases()) {
    for (const std::string& isa : cpu_isa_names()) {
      Model one = load(name, isa, 1);
      const auto alone = decode_in_company(one, *topk, kTokens, {});
      for (const int threads : {1, 2, 3}) {
        Model model = load(name, isa, threads);
        for (const int n : {1, 2, 3, 7, 16, 63}) {
          EXPECT_EQ(decode_in_company(model, *topk, kTokens, {n, n % 3}), alone)
              << name << " " << isa << " threads " << threads << " neighbours " << n;
        }
      }
    }
  }
}

TEST(Promises, ChunkSizesDoNotChangeTheBitsOfAnyPosition) {
  for (const std::string& name : cases()) {
    Model model = load(name);
    KvCache kv(model.config(), 4096);
    for (const GoldenPrompt& g : prompts(kFolder + "/" + name)) {
      Place whole(kv, 128);
      const auto expected = prefill(model, kv, whole, g.tokens, 512);
      for (const int chunk : {1, 3, 7, 16}) {
        Place place(kv, 128);
        EXPECT_EQ(prefill(model, kv, place, g.tokens, chunk), expected) << name << " chunk " << chunk;
        kv.give_back(place.blocks);
      }
      kv.give_back(whole.blocks);
    }
  }
}

TEST(Promises, PrefillAndDecodeOfTheSameTokensGiveTheSameBits) {
  Model model = load("float32_untied");
  KvCache kv(model.config(), 256);
  Place place(kv, kSteps);
  EXPECT_EQ(prefill(model, kv, place, kTokens, 5), decode_in_company(model, *make_policy("topk"), kTokens, {}));
}

TEST(Promises, PlainMeansPlainForK0EqualToKAndForABatchOfOne) {
  const auto company = [](int neighbours) { return Company{.neighbours = neighbours, .steps = kManySteps}; };
  for (const std::string& name : cases()) {
    Model model = load(name);
    const int K = model.config().top_k;
    const auto topk = make_policy("topk");
    const auto full = make_policy("oea:k0=" + std::to_string(K)), off = make_policy("oea:k0=0"),
               one = make_policy("oea:k0=1");
    const auto expected = decode_in_company(model, *topk, kTokens, company(0));
    EXPECT_EQ(decode_in_company(model, *one, kTokens, company(0)), expected) << name << ": a batch of one";
    for (const int n : {0, 3, 15}) {
      EXPECT_EQ(decode_in_company(model, *full, kTokens, company(n)), expected)
          << name << ": k0 = K, " << n << " neighbours";
      EXPECT_EQ(decode_in_company(model, *off, kTokens, company(n)), expected)
          << name << ": off, " << n << " neighbours";
    }
  }
}

TEST(Promises, SharedRoutingDependsOnNeighboursWhichShowsThatTheOtherTestsHavePower) {
  Model model = load("bf16_tied");
  const auto oea = make_policy("oea:k0=1,guard=off,min_batch=1");
  int different = 0;
  const auto first = decode_in_company(model, *oea, kTokens, {7, 0, 1});
  for (unsigned seed = 2; seed < 22; ++seed)
    different += decode_in_company(model, *oea, kTokens, {7, 0, seed}) != first;
  EXPECT_GT(different, 0);
}

TEST(Promises, AnIsolatedRowIsTheSameWhateverItsNeighboursAreUnderOea) {
  const auto oea = make_policy("oea:k0=1,guard=off,min_batch=1"), topk = make_policy("topk");
  for (const std::string& name : cases()) {
    Model model = load(name);
    const auto expected = decode_in_company(model, *topk, kTokens, {});
    for (unsigned seed = 1; seed < 6; ++seed) {
      EXPECT_EQ(decode_in_company(model, *oea, kTokens, {7, 2, seed, true}), expected) << name;
    }
  }
}

TEST(Promises, IsolatedNeighboursDoNotChangeARowUnderOea) {
  const auto oea = make_policy("oea:k0=1,guard=off,min_batch=1");
  Model model = load("bf16_tied");
  const auto alone = decode_in_company(model, *oea, kTokens, {});
  for (unsigned seed = 1; seed < 6; ++seed)
    EXPECT_EQ(decode_in_company(model, *oea, kTokens, {7, 0, seed, false, true}), alone);
}

TEST(Promises, PaddingRowsChangeNothingUnderOea) {
  const auto oea = make_policy("oea:k0=1");
  Model model = load("bf16_tied");
  const auto expected = decode_in_company(model, *oea, kTokens, {5});
  for (const int pads : {1, 8, 64}) EXPECT_EQ(decode_in_company(model, *oea, kTokens, {5, pads}), expected);
}

TEST(Promises, ColdCopiesOfTheExpertsKeepEveryBit) {
  const auto topk = make_policy("topk");
  Model model = load("bf16_tied");
  const auto expected = decode_in_company(model, *topk, kTokens, {3});
  model.set_cold_copies(3);
  EXPECT_EQ(model.weights().cold.size(), 3u);
  EXPECT_EQ(decode_in_company(model, *topk, kTokens, {3}), expected);
  model.set_cold_copies(0);
  EXPECT_TRUE(model.weights().cold_storage.empty());
}

TEST(Promises, CountersSayThatThePolicyRan) {
  Model model = load("bf16_tied");
  KvCache kv(model.config(), 64 * 16);
  std::vector<Place> places;
  Rows rows;
  for (int n = 0; n < 16; ++n) places.emplace_back(kv, 1);
  for (int n = 0; n < 16; ++n)
    rows.push(5 * n + 1, 0, places[static_cast<size_t>(n)].blocks.data(), {Phase::kDecode, false, 0}, false);
  RoutingCounters plain, oea;
  model.forward(rows, kv, *make_policy("topk"), plain);
  model.forward(rows, kv, *make_policy("oea:k0=1"), oea);
  EXPECT_EQ(plain.layers, model.config().moe_layers());
  EXPECT_EQ(plain.distinct_experts, plain.distinct_plain);
  EXPECT_EQ(plain.rerouted_tokens, 0);
  EXPECT_LT(oea.distinct_experts, oea.distinct_plain);
  EXPECT_GT(oea.rerouted_tokens, 0);
}

TEST(Promises, AStepAllocatesNothingAfterWarmUp) {
  for (const char* spec : {"topk", "oea:k0=1", "prune:k0=1"}) {
    const auto policy = make_policy(spec);
    Model model = load("bf16_tied");
    KvCache kv(model.config(), 64 * 16);
    std::vector<Place> places;
    Rows rows;
    for (int n = 0; n < 16; ++n) places.emplace_back(kv, 4);
    RoutingCounters counters;
    const auto step = [&](int t, int rows_in_step) {
      rows.clear();
      for (int n = 0; n < rows_in_step; ++n) {
        rows.push((5 * n + 31 * t + 1) % 90, t, places[static_cast<size_t>(n)].blocks.data(),
                  {Phase::kDecode, false, 0}, true);
      }
      const int64_t before = allocations;
      model.forward(rows, kv, *policy, counters);
      return allocations - before;
    };
    step(0, 16);
    EXPECT_EQ(step(1, 16), 0) << spec;
    EXPECT_EQ(step(2, 9), 0) << spec;
    EXPECT_EQ(step(3, 16), 0) << spec;
  }
}

}  // namespace
}  // namespace carpool
