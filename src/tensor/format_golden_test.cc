// Formats against references nobody here wrote: tests/golden/formats, made by python/golden/make_formats.py.
//
// Decoding and, where the gguf package has an encoder, encoding are compared bit for bit; a NaN only with a NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "tensor/format.h"

namespace carpool {
namespace {

const std::string kFolder = source_dir() + "/tests/golden/formats/";

std::vector<uint8_t> from_hex(std::string_view text) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    out.push_back(static_cast<uint8_t>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return out;
}

std::vector<uint8_t> bytes_at(const JsonObject& entry, std::string_view key) { return from_hex(entry.string(key)); }

std::vector<float> floats_at(const JsonObject& entry, std::string_view key) {
  const std::vector<uint8_t> bytes = bytes_at(entry, key);
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
  return out;
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || __builtin_bit_cast(uint32_t, a) == __builtin_bit_cast(uint32_t, b);
}

// The cases of `kind` ("decode", "encode") in the file of `name`; `each(case)`; returns how many there were.
template <class Each>
int for_each_case(std::string_view name, std::string_view kind, Each each) {
  const std::string path = kFolder + std::string(name) + ".json";
  const json::value root = parse_json(read_text_file(path), path);
  const JsonObject file(root, path);
  EXPECT_EQ(file.string("format"), name);
  int count = 0;
  for (const json::value& entry : file.array(kind)) {
    const JsonObject one(entry, path);
    SCOPED_TRACE(std::string(name) + ": " + one.string("what"));
    each(one);
    ++count;
  }
  return count;
}

void expect_decoded(Format format, const JsonObject& entry) {
  const std::vector<uint8_t> data = bytes_at(entry, "data");
  std::vector<uint8_t> scales;
  if (entry.has("scales")) scales = bytes_at(entry, "scales");
  WeightView view{format, data.data(), entry.integer("rows", 1, 10000), entry.integer("cols", 1, 10000)};
  if (!scales.empty()) view.scales = scales.data();
  view.scale = static_cast<float>(entry.number_or("scale", 1.0, 0.0, 1e3));
  if (entry.has("scale_type")) {
    view.grid = {*format_of_name(entry.string("scale_type")), entry.integer("scale_rows", 1, 10000),
                 entry.integer("scale_cols", 1, 10000)};
  }
  std::vector<uint8_t> zeros;
  if (entry.has("zeros")) zeros = bytes_at(entry, "zeros");
  if (!zeros.empty()) view.zeros = zeros.data();
  ASSERT_EQ(view.bytes(), data.size());
  std::vector<int64_t> rows;
  if (entry.has("checked")) {
    for (const json::value& r : entry.array("checked")) rows.push_back(r.to_number<int64_t>());
  } else {
    for (int64_t r = 0; r < view.rows; ++r) rows.push_back(r);
  }
  const std::vector<float> expected = floats_at(entry, "values");
  const auto cols = static_cast<size_t>(view.cols);
  ASSERT_EQ(expected.size(), rows.size() * cols);
  std::vector<float> out(cols);
  for (size_t i = 0; i < rows.size(); ++i) {
    decode_row(view, rows[i], out.data());
    for (size_t c = 0; c < cols; ++c) {
      ASSERT_TRUE(same(out[c], expected[i * cols + c]))
          << "row " << rows[i] << " column " << c << ": " << out[c] << ", expected " << expected[i * cols + c];
    }
  }
}

void expect_encoded(Format format, const JsonObject& entry) {
  const std::vector<uint8_t> expected = bytes_at(entry, "data");
  const std::vector<float> values = floats_at(entry, "values");
  const int64_t rows = entry.integer("rows", 1, 10000), cols = entry.integer("cols", 1, 10000);
  const size_t row_bytes = expected.size() / static_cast<size_t>(rows);
  std::vector<uint8_t> out(row_bytes);
  for (int64_t r = 0; r < rows; ++r) {
    encode_row(format, values.data() + r * cols, cols, out.data());
    for (size_t b = 0; b < row_bytes; ++b) {
      ASSERT_EQ(out[b], expected[static_cast<size_t>(r) * row_bytes + b]) << "row " << r << " byte " << b;
    }
  }
}

TEST(FormatGolden, DecodingGivesTheBitsOfTheReferences) {
  for (int i = 1; i < kFormatCount; ++i) {  // float32 rows are their own values
    const auto format = static_cast<Format>(i);
    EXPECT_GT(for_each_case(info(format).name, "decode", [&](const JsonObject& e) { expect_decoded(format, e); }), 0);
  }
}

TEST(FormatGolden, EncodingGivesTheBytesOfTheReferences) {
  for (const Format format : {Format::kBF16, Format::kF16, Format::kQ8_0, Format::kQ4_0, Format::kQ4_1, Format::kQ5_0,
                              Format::kQ5_1, Format::kMXFP4}) {
    EXPECT_GT(for_each_case(info(format).name, "encode", [&](const JsonObject& e) { expect_encoded(format, e); }), 0);
  }
}

}  // namespace
}  // namespace carpool
