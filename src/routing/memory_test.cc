// select(), score(), finish_weights() and count() must not allocate once they have seen the largest batch.
//
// Replaces the global operator new of this test program with one that counts while a flag is up. Under a sanitizer,
// which has an operator new of its own, there is nothing to count and the tests skip.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "routing/cases_test_util.h"
#include "routing/counters.h"
#include "routing/policy.h"
#include "routing/policy_set.h"
#include "routing/scoring.h"
#include "routing/tables_test_util.h"

#ifndef CARPOOL_SANITIZED
namespace {
bool counting = false;
int allocations = 0;

void* allocate_quietly(size_t bytes) noexcept {
  if (counting) ++allocations;
  return std::malloc(bytes ? bytes : 1);
}
void* allocate(size_t bytes) {
  if (void* memory = allocate_quietly(bytes)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate_quietly(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate_quietly(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace carpool {
namespace {

TEST(Memory, NothingIsAllocatedAfterTheLargestBatchWasSeen) {
  constexpr int kExperts = 64, kTopK = 8, kRows = 24;
  test::Rng rng(5);
  std::vector<float> logits(kExperts * kRows), rank(logits.size()), mix(logits.size()), weights(kRows * kExperts);
  std::vector<TokenInfo> tokens(kRows);
  Scoring scoring{.kind = Scoring::Kind::kSigmoid, .n_group = 8, .topk_group = 4};
  for (const PolicyInfo& info : policy_list()) {
    for (const std::string& spec : info.examples) {
      const auto policy = make_policy(spec);
      test::prepare(*policy, kExperts, kTopK, 1);
      Scratch scratch;
      Selection chosen, plain;
      RoutingCounters counters;
      const auto step = [&](size_t rows) {
        for (float& x : logits) x = static_cast<float>(test::below(rng, 4096)) / 512 - 4;
        for (size_t t = 0; t < rows; ++t) tokens[t] = {Phase::kDecode, t % 7 == 6, static_cast<int>(t % 3)};
        const size_t n = rows * kExperts;
        score(scoring, kExperts, std::span(logits).first(n), std::span(rank).first(n), std::span(mix).first(n));
        const RouterInput in{
            std::span(rank).first(n), std::span(mix).first(n), std::span(tokens).first(rows), kExperts, kTopK, 0};
        policy->select(in, scratch, chosen);
        select_plain(in, scratch, plain);
        finish_weights(scoring, kExperts, std::span(mix).first(n), chosen,
                       std::span(weights).first(static_cast<size_t>(chosen.size())));
        count(in, plain, chosen, scratch, counters);
      };
      step(kRows);  // warm-up
      allocations = 0;
      counting = true;
      for (size_t rows : {24, 1, 16, 24}) step(rows);
      counting = false;
      EXPECT_EQ(allocations, 0) << spec;
    }
  }
}

TEST(Memory, SeveralPoliciesInOneStepAllocateNothingEither) {
  constexpr int kExperts = 64, kTopK = 8, kRows = 24;
  test::Rng rng(6);
  std::vector<float> scores(kExperts * kRows);
  std::vector<TokenInfo> tokens(kRows);
  std::vector<RowRouting> row_routing(kRows);
  const auto topk = make_policy("topk"), oea = make_policy("oea:k0=3");
  const PolicySet set({topk.get(), oea.get()});
  Scratch scratch;
  Selection chosen, plain;
  RoutingCounters counters;
  const auto step = [&](size_t rows, int policies) {
    for (float& x : scores) x = static_cast<float>(test::below(rng, 4096));
    for (size_t t = 0; t < rows; ++t) {
      tokens[t] = {Phase::kDecode, t % 7 == 6, static_cast<int>(t % 3), static_cast<int>(t) % policies};
    }
    const auto x = std::span<const float>(scores).first(rows * kExperts);
    const RouterInput in{x, x, std::span<const TokenInfo>(tokens).first(rows), kExperts, kTopK, 0};
    set.select(in, scratch, chosen);
    select_plain(in, scratch, plain);
    count(in, plain, chosen, scratch, counters, std::span(row_routing).first(rows));
  };
  step(kRows, 2);  // warm-up
  allocations = 0;
  counting = true;
  for (size_t rows : {24, 1, 16, 24}) {
    for (const int policies : {1, 2}) step(rows, policies);
  }
  counting = false;
  EXPECT_EQ(allocations, 0);
}

TEST(Memory, TheCountingAllocatorCounts) {
  allocations = 0;
  counting = true;
  std::vector<int> v(100);
  counting = false;
  EXPECT_EQ(v.size(), 100u);
  EXPECT_EQ(allocations, 1);
}

}  // namespace
}  // namespace carpool
#else
TEST(Memory, NothingIsAllocatedAfterTheLargestBatchWasSeen) { GTEST_SKIP() << "a sanitizer owns operator new"; }
TEST(Memory, SeveralPoliciesInOneStepAllocateNothingEither) { GTEST_SKIP() << "a sanitizer owns operator new"; }
#endif  // CARPOOL_SANITIZED
