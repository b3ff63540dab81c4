// The safetensors reader against the reference package's files and verdicts, and cases S1 to S6 of the catalogue of
// bad files: every refusal names file, tensor and byte; every prefix and every bit flip is answered.
//
// Golden files: tests/golden/safetensors, made by python/golden/make_safetensors.py.
#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "io/test_files.h"

namespace carpool {
namespace {

using test::contains;
using test::error_of;
using test::Part;
using test::safetensors_bytes;
using test::safetensors_file;
using test::ScratchFolder;

const std::string kGolden = source_dir() + "/tests/golden/safetensors/";

std::string hex_of(const TensorInfo& t) {
  std::string out;
  for (size_t i = 0; i < t.bytes; ++i) {
    for (const int shift : {4, 0}) out += "0123456789abcdef"[static_cast<int>(t.data[i]) >> shift & 15];
  }
  return out;
}

std::string bytes_of_hex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  return out;
}

// The refusal of a file with these bytes, without the path and ": " in front.
std::string refusal(const std::string& bytes, const SafetensorsLimits& limits = {}) {
  const ScratchFolder folder;
  const std::string path = folder.write("m.safetensors", bytes);
  const std::string what = error_of(ErrorKind::kMalformed, [&] { SafetensorsFile::open(path, 0, limits); });
  EXPECT_TRUE(what.starts_with(path + ": ")) << what;
  return what.size() > path.size() + 2 ? what.substr(path.size() + 2) : "";
}

std::string header_refusal(const std::string& header, const std::string& data = "ab") {
  return refusal(safetensors_bytes(header, data));
}

// One U8 tensor "w" of two bytes, with one part of its entry replaced.
std::string entry(std::string_view dtype = "\"U8\"", std::string_view shape = "[2]",
                  std::string_view offsets = "[0,2]") {
  return "{\"w\":{\"dtype\":" + std::string(dtype) + ",\"shape\":" + std::string(shape) +
         ",\"data_offsets\":" + std::string(offsets) + "}}";
}

// True when accepted; then every tensor lies inside the data and together they fill it.
bool accepted_soundly(const std::string& path) {
  try {
    const SafetensorsFile file = SafetensorsFile::open(path);
    const std::span<const std::byte> all = file.file().bytes();
    size_t sum = 0;
    for (const TensorInfo& t : file.tensors()) {
      EXPECT_LE(t.file_offset, all.size());
      EXPECT_LE(t.bytes, all.size() - t.file_offset);
      EXPECT_EQ(t.data, all.data() + t.file_offset);
      EXPECT_EQ(file.find(t.name), &t);
      sum += t.bytes;
    }
    EXPECT_EQ(sum, file.data_bytes());
    return true;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kMalformed) << e.what();
    for (const char c : std::string(e.what())) EXPECT_TRUE(c >= 32 && c < 127) << e.what();
    return false;
  }
}

TEST(Safetensors, GivesWhatThePythonPackageWroteForEveryDtype) {
  const json::value root = parse_json(read_text_file(kGolden + "all_dtypes.json"), "all_dtypes.json");
  const SafetensorsFile file = SafetensorsFile::open(kGolden + "all_dtypes.safetensors", 3);
  const json::array& rows = JsonObject(root, "all_dtypes.json").array("tensors");
  ASSERT_GT(rows.size(), 20u);
  EXPECT_EQ(file.tensors().size(), rows.size());
  for (const json::value& value : rows) {
    const JsonObject row(value, "all_dtypes.json");
    const TensorInfo* t = file.find(row.string("name"));
    ASSERT_NE(t, nullptr) << row.string("name");
    EXPECT_EQ(t->name, row.string("name"));
    EXPECT_EQ(t->dtype, row.string("dtype")) << t->name;
    EXPECT_EQ(json::value_from(t->shape), row.value("shape")) << t->name;
    EXPECT_EQ(hex_of(*t), row.string("hex")) << t->name;
    EXPECT_EQ(t->shard, 3);
    const NonFinite bad = scan_non_finite(*t);
    EXPECT_EQ(static_cast<int64_t>(bad.count), row.integer("non_finite", 0, 1000)) << t->name;
    EXPECT_EQ(bad.first_index, row.integer("first_non_finite", -1, 1000)) << t->name;
  }
}

// Where this reader refuses what the package accepts, on purpose (the comment of SafetensorsFile::open).
const std::set<std::string> kStricter = {"leading space",          "trailing newline",        "metadata null",
                                         "metadata key twice",     "unknown field",           "tensor an array",
                                         "name twice, same range", "name twice, empty range", "shape of rank 17",
                                         "shape entry over int64"};

TEST(Safetensors, AgreesWithTheVerdictsOfThePythonPackageExceptWhereStricterOnPurpose) {
  const json::value root = parse_json(read_text_file(kGolden + "verdicts.json"), "verdicts.json");
  const ScratchFolder folder;
  size_t stricter = 0, accepted = 0, n_files = 0;
  for (const json::value& value : JsonObject(root, "verdicts.json").array("files")) {
    const JsonObject row(value, "verdicts.json");
    const std::string name = row.string("name");
    const bool ours = accepted_soundly(folder.write(std::to_string(n_files++), bytes_of_hex(row.string("hex"))));
    const bool theirs = row.value("accepted").as_bool();
    accepted += ours ? 1 : 0;
    if (kStricter.contains(name)) {
      EXPECT_TRUE(theirs && !ours) << name;
      ++stricter;
    } else {
      EXPECT_EQ(ours, theirs) << name;
    }
  }
  EXPECT_EQ(stricter, kStricter.size());
  EXPECT_GT(accepted, 10u);
}

TEST(Safetensors, S1HeaderLengthsOutOfBoundsAreRefusedWithValueAndLimit) {
  const std::string header = entry();
  EXPECT_EQ(refusal(""), "0 bytes, a safetensors file starts with a length field of 8");
  EXPECT_EQ(refusal("1234567"), "7 bytes, a safetensors file starts with a length field of 8");
  EXPECT_EQ(refusal(safetensors_bytes(header, "ab", 0)), "header length at byte 0: 0, must be at least 1");
  EXPECT_EQ(refusal(safetensors_bytes("{}", "ab", 5)), "header length at byte 0: 5 bytes, 4 left in the file");
  EXPECT_EQ(refusal(safetensors_bytes("{}", "", 100'000'000)),
            "header length at byte 0: 100000000 bytes, 2 left in the file");
  EXPECT_EQ(refusal(safetensors_bytes("{}", "", 100'000'001)),
            "header length at byte 0: 100000001 bytes, the limit is 100000000");
  EXPECT_TRUE(
      contains(refusal(safetensors_bytes(header, "ab", UINT64_MAX)), "18446744073709551615 bytes, the limit is"));
  EXPECT_TRUE(contains(refusal(safetensors_bytes(header, "ab", UINT64_MAX - 7)), "the limit is 100000000"));
}

TEST(Safetensors, S2HeadersThatAreNotTheExpectedJsonAreRefusedAtTheirByte) {
  EXPECT_EQ(header_refusal(" " + entry()), "header at byte 8: must start with '{', found ' '");
  EXPECT_EQ(header_refusal("\xef\xbb\xbf{}"), "header at byte 8: must start with '{', found '\\xef'");
  EXPECT_TRUE(contains(header_refusal("{\"\xff\":1}"), "header at byte 10: not valid JSON"));
  EXPECT_EQ(header_refusal("{\"w\":"), "header at byte 13: the JSON text ends early");
  EXPECT_EQ(header_refusal("{}\n"), "header at byte 10: only spaces may follow the closing brace");
  EXPECT_EQ(header_refusal("{} {}"), "header at byte 10: only spaces may follow the closing brace");
  EXPECT_EQ(header_refusal(std::string("{}\0", 3)), "header at byte 10: only spaces may follow the closing brace");
  EXPECT_TRUE(contains(header_refusal("{\"__metadata__\":{\"a\":{\"b\":{\"c\":{}}}}}"),
                       "\"a\" must be a string, found an object"));
  EXPECT_TRUE(contains(header_refusal("{\"__metadata__\":{\"a\":1}}"), "\"a\" must be a string, found the number 1"));
  EXPECT_TRUE(contains(header_refusal("{\"__metadata__\":{\"a\":null}}"), "\"a\" must be a string, found null"));
  EXPECT_TRUE(contains(header_refusal("{\"__metadata__\":{\"a\":[]}}"), "\"a\" must be a string, found an array"));
  EXPECT_TRUE(contains(header_refusal("{\"__metadata__\":{\"a\":true}}"), "\"a\" must be a string, found a boolean"));
  EXPECT_TRUE(contains(header_refusal("{\"__metadata__\":\"x\"}"), "must be an object of strings, found a string"));
  EXPECT_TRUE(contains(header_refusal("{\"__metadata__\":null}"), "must be an object of strings, found null"));
}

TEST(Safetensors, S2TrailingSpacesAndMetadataOfStringsAreAccepted) {
  const ScratchFolder folder;
  std::string header = entry();
  header.insert(1, "\"__metadata__\":{\"format\":\"pt\",\"\\u0061\":\"{\\\"x\\\":1}\"},");
  const SafetensorsFile file = SafetensorsFile::open(folder.write("f", safetensors_bytes(header + "   ", "ab")));
  ASSERT_EQ(file.tensors().size(), 1u);
  EXPECT_EQ(file.tensors()[0].file_offset, 8 + header.size() + 3);
  EXPECT_EQ(hex_of(file.tensors()[0]), "6162");
  EXPECT_EQ(file.find("__metadata__"), nullptr);
}

TEST(Safetensors, S3OverlapsHolesAndLooseEndsAreRefused) {
  const auto two = [](std::string_view b_offsets, const std::string& data) {
    return header_refusal(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
        "\"data_offsets\":" +
            std::string(b_offsets) + "}}",
        data);
  };
  EXPECT_TRUE(contains(two("[1,3]", "abc"),
                       "tensor \"b\" at byte 114: overlaps the tensor before it: begins at 1, must begin at 2"));
  EXPECT_TRUE(contains(two("[0,2]", "ab"), "tensor \"b\" at byte 113: overlaps the tensor before it"));
  EXPECT_TRUE(contains(two("[3,5]", "abcde"),
                       "tensor \"b\" at byte 116: leaves a hole before it: begins at 3, must begin at 2"));
  EXPECT_EQ(two("[2,4]", "abcde"), "the tensors end at byte 117, the file has 118");
  EXPECT_TRUE(contains(two("[2,4]", "abc"),
                       "tensor \"b\" at byte 111: \"data_offsets\" end at 4, the file has 3 bytes of data"));
  EXPECT_TRUE(contains(two("[4,2]", "abcd"), "\"data_offsets\" begin at 4 and end at 2, before that"));
  EXPECT_TRUE(contains(header_refusal("{}"), "the tensors end at byte 10, the file has 12"));
}

TEST(Safetensors, S4ShapesThatDoNotMatchTheirRangeAreRefused) {
  EXPECT_TRUE(
      contains(header_refusal(entry("\"U8\"", "[3]")), "shape [3] of U8 needs 3 bytes, \"data_offsets\" give 2"));
  EXPECT_TRUE(
      contains(header_refusal(entry("\"F32\"", "[2]")), "shape [2] of F32 needs 8 bytes, \"data_offsets\" give 2"));
  EXPECT_TRUE(contains(header_refusal(entry("\"U8\"", "[4294967296,4294967296]")), "needs more than 2^64 bits"));
  EXPECT_TRUE(contains(header_refusal(entry("\"F64\"", "[2305843009213693953]")), "needs more than 2^64 bits"));
  EXPECT_TRUE(contains(header_refusal(entry("\"F4\"", "[3]")), "needs 12 bits, which is not a whole number of bytes"));
  EXPECT_TRUE(
      contains(header_refusal(entry("\"F6_E3M2\"", "[3]")), "needs 18 bits, which is not a whole number of bytes"));
  EXPECT_TRUE(
      contains(header_refusal(entry("\"U8\"", "[-2]")), "\"shape\" must hold integers of at least 0, found -2"));
  EXPECT_TRUE(contains(header_refusal(entry("\"U8\"", "[-0]")), "\"shape\" must hold integers of at least 0, found 0"));
  EXPECT_TRUE(
      contains(header_refusal(entry("\"U8\"", "[2.0]")), "\"shape\" must hold integers of at least 0, found 2"));
  EXPECT_TRUE(contains(header_refusal(entry("\"U8\"", "[9223372036854775808]")), "the limit is 9223372036854775807"));
  EXPECT_TRUE(contains(header_refusal(entry("\"U8\"", "[\"2\"]")), "\"shape\" must hold integers, found a string"));
  EXPECT_TRUE(contains(header_refusal(entry("\"U8\"", "[[2]]")), "\"shape\" must hold integers, found an array"));
  EXPECT_TRUE(
      contains(header_refusal(entry("\"U8\"", "2")), "\"shape\" must be an array of integers, found the number 2"));
  EXPECT_TRUE(contains(header_refusal(entry("\"U8\"", "null")), "\"shape\" must be an array of integers, found null"));
  EXPECT_TRUE(contains(header_refusal(entry("\"U8\"", "[2]", "[0]")), "\"data_offsets\" must have 2 entries, found 1"));
  EXPECT_TRUE(
      contains(header_refusal(entry("\"U8\"", "[2]", "[0,2,2]")), "\"data_offsets\" must have 2 entries, found more"));
  EXPECT_TRUE(contains(header_refusal(entry("\"U8\"", "[2]", "[-1,1]")), "found -1"));
  EXPECT_TRUE(contains(header_refusal(entry("\"U8\"", "[2]", "[18446744073709551613,18446744073709551615]")),
                       "end at 18446744073709551615, the file has 2 bytes of data"));
}

TEST(Safetensors, S5ATensorNamedTwiceIsRefusedByName) {
  EXPECT_TRUE(contains(refusal(safetensors_file({{"w", "U8", "2", "ab"}, {"w", "U8", "2", "cd"}})),
                       "tensor \"w\" at byte 115: duplicate tensor"));
  EXPECT_TRUE(
      contains(refusal(safetensors_file({{"w", "U8", "2", "ab"}, {"x", "U8", "1", "c"}, {"\\u0077", "U8", "2", "cd"}})),
               "duplicate tensor"));
  const std::string one = entry().substr(1, entry().size() - 2);
  EXPECT_TRUE(contains(header_refusal("{" + one + "," + one + "}"), "tensor \"w\" at byte 113: duplicate tensor"));
  EXPECT_TRUE(contains(refusal(safetensors_file({{"w", "U8", "0", ""}, {"w", "U8", "0", ""}})), "duplicate tensor"));
}

TEST(Safetensors, S5TheMetadataKeyIsNoTensorAndOnlyOnce) {
  EXPECT_TRUE(contains(refusal(safetensors_file({{"__metadata__", "U8", "2", "ab"}})),
                       "\"__metadata__\": \"shape\" must be a string, found an array"));
  EXPECT_TRUE(
      contains(refusal(safetensors_file({{"\\u005f_metadata__", "U8", "2", "ab"}})), "\"__metadata__\": \"shape\""));
  EXPECT_TRUE(contains(header_refusal("{\"__metadata__\":{},\"__metadata__\":{}}"), "duplicate key \"__metadata__\""));
  EXPECT_TRUE(contains(header_refusal("{\"__metadata__\":{\"a\":\"\",\"\\u0061\":\"\"}}"), "duplicate key \"a\""));
}

TEST(Safetensors, S6UnknownDtypesAreRefusedWithTensorAndDtype) {
  EXPECT_TRUE(
      header_refusal(entry("\"Q4_0\"")).starts_with("tensor \"w\" at byte 27: dtype \"Q4_0\" is not one of BOOL, F4,"));
  EXPECT_TRUE(contains(header_refusal(entry("\"u8\"")), "dtype \"u8\" is not one of"));
  EXPECT_TRUE(contains(header_refusal(entry("\"\"")), "dtype \"\" is not one of"));
  EXPECT_TRUE(contains(header_refusal(entry("\"" + std::string(100'000, 'x') + "\"")), "xxx...\" is not one of"));
  EXPECT_TRUE(contains(header_refusal(entry("8")), "\"dtype\" must be a string, found the number 8"));
  EXPECT_TRUE(contains(header_refusal(entry("[\"U8\"]")), "\"dtype\" must be a string, found an array"));
}

TEST(Safetensors, EntriesWithMissingDoubleOrUnknownFieldsAreRefused) {
  EXPECT_TRUE(contains(header_refusal(R"({"w":{"shape":[2],"data_offsets":[0,2]}})"),
                       "tensor \"w\" at byte 46: \"dtype\" is missing"));
  EXPECT_TRUE(contains(header_refusal(R"({"w":{"dtype":"U8","data_offsets":[0,2]}})"), "\"shape\" is missing"));
  EXPECT_TRUE(contains(header_refusal(R"({"w":{"dtype":"U8","shape":[2]}})"), "\"data_offsets\" is missing"));
  EXPECT_TRUE(contains(header_refusal(R"({"w":{"dtype":"U8","shape":[2],"shape":[2],"data_offsets":[0,2]}})"),
                       "duplicate field \"shape\""));
  EXPECT_TRUE(contains(header_refusal(R"({"w":{"strides":[1]}})"), "unknown field \"strides\""));
  EXPECT_TRUE(
      contains(header_refusal(R"({"w":3})"), "tensor \"w\" at byte 14: expected an object, found the number 3"));
  EXPECT_TRUE(contains(header_refusal(R"({"w":[]})"), "tensor \"w\" at byte 13: expected an object, found an array"));
}

TEST(Safetensors, NamesFromTheFileAreEscapedInMessages) {
  EXPECT_TRUE(contains(refusal(safetensors_file({{"a\\n\\u001b[31m\\\"", "U8", "3", "ab"}})),
                       "tensor \"a\\n\\x1b[31m\\\"\" at byte"));
}

TEST(Safetensors, EveryLimitHoldsAtExactlyItsValue) {
  const std::string two = safetensors_file({{"aaaa", "U8", "1,1,2", "ab"}, {"b", "U8", "1", "c"}});
  const std::string meta = safetensors_bytes(R"({"__metadata__":{"a":"","b":""}})", "");
  const auto at = [](size_t SafetensorsLimits::* field, size_t value, const std::string& bytes) {
    SafetensorsLimits limits;
    limits.*field = value;
    const ScratchFolder folder;
    SafetensorsFile::open(folder.write("f", bytes), 0, limits);  // at the limit: accepted
    limits.*field = value - 1;
    return refusal(bytes, limits);
  };
  EXPECT_TRUE(contains(at(&SafetensorsLimits::tensors, 2, two), "more than 1 tensors"));
  EXPECT_TRUE(contains(at(&SafetensorsLimits::rank, 3, two), "\"shape\" has more than 2 entries"));
  EXPECT_TRUE(contains(at(&SafetensorsLimits::name_bytes, 4, two), "the name has 4 bytes, the limit is 3"));
  EXPECT_TRUE(contains(at(&SafetensorsLimits::metadata_entries, 2, meta), "\"__metadata__\" has more than 1 entries"));
  EXPECT_TRUE(contains(at(&SafetensorsLimits::header_bytes, meta.size() - 8, meta), "the limit is 31"));
}

TEST(Safetensors, TensorsComeInTheOrderOfTheirDataWhateverTheHeaderSays) {
  const ScratchFolder folder;
  const std::string header = R"({"late":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                             R"("empty":{"dtype":"F32","shape":[0,4],"data_offsets":[2,2]},)"
                             R"("early":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"},)"
                             R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[3,4]}})";
  const SafetensorsFile file = SafetensorsFile::open(folder.write("f", safetensors_bytes(header, "abcd")));
  std::vector<std::string> names;
  for (const TensorInfo& t : file.tensors()) names.push_back(t.name);
  EXPECT_EQ(names, (std::vector<std::string>{"early", "empty", "late", "scalar"}));
  EXPECT_EQ(hex_of(*file.find("late")), "63");
  EXPECT_EQ(file.find("empty")->bytes, 0u);
  EXPECT_EQ(file.find("earl"), nullptr);
  EXPECT_EQ(file.find("earlyx"), nullptr);
  EXPECT_EQ(file.find(""), nullptr);
}

TEST(Safetensors, AbsentFilesAndFoldersAreMissing) {
  const ScratchFolder folder;
  error_of(ErrorKind::kMissing, [&] { SafetensorsFile::open(folder.file("absent.safetensors")); });
  error_of(ErrorKind::kMissing, [&] { SafetensorsFile::open(folder.path()); });
}

std::string small_file() {
  return safetensors_file({{"layer.0.w", "F32", "2,2", std::string(16, 'x')},
                           {"layer.0.b", "BF16", "3", "abcdef"},
                           {"q", "F4", "2,2", "ab"}});
}

TEST(Safetensors, EveryPrefixOfAFileIsRefused) {
  const ScratchFolder folder;
  const std::string whole = small_file();
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_FALSE(accepted_soundly(folder.write(std::to_string(n), whole.substr(0, n)))) << n;
  }
  EXPECT_TRUE(accepted_soundly(folder.write("f", whole)));
  EXPECT_FALSE(accepted_soundly(folder.write("f", whole + "x")));
}

// A flip in a name gives another valid file; whatever is accepted must be sound.
TEST(Safetensors, EverySingleBitFlipOfLengthAndHeaderIsAnswered) {
  const ScratchFolder folder;
  const std::string whole = small_file();
  const size_t header_end = whole.size() - 24;
  size_t accepted = 0;
  for (size_t bit = 0; bit < header_end * 8; ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    const bool good = accepted_soundly(folder.write(std::to_string(bit), bytes));
    EXPECT_FALSE(good && bit < 64) << "another header length cannot be right, bit " << bit;
    accepted += good ? 1 : 0;
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_LT(accepted, 19 * 8u);  // only flips of the 19 characters of names can be accepted
}

}  // namespace
}  // namespace carpool
