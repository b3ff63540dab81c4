// GGUF tensors as a WeightSource: under other names, cut into experts, and their scales checked for NaN and infinity.
#include <gtest/gtest.h>

#include "io/test_files.h"
#include "io/test_gguf.h"
#include "io/weight_source.h"

namespace carpool {
namespace {

using namespace test;

class GgufSource : public testing::Test {
 protected:
  WeightSource open(const GgufParts& parts, const GgufNaming& naming) {
    return WeightSource::of_gguf(GgufSet::open(folder_.write("m.gguf", parts.bytes())), naming);
  }
  static GgufPlace as_is(const GgufTensor& t) { return {std::string(t.name), "", false, false}; }
  ScratchFolder folder_;
};

TEST_F(GgufSource, TensorsHaveTheNamesTheCallerGivesAndOnePerSlice) {
  GgufParts f;
  f.tensors = {{"w", 30, {4, 3}, std::string(24, 'w'), {}},
               {"exps", 2, {32, 2, 3}, std::string(36, '0') + std::string(36, '1') + std::string(36, '2'), {}},
               {"one", 0, {1}, raw(2.5f), {}}};
  const WeightSource source = open(f, [](const GgufTensor& t) {
    return t.name == "exps" ? GgufPlace{"e.", ".x", true, false}
                            : GgufPlace{"the_", std::string(t.name), false, t.name == "one"};
  });
  ASSERT_EQ(source.tensors().size(), 5u);
  EXPECT_EQ(source.find("the_w")->dtype, "BF16");
  EXPECT_EQ(source.find("the_w")->shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(source.find("exps"), nullptr);
  for (int e = 0; e < 3; ++e) {
    const TensorInfo* t = source.find("e." + std::to_string(e) + ".x");
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(t->dtype, "q4_0");
    EXPECT_EQ(t->shape, (std::vector<int64_t>{2, 32}));
    EXPECT_EQ(t->bytes, 36u);
    EXPECT_EQ(static_cast<char>(t->data[35]), '0' + e);
    EXPECT_EQ(t->file_offset, source.find("e.0.x")->file_offset + static_cast<size_t>(e) * 36);
  }
  EXPECT_TRUE(source.find("the_one")->shape.empty());
  EXPECT_EQ(source.total_bytes(), 24u + 108u + 4u);
  source.verify_unchanged();
  folder_.write("m.gguf", f.bytes() + "more");
  error_of(ErrorKind::kIo, [&] { source.verify_unchanged(); });
}

TEST_F(GgufSource, TwoTensorsOfOneNameAndScalarsOfSeveralNumbersAreRefused) {
  GgufParts f;
  f.tensors = {{"a", 0, {1}, "1234", {}}, {"b", 0, {2}, "12345678", {}}};
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kMalformed,
                        [&] { open(f, [](const GgufTensor&) { return GgufPlace{"same", "", false, false}; }); }),
               "two tensors stand for \"same\""));
  EXPECT_TRUE(contains(
      error_of(ErrorKind::kMalformed,
               [&] { open(f, [](const GgufTensor& t) { return GgufPlace{std::string(t.name), "", false, true}; }); }),
      "must be one number"));
}

TEST_F(GgufSource, SlicesAreLimited) {
  GgufParts f;
  f.tensors = {{"exps", 0, {1, (1 << 20) + 1}, std::string(((1 << 20) + 1) * 4, '\0'), {}}};
  EXPECT_TRUE(contains(error_of(ErrorKind::kMalformed,
                                [&] { open(f, [](const GgufTensor&) { return GgufPlace{"e", "", true, false}; }); }),
                       "1048577 slices"));
}

// A block whose scale is bad spoils all the elements it multiplies, and is found wherever it lies.
TEST_F(GgufSource, BadScalesOfEveryFormatOfBlocksAreFound) {
  struct Case {
    uint32_t type;
    size_t block_bytes, at, width;
    uint64_t elements, spoiled;
    uint16_t infinite, largest;  // bit patterns of the scale
  };
  const Case cases[] = {{8, 34, 0, 2, 32, 32, 0x7c00, 0x7bff},       {2, 18, 0, 2, 32, 32, 0xfc00, 0xfbff},
                        {12, 144, 0, 2, 256, 256, 0x7e00, 0x7bff},   {12, 144, 2, 2, 256, 256, 0x7c01, 0x7bff},
                        {14, 210, 208, 2, 256, 256, 0x7c00, 0x7bff}, {39, 17, 0, 1, 32, 32, 0xff, 0xfe},
                        {40, 36, 2, 1, 64, 16, 0xff, 0x7f}};
  for (const Case& c : cases) {
    std::string data(3 * c.block_bytes, '\0');
    const auto scan = [&](uint16_t scale) {
      std::memcpy(data.data() + c.block_bytes + c.at, &scale, c.width);
      GgufParts f;
      f.tensors = {{"t", c.type, {3 * c.elements}, data, {}}};
      const WeightSource source = open(f, as_is);
      return scan_non_finite(source.tensors()[0]);
    };
    EXPECT_EQ(scan(c.largest).count, 0u) << c.type;
    const NonFinite bad = scan(c.infinite);
    EXPECT_EQ(bad.count, c.spoiled) << c.type;
    EXPECT_EQ(bad.first_index, static_cast<int64_t>(c.elements + (c.type == 40 ? 32 : 0))) << c.type;
  }
}

}  // namespace
}  // namespace carpool
