// Policies: any text is a spec or a kConfig Error, a canonical spec makes the same policy again, and on any scores the
// policy keeps everything that its properties promise (src/routing/contract_test_util.h).
#include "base/error.h"
#include "fuzz.h"
#include "routing/contract_test_util.h"
#include "routing/policy.h"

namespace carpool {
namespace {

float score_of(fuzz::Bytes& bytes) {
  const unsigned b = bytes.byte();
  static constexpr float kSpecial[] = {test::kNan, test::kInf, -test::kInf, -0.0f, 1e-45f, 3e38f, -3e38f, 1};
  return b >= 248 ? kSpecial[b - 248] : static_cast<float>(b % 31) / 4;
}

test::Case case_of(fuzz::Bytes& bytes) {
  test::Case c;
  c.n_experts = 1 + bytes.below(20);
  c.top_k = 1 + bytes.below(std::min(c.n_experts, 8));
  const bool independent = bytes.below(4) == 0;
  while (!bytes.empty() && c.rows() < 8) {
    const unsigned kind = bytes.byte();
    TokenInfo token;
    if (kind % 8 == 1) token.phase = Phase::kPrefill;
    if (kind % 8 == 2) token.phase = Phase::kPad;
    token.isolated = kind / 8 % 8 == 1;
    token.group = static_cast<int>(kind / 64);
    std::vector<float> rank, weight;
    float sum = 0;
    for (int e = 0; e < c.n_experts; ++e) {
      rank.push_back(score_of(bytes));
      const bool possible = rank.back() > -test::kInf;
      weight.push_back(!possible     ? 0
                       : independent ? static_cast<float>(bytes.byte() % 8)
                                     : std::exp(std::min(rank.back(), 8.0f)));
      sum += weight.back();
    }
    if (!independent && sum > 0) {
      for (float& w : weight) w /= sum;
    }
    c.add_row(rank, weight, token);
  }
  return c;
}

}  // namespace
}  // namespace carpool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  if (size > 2048) return 0;
  fuzz::Bytes bytes(data, size);
  const std::string spec(bytes.until("\n"));
  std::unique_ptr<Policy> policy;
  try {
    policy = make_policy(spec);
  } catch (const Error& error) {
    FUZZ_CHECK(error.kind() == ErrorKind::kConfig, error.what());
  }
  if (!policy) return 0;
  FUZZ_CHECK(make_policy(policy->spec())->spec() == policy->spec(), policy->spec() + " of " + escape(spec));
  const test::Case c = case_of(bytes);
  test::prepare(*policy, c.n_experts, c.top_k, size);  // with the tables that the checker expects
  try {
    policy->check(c.n_experts, c.top_k);
  } catch (const Error& error) {
    FUZZ_CHECK(error.kind() == ErrorKind::kConfig, error.what());
    return 0;
  }
  const auto violations = test::Checker(*policy, policy->properties(), c, size).violations();
  FUZZ_CHECK(violations.empty(), policy->spec() + ": " + violations[0]);
  return 0;
}
