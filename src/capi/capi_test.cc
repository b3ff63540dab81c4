// The C API as a program calls it: the engine's ids and weights on random batches of every kind, clear refusals, many
// threads, and no allocation.
//
// Replaces malloc of this test program with one that counts while a flag is up; the library's own operator new ends
// there. Under a sanitizer, which has a malloc of its own, there is nothing to count and the test skips.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <unordered_map>

#include "capi/capi_test_util.h"
#include "capi/half.h"

#ifndef CARPOOL_SANITIZED
namespace {
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};
}  // namespace
extern "C" void* __libc_malloc(size_t bytes) noexcept;
extern "C" void* malloc(size_t bytes) noexcept {
  if (counting) ++allocations;
  return __libc_malloc(bytes);
}
#endif

namespace carpool {
namespace {

using capi_test::Input;
using capi_test::Output;
using test::below;
using test::chance;
using test::Rng;

struct Destroy {
  void operator()(carpool_routing* routing) const { carpool_routing_destroy(routing); }
};
using Handle = std::unique_ptr<carpool_routing, Destroy>;

Handle create(const std::string& policy, const carpool_routing_model& model) {
  carpool_routing* routing = nullptr;
  carpool_routing_error error;
  const int32_t status = carpool_routing_create(policy.c_str(), &model, &routing, &error);
  EXPECT_EQ(status, CARPOOL_ROUTING_OK) << error.text;
  EXPECT_EQ(error.status, status);
  return Handle(routing);
}

carpool_routing_model simple_model(int n_experts, int top_k) {
  carpool_routing_model m;
  carpool_routing_model_init(&m, sizeof m);
  m.n_experts = n_experts;
  m.top_k = top_k;
  return m;
}

// The inverse of the conversion under test, which has a test of its own below; 0 for what f16 cannot say.
uint16_t to_f16(float x) {
  static const std::unordered_map<uint32_t, uint16_t> codes = [] {
    std::unordered_map<uint32_t, uint16_t> map;
    for (uint32_t c = 0; c < 65536; ++c) {
      const auto code = static_cast<uint16_t>(c);
      map.emplace(std::bit_cast<uint32_t>(capi::from_f16(code)), code);
    }
    return map;
  }();
  const auto found = codes.find(std::bit_cast<uint32_t>(x));
  return found == codes.end() ? uint16_t{0} : found->second;
}

// The logits of `in` in their type, rows `stride` apart.
std::vector<uint8_t> encode(const Input& in, size_t stride) {
  const size_t width = in.type == CARPOOL_ROUTING_F32 ? 4 : 2, E = static_cast<size_t>(in.model.n_experts);
  std::vector<uint8_t> bytes(static_cast<size_t>(in.rows()) * stride * width, 0xff);
  for (size_t i = 0; i < in.logits.size(); ++i) {
    const float x = in.logits[i];
    uint8_t* to = bytes.data() + (i / E * stride + i % E) * width;
    if (in.type == CARPOOL_ROUTING_F32) std::memcpy(to, &x, 4);
    const uint16_t bf16 = capi_test::to_bf16(x);
    if (in.type == CARPOOL_ROUTING_BF16) std::memcpy(to, &bf16, 2);
    const uint16_t f16 = to_f16(x);
    if (in.type == CARPOOL_ROUTING_F16) std::memcpy(to, &f16, 2);
  }
  return bytes;
}

// Where the buffers of one call lie.
struct Layout {
  int columns = 0;
  size_t logits_stride = 0, ids_stride = 0, weights_stride = 0;
};

Output call(carpool_routing* routing, const Input& in, const Layout& layout, const Output* in_place = nullptr) {
  const std::vector<uint8_t> logits = encode(in, layout.logits_stride);
  const auto T = static_cast<size_t>(in.rows()), C = static_cast<size_t>(layout.columns);
  std::vector<int32_t> ids(T * layout.ids_stride, -77);
  std::vector<float> weights(T * layout.weights_stride, -77);
  Output out;
  out.reasons.resize(T);
  for (size_t i = 0; in_place && i < T * C; ++i) {
    ids[i / C * layout.ids_stride + i % C] = in_place->ids[i];
    weights[i / C * layout.weights_stride + i % C] = in_place->weights[i];
  }
  carpool_routing_batch batch;
  carpool_routing_batch_init(&batch, sizeof batch);
  batch.rows = in.rows();
  batch.logits_type = in.type;
  batch.logits = logits.data();
  batch.logits_stride = static_cast<int64_t>(layout.logits_stride);
  batch.bias = in.bias.empty() ? nullptr : in.bias.data();
  batch.row_flags = in.flags.data();
  batch.row_groups = in.groups.data();
  batch.ids = ids.data();
  batch.weights = weights.data();
  batch.ids_stride = static_cast<int64_t>(layout.ids_stride);
  batch.weights_stride = static_cast<int64_t>(layout.weights_stride);
  batch.columns = layout.columns;
  batch.in_place = in_place != nullptr;
  batch.layer = in.layer;
  batch.reasons = out.reasons.data();
  carpool_routing_error error;
  EXPECT_EQ(carpool_routing_route(routing, &batch, &error), CARPOOL_ROUTING_OK) << error.text;
  for (size_t t = 0; t < T; ++t) {
    for (size_t c = 0; c < layout.ids_stride; ++c) {
      if (c < C) {
        out.ids.push_back(ids[t * layout.ids_stride + c]);
      } else {
        EXPECT_EQ(ids[t * layout.ids_stride + c], -77) << "wrote between rows";
      }
    }
    for (size_t c = 0; c < layout.weights_stride; ++c) {
      if (c < C) {
        out.weights.push_back(weights[t * layout.weights_stride + c]);
      } else {
        EXPECT_EQ(weights[t * layout.weights_stride + c], -77) << "wrote between rows";
      }
    }
  }
  return out;
}

bool same(const Output& a, const Output& b) {
  const auto bits = [](float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); };
  return a.ids == b.ids && a.reasons == b.reasons &&
         std::equal(a.weights.begin(), a.weights.end(), b.weights.begin(), b.weights.end(), bits);
}

// What routing in place must leave: `own` where the policy decided nothing and in the columns of shared experts.
Output kept(const Input& in, const Output& own, Output want, int columns) {
  const size_t C = static_cast<size_t>(columns), routed = C - static_cast<size_t>(in.model.n_shared);
  for (size_t i = 0; i < want.ids.size(); ++i) {
    if (want.reasons[i / C] == 0 && i % C < routed) continue;
    want.ids[i] = own.ids[i];
    want.weights[i] = own.weights[i];
  }
  return want;
}

TEST(CApi, RandomBatchesAgreeWithTheEngine) {
  const char* wanted = std::getenv("CARPOOL_ROUTING_CASES");
  const int64_t cases = wanted ? std::atoll(wanted) : 5'000;
  ASSERT_GT(cases, 0) << "CARPOOL_ROUTING_CASES must be a positive number";
  int64_t rows = 0, applied = 0, fillers = 0;
  for (int64_t i = 0; i < cases; ++i) {
    Rng rng(static_cast<uint64_t>(i) + 77'000);
    const Input in = capi_test::random_input(rng);
    const Handle routing = create(in.policy, in.model);
    ASSERT_TRUE(routing);
    const bool gaps = chance(rng, 30);
    const int columns = carpool_routing_columns(routing.get()) + (gaps ? below(rng, 3) : 0);
    const auto stride = [&](int least) { return static_cast<size_t>(least + (gaps ? below(rng, 4) : 0)); };
    const Layout layout{columns, stride(in.model.n_experts), stride(columns), stride(columns)};
    const Output want = capi_test::engine_output(in, columns);
    ASSERT_TRUE(same(call(routing.get(), in, layout), want)) << in.policy << ", case " << i;

    Output own;  // the caller's own choice, in no order
    for (size_t s = 0; s < want.ids.size(); ++s) own.ids.push_back(below(rng, in.model.n_experts));
    own.weights.assign(want.weights.size(), 0.125f);
    ASSERT_TRUE(same(call(routing.get(), in, layout, &own), kept(in, own, want, columns)))
        << in.policy << ", case " << i;
    rows += in.rows();
    for (const uint8_t reason : want.reasons) applied += reason == 0;
    for (const int32_t id : want.ids) fillers += id == -1;
  }
  EXPECT_GT(applied, rows / 5);
  EXPECT_GT(fillers, 0);
}

TEST(CApi, TwoByteFloatsAreConvertedExactly) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const int exponent = static_cast<int>(code >> 10 & 31), fraction = static_cast<int>(code & 1023);
    const double sign = code & 0x8000 ? -1 : 1;
    const float got = capi::from_f16(static_cast<uint16_t>(code));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), fraction != 0);
      EXPECT_EQ(std::isinf(got), fraction == 0);
      EXPECT_EQ(std::signbit(got), sign < 0);
      continue;
    }
    const double want = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    EXPECT_EQ(got, static_cast<float>(sign * want)) << code;
    EXPECT_EQ(std::signbit(got), sign < 0);
  }
  EXPECT_EQ(capi::from_bf16(0x3f80), 1.0f);
  EXPECT_EQ(capi::from_bf16(0xc2c8), -100.0f);
}

// `change` makes a good request bad; the status and a part of the text must come back, and nothing may be written.
template <class Change>
void expect_refused(int32_t status, const std::string& text, Change&& change) {
  const Handle routing = create("oea:k0=2,k_max=6", simple_model(8, 4));
  std::vector<float> logits(24), weights(24, -77);
  std::vector<int32_t> ids(24, -77);
  uint8_t flags[3] = {};
  float bias[8] = {};
  carpool_routing_batch b;
  carpool_routing_batch_init(&b, sizeof b);
  b.rows = 3;
  b.logits = logits.data();
  b.ids = ids.data();
  b.weights = weights.data();
  b.columns = 6;
  b.row_flags = flags;
  b.bias = bias;
  carpool_routing_error error;
  ASSERT_EQ(carpool_routing_route(routing.get(), &b, &error), CARPOOL_ROUTING_OK) << error.text;
  EXPECT_STREQ(error.text, "");
  std::fill(ids.begin(), ids.end(), -77);
  change(b, flags, bias);
  EXPECT_EQ(carpool_routing_route(routing.get(), &b, &error), status) << text;
  EXPECT_EQ(error.status, status);
  EXPECT_NE(std::string(error.text).find(text), std::string::npos) << error.text;
  EXPECT_EQ(ids, std::vector<int32_t>(24, -77));
}

TEST(CApi, ABadBatchIsRefusedInOneSentenceAndNothingIsWritten) {
  constexpr int32_t kBad = CARPOOL_ROUTING_BAD_ARGUMENT;
  using Batch = carpool_routing_batch;
  expect_refused(kBad, "batch has size 7", [](Batch& b, auto&&...) { b.size = 7; });
  expect_refused(kBad, "rows -1 must be", [](Batch& b, auto&&...) { b.rows = -1; });
  expect_refused(kBad, "logits_type 3", [](Batch& b, auto&&...) { b.logits_type = 3; });
  expect_refused(kBad, "logits is NULL", [](Batch& b, auto&&...) { b.logits = nullptr; });
  expect_refused(kBad, "ids is NULL", [](Batch& b, auto&&...) { b.ids = nullptr; });
  expect_refused(kBad, "weights is NULL", [](Batch& b, auto&&...) { b.weights = nullptr; });
  const auto shifted = [](auto* pointer) { return reinterpret_cast<decltype(pointer)>(uintptr_t(pointer) + 1); };
  expect_refused(kBad, "logits does not lie at a multiple of 4",
                 [&](Batch& b, auto&&...) { b.logits = shifted(b.logits); });
  expect_refused(kBad, "logits does not lie at a multiple of 2", [&](Batch& b, auto&&...) {
    b.logits_type = CARPOOL_ROUTING_F16;
    b.logits = shifted(b.logits);
  });
  expect_refused(kBad, "ids does not lie", [&](Batch& b, auto&&...) { b.ids = shifted(b.ids); });
  expect_refused(kBad, "weights does not lie", [&](Batch& b, auto&&...) { b.weights = shifted(b.weights); });
  expect_refused(kBad, "bias does not lie", [&](Batch& b, auto&&...) { b.bias = shifted(b.bias); });
  expect_refused(kBad, "row_groups does not lie", [&](Batch& b, auto&&...) { b.row_groups = shifted(b.ids); });
  expect_refused(kBad, "5 columns are too few", [](Batch& b, auto&&...) { b.columns = 5; });
  expect_refused(kBad, "logits_stride 7", [](Batch& b, auto&&...) { b.logits_stride = 7; });
  expect_refused(kBad, "stride of 5", [](Batch& b, auto&&...) { b.ids_stride = 5; });
  expect_refused(kBad, "stride of -1", [](Batch& b, auto&&...) { b.weights_stride = -1; });
  expect_refused(kBad, "row 1 has the unknown flags 8", [](Batch&, uint8_t* flags, float*) { flags[1] = 8; });
  expect_refused(kBad, "bias of expert 3", [](Batch&, uint8_t*, float* bias) { bias[3] = test::kNan; });
}

void expect_no_handle(int32_t status, const std::string& text, const char* policy, const carpool_routing_model& model) {
  carpool_routing* routing = reinterpret_cast<carpool_routing*>(1);
  carpool_routing_error error;
  EXPECT_EQ(carpool_routing_create(policy, &model, &routing, &error), status) << text;
  EXPECT_EQ(routing, nullptr);
  EXPECT_NE(std::string(error.text).find(text), std::string::npos) << error.text;
}

TEST(CApi, AListByLayerHasItsLayersAndNoOthers) {
  const Handle routing = create("oea:k0=1/0", simple_model(4, 2));
  const float logits[8] = {4, 3, 2, 1, 1, 4, 2, 3};
  int32_t ids[4];
  float weights[4];
  carpool_routing_batch b;
  carpool_routing_batch_init(&b, sizeof b);
  b.rows = 2;
  b.logits = logits;
  b.ids = ids;
  b.weights = weights;
  b.columns = 2;
  carpool_routing_error error;
  ASSERT_EQ(carpool_routing_route(routing.get(), &b, &error), CARPOOL_ROUTING_OK) << error.text;
  EXPECT_EQ((std::vector<int32_t>(ids, ids + 4)), (std::vector<int32_t>{0, 1, 1, 0}));
  b.layer = 1;
  ASSERT_EQ(carpool_routing_route(routing.get(), &b, &error), CARPOOL_ROUTING_OK) << error.text;
  EXPECT_EQ((std::vector<int32_t>(ids, ids + 4)), (std::vector<int32_t>{0, 1, 1, 3})) << "plain";
  b.layer = 2;
  EXPECT_EQ(carpool_routing_route(routing.get(), &b, &error), CARPOOL_ROUTING_BAD_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("layer 2 is none of the 2"), std::string::npos) << error.text;
}

TEST(CApi, AHandleThatCannotWorkIsNotMade) {
  const carpool_routing_model good = simple_model(8, 4);
  const auto with = [&](auto change) {
    carpool_routing_model m = good;
    change(m);
    return m;
  };
  using Model = carpool_routing_model;
  expect_no_handle(CARPOOL_ROUTING_BAD_POLICY, "unknown policy \"best\"", "best", good);
  expect_no_handle(CARPOOL_ROUTING_BAD_POLICY, "unknown argument \"x\"", "oea:x=1", good);
  expect_no_handle(CARPOOL_ROUTING_BAD_POLICY, "k0 5 is more than", "oea:k0=5", good);
  expect_no_handle(CARPOOL_ROUTING_BAD_ARGUMENT, "policy is NULL", nullptr, good);
  expect_no_handle(CARPOOL_ROUTING_BAD_ARGUMENT, "model has size 0", "topk", with([](Model& m) { m.size = 0; }));
  expect_no_handle(CARPOOL_ROUTING_BAD_ARGUMENT, "scoring 9", "topk", with([](Model& m) { m.scoring = 9; }));
  expect_no_handle(CARPOOL_ROUTING_BAD_ARGUMENT, "group_score 2", "topk", with([](Model& m) { m.group_score = 2; }));
  expect_no_handle(CARPOOL_ROUTING_BAD_ARGUMENT, "n_group 3", "topk", with([](Model& m) { m.n_group = 3; }));
  expect_no_handle(CARPOOL_ROUTING_BAD_ARGUMENT, "number of experts", "topk", with([](Model& m) { m.n_experts = 0; }));
  expect_no_handle(CARPOOL_ROUTING_BAD_ARGUMENT, "are more than", "topk",
                   with([](Model& m) { m.n_experts = 1 << 21; }));
  expect_no_handle(CARPOOL_ROUTING_BAD_ARGUMENT, "n_shared -1", "topk", with([](Model& m) { m.n_shared = -1; }));
  expect_no_handle(CARPOOL_ROUTING_BAD_ARGUMENT, "filler 2", "topk", with([](Model& m) { m.filler = 2; }));
  expect_no_handle(CARPOOL_ROUTING_BAD_ARGUMENT, "shared_weight", "topk",
                   with([](Model& m) { m.shared_weight = test::kInf; }));
  EXPECT_EQ(carpool_routing_create("topk", &good, nullptr, nullptr), CARPOOL_ROUTING_BAD_ARGUMENT);
  EXPECT_EQ(carpool_routing_route(nullptr, nullptr, nullptr), CARPOOL_ROUTING_BAD_ARGUMENT);
  carpool_routing_destroy(nullptr);
}

TEST(CApi, MoreSlotsThanFitAreRefusedBeforeAnythingIsRead) {
  const Handle routing = create("topk", simple_model(1024, 128));
  float logits[1] = {}, weights[1] = {};
  int32_t ids[1] = {};
  carpool_routing_batch b;
  carpool_routing_batch_init(&b, sizeof b);
  b.rows = 1 << 24;
  b.logits = logits;
  b.ids = ids;
  b.weights = weights;
  b.columns = 128;
  carpool_routing_error error;
  EXPECT_EQ(carpool_routing_route(routing.get(), &b, &error), CARPOOL_ROUTING_BAD_ARGUMENT);
  EXPECT_STREQ(error.text, "16777216 rows of 128 experts are more than 1073741824 slots");
}

TEST(CApi, AHandleTellsWhatItIs) {
  carpool_routing_model m = simple_model(8, 4);
  m.n_shared = 1;
  const Handle routing = create("oea:k0=2,min_batch=2,k_max=6", m);
  EXPECT_STREQ(carpool_routing_spec(routing.get()), "oea:k0=2,k_max=6");
  EXPECT_EQ(carpool_routing_columns(routing.get()), 7);
  EXPECT_EQ(carpool_routing_columns(create("oea:k0=2,k_max=3", m).get()), 5);
  EXPECT_EQ(carpool_routing_abi(), CARPOOL_ROUTING_ABI);
  EXPECT_STREQ(carpool_routing_version(), CARPOOL_VERSION);
  size_t n = 0;
  for (; carpool_routing_policy_name(static_cast<int32_t>(n)); ++n) {
    EXPECT_EQ(carpool_routing_policy_name(static_cast<int32_t>(n)), policy_list()[n].name);
    EXPECT_EQ(carpool_routing_policy_summary(static_cast<int32_t>(n)), policy_list()[n].summary);
  }
  EXPECT_EQ(n, policy_list().size());
  EXPECT_EQ(carpool_routing_policy_name(-1), nullptr);
  EXPECT_EQ(carpool_routing_policy_summary(-1), nullptr);
  for (int32_t r = 0; r < kPlainReasons; ++r) {
    EXPECT_STREQ(carpool_routing_reason_name(r), name(static_cast<PlainReason>(r)));
  }
  EXPECT_EQ(carpool_routing_reason_name(kPlainReasons), nullptr);
}

// A batch of 16 rows and 256 experts as GLM-5 routes them, without the copies that `call` makes.
struct Glm5 {
  std::vector<float> logits = std::vector<float>(16 * 256), bias = std::vector<float>(256);
  std::vector<int32_t> ids = std::vector<int32_t>(16 * 8);
  std::vector<float> weights = std::vector<float>(16 * 8);
  carpool_routing_batch batch;

  explicit Glm5(uint64_t seed) {
    Rng rng(seed);
    for (float& x : logits) x = static_cast<float>(below(rng, 4096)) / 512 - 4;
    for (float& b : bias) b = 7 + static_cast<float>(below(rng, 256)) / 1024;
    carpool_routing_batch_init(&batch, sizeof batch);
    batch.rows = 16;
    batch.logits = logits.data();
    batch.bias = bias.data();
    batch.ids = ids.data();
    batch.weights = weights.data();
    batch.columns = 8;
  }
  static Handle handle() {
    carpool_routing_model m = simple_model(256, 8);
    m.scoring = CARPOOL_ROUTING_SIGMOID;
    m.routed_scaling_factor = 2.5f;
    return create("oea:k0=5", m);
  }
};

TEST(CApi, ManyThreadsShareAHandle) {
  constexpr int kThreads = 4, kCalls = 200;
  const Handle routing = Glm5::handle();
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < kThreads; ++i) {
    Glm5 g(static_cast<uint64_t>(i));
    ASSERT_EQ(carpool_routing_route(routing.get(), &g.batch, nullptr), CARPOOL_ROUTING_OK);
    alone.push_back(g.ids);
  }
  carpool_routing_counters before{}, after{};
  before.size = after.size = sizeof before;
  ASSERT_EQ(carpool_routing_get_counters(routing.get(), &before, nullptr), CARPOOL_ROUTING_OK);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Glm5 g(static_cast<uint64_t>(i));
      for (int call = 0; call < kCalls; ++call) {
        std::fill(g.ids.begin(), g.ids.end(), -5);
        const int32_t status = carpool_routing_route(routing.get(), &g.batch, nullptr);
        if (status != CARPOOL_ROUTING_OK || g.ids != alone[static_cast<size_t>(i)]) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  ASSERT_EQ(carpool_routing_get_counters(routing.get(), &after, nullptr), CARPOOL_ROUTING_OK);
  EXPECT_EQ(before.calls, kThreads);
  EXPECT_EQ(after.calls, kThreads * (1 + kCalls));
  EXPECT_EQ(after.plain_rows[0], 16 * kThreads * (1 + kCalls));
  EXPECT_EQ(after.distinct_experts, before.distinct_experts * (1 + kCalls));
  EXPECT_LT(after.distinct_experts, after.distinct_plain);
  EXPECT_GT(after.rerouted_rows, 0);
  carpool_routing_reset_counters(routing.get());
  ASSERT_EQ(carpool_routing_get_counters(routing.get(), &after, nullptr), CARPOOL_ROUTING_OK);
  EXPECT_EQ(after.calls + after.slots + after.plain_rows[0], 0);
  after.size = 1;
  EXPECT_EQ(carpool_routing_get_counters(routing.get(), &after, nullptr), CARPOOL_ROUTING_BAD_ARGUMENT);
}

TEST(CApi, NothingIsAllocatedAfterWarmUp) {
#ifdef CARPOOL_SANITIZED
  GTEST_SKIP() << "a sanitizer owns malloc";
#else
  const Handle routing = Glm5::handle();
  Glm5 g(9);
  ASSERT_EQ(carpool_routing_route(routing.get(), &g.batch, nullptr), CARPOOL_ROUTING_OK);
  allocations = 0;
  counting = true;
  void* probe = std::malloc(10);
  const int seen = allocations;
  for (const int rows : {16, 1, 7, 16}) {
    g.batch.rows = rows;
    g.batch.bias = rows == 7 ? nullptr : g.bias.data();
    if (carpool_routing_route(routing.get(), &g.batch, nullptr) != CARPOOL_ROUTING_OK) ++allocations;
  }
  counting = false;
  std::free(probe);
  EXPECT_EQ(seen, 1) << "the counter counts nothing";
  EXPECT_EQ(allocations, 1);
#endif
}

}  // namespace
}  // namespace carpool
