#include "cli/bench.h"

#include <gtest/gtest.h>

#include "backend/ops.h"
#include "base/error.h"

namespace carpool {
namespace {

template <class Parse>
void expect_refused(const std::string& part, const Parse& parse) {
  try {
    parse();
    ADD_FAILURE() << "accepted: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kConfig) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(BenchOptions, FormatsAreNamesOrAll) {
  EXPECT_EQ(parse_formats({"all"}).size(), static_cast<size_t>(kFormatCount));
  EXPECT_EQ(parse_formats({"q4_0", "bf16"}), (std::vector{Format::kQ4_0, Format::kBF16}));
  expect_refused("no format \"q5\"; there are f32, bf16", [] { parse_formats({"q4_0", "q5"}); });
  expect_refused("no format \"\"", [] { parse_formats({""}); });
}

TEST(BenchOptions, InstructionSetsAreThoseOfThisMachineOrAll) {
  EXPECT_EQ(parse_isas({"all"}), cpu_isa_names());
  EXPECT_EQ(parse_isas({"scalar"}), std::vector<std::string>{"scalar"});
  expect_refused("no instruction set \"mmx\" here; there are scalar", [] { parse_isas({"mmx"}); });
}

TEST(BenchOptions, MatricesAreInputsByOutputs) {
  EXPECT_EQ(parse_matrix("2048x1536"), (std::pair<int64_t, int64_t>{2048, 1536}));
  for (const char* text : {"", "2048", "2048x", "x1536", "2048x1536x1", "2048X1536", "0x1", "1x-1", "1 x1"}) {
    expect_refused("the shape of a matrix is KxN", [&] { parse_matrix(text); });
  }
}

}  // namespace
}  // namespace carpool
