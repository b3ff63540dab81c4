// What GgufFile reads, and that everything else is refused with one line: the limits, the layout, the types.
#include "io/gguf.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <limits>

#include "io/gguf_writer.h"
#include "io/test_files.h"
#include "io/test_gguf.h"

namespace carpool {
namespace {

using namespace test;

// A file without a disk, for sweeps over thousands of variants.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : fd_(::memfd_create("m.gguf", 0)) { write(bytes, 0); }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  void write(const std::string& bytes, size_t at) {
    ASSERT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at)), static_cast<ssize_t>(bytes.size()));
  }
  void resize(size_t n) { ASSERT_EQ(::ftruncate(fd_, static_cast<off_t>(n)), 0); }

 private:
  int fd_;
};

class Gguf : public testing::Test {
 protected:
  GgufFile open(const std::string& bytes) { return GgufFile::open(folder_.write("m.gguf", bytes)); }
  GgufFile open(const GgufParts& parts) { return open(parts.bytes()); }
  // The sentence that refuses the file; it names the file.
  std::string refusal(const std::string& bytes, ErrorKind kind = ErrorKind::kMalformed) {
    const std::string what = error_of(kind, [&] { open(bytes); });
    EXPECT_TRUE(contains(what, "m.gguf: ")) << what;
    return what;
  }
  std::string refusal(const GgufParts& parts) { return refusal(parts.bytes()); }
  ScratchFolder folder_;
};

#define EXPECT_REFUSED(file, ...)                                            \
  do {                                                                       \
    const std::string what_ = refusal(file);                                 \
    for (const std::string& part_ : std::vector<std::string>{__VA_ARGS__}) { \
      EXPECT_TRUE(contains(what_, part_)) << what_;                          \
    }                                                                        \
  } while (false)

// Every kind of value, an odd alignment of nothing, two tensors.
GgufParts small() {
  GgufParts f;
  f.keys = {
      gguf_text("general.architecture", "qwen3moe"), gguf_u32("a.count", 7),
      gguf_key("a.u8", 0, raw(uint8_t{200})),        gguf_key("a.i8", 1, raw(int8_t{-5})),
      gguf_key("a.u16", 2, raw(uint16_t{60000})),    gguf_key("a.i16", 3, raw(int16_t{-300})),
      gguf_key("a.i32", 5, raw(int32_t{-70000})),    gguf_key("a.f32", 6, raw(1.5f)),
      gguf_key("a.bool", 7, raw(uint8_t{1})),        gguf_key("a.u64", 10, raw(uint64_t{1} << 40)),
      gguf_key("a.i64", 11, raw(int64_t{-1} << 40)), gguf_key("a.f64", 12, raw(2.25)),
      gguf_strings("a.texts", {"x", "", "yz"}),      gguf_array("a.numbers", 3, 2, raw(int16_t{-1}) + raw(int16_t{9}))};
  f.tensors = {{"w", 0, {3, 2}, std::string(24, 'a'), {}}, {"q", 2, {64, 2}, std::string(72, 'b'), {}}};
  return f;
}

TEST_F(Gguf, EveryKindOfValueIsReadAndTensorsAreRowMajorViews) {
  const GgufFile file = open(small());
  const GgufMetadata& m = file.metadata();
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(m.string("general.architecture"), "qwen3moe");
  EXPECT_EQ(m.integer("a.count", 0, 10), 7);
  EXPECT_EQ(m.integer("a.u8", 0, 1000), 200);
  EXPECT_EQ(m.integer("a.i8", -10, 0), -5);
  EXPECT_EQ(m.integer("a.u16", 0, 1 << 20), 60000);
  EXPECT_EQ(m.integer("a.i16", INT64_MIN, 0), -300);
  EXPECT_EQ(m.integer("a.i32", INT64_MIN, 0), -70000);
  EXPECT_EQ(m.integer("a.u64", 0, INT64_MAX), int64_t{1} << 40);
  EXPECT_EQ(m.integer("a.i64", INT64_MIN, 0), int64_t{-1} * (int64_t{1} << 40));
  EXPECT_EQ(m.number("a.f32"), 1.5);
  EXPECT_EQ(m.number("a.f64"), 2.25);
  EXPECT_TRUE(m.boolean("a.bool"));
  EXPECT_EQ(m.strings("a.texts"), (std::vector<std::string_view>{"x", "", "yz"}));
  EXPECT_EQ(m.integers("a.numbers"), (std::vector<int64_t>{-1, 9}));
  EXPECT_EQ(m.integer_or("absent", 5, 0, 9), 5);
  EXPECT_FALSE(m.boolean_or("absent", false));

  ASSERT_EQ(file.tensors().size(), 2u);
  const GgufTensor& w = file.tensors()[0];
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(w.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(w.bytes.size(), 24u);
  EXPECT_EQ(static_cast<char>(w.bytes[23]), 'a');
  const GgufTensor& q = file.tensors()[1];
  EXPECT_EQ(q.format, Format::kQ4_0);
  EXPECT_EQ(q.bytes.size(), 72u);
  EXPECT_EQ(q.file_offset % 32, 0u);
  EXPECT_EQ(static_cast<char>(q.bytes[0]), 'b');
}

TEST_F(Gguf, Version2IsReadAsWell) {
  GgufParts f = small();
  f.version = 2;
  EXPECT_EQ(open(f).version(), 2u);
}

TEST_F(Gguf, TheAlignmentKeyMovesTheData) {
  GgufParts f = small();
  f.keys.push_back(gguf_u32("general.alignment", 128));
  f.alignment = 128;
  const GgufFile file = open(f);
  EXPECT_EQ(file.alignment(), 128u);
  EXPECT_EQ(file.tensors()[1].file_offset % 128, 0u);
  EXPECT_EQ(static_cast<char>(file.tensors()[1].bytes[0]), 'b');
}

TEST_F(Gguf, AFileWithoutTensorsHoldsOnlyMetadata) {
  GgufParts f = small();
  f.tensors.clear();
  EXPECT_TRUE(open(f).tensors().empty());
  EXPECT_REFUSED(f.bytes() + std::string(40, 'x'), "follow the header");
}

// G1. The last tensor's padding may be absent: every shorter file is refused.
TEST_F(Gguf, EveryPrefixOfAFileIsRefused) {
  const std::string whole = small().bytes();
  const size_t end = whole.size() - (96 - 72);  // of the last tensor's data
  EXPECT_NO_THROW(open(whole.substr(0, end)));
  MemoryFile file(whole);
  for (size_t n = end; n-- > 0;) {
    file.resize(n);
    error_of(ErrorKind::kMalformed, [&] { GgufFile::open(file.path()); });
  }
  EXPECT_REFUSED(whole.substr(0, end - 1), "needs 72 bytes, 71 left in the file", "\"q\"");
}

// Whatever a flipped bit makes of the header, the outcome is a file that passes every check or one sentence.
TEST_F(Gguf, EveryBitFlipOfTheHeaderEndsInASentenceOrAFileWithinItsBounds) {
  const std::string whole = small().bytes();
  const size_t header = static_cast<size_t>(open(whole).tensors()[0].file_offset);
  size_t refused = 0;
  MemoryFile memory(whole);
  for (size_t byte = 0; byte < header; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      memory.write(std::string(1, static_cast<char>(whole[byte] ^ (1 << bit))), byte);
      try {
        const GgufFile file = GgufFile::open(memory.path());
        for (const GgufTensor& t : file.tensors()) ASSERT_LE(t.file_offset + t.bytes.size(), whole.size());
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kMalformed) << e.what();
        ++refused;
      }
    }
    memory.write(whole.substr(byte, 1), byte);
  }
  EXPECT_GT(refused, header) << "more than one bit of a byte matters on average";
}

TEST_F(Gguf, AnotherMagicVersionOrByteOrderIsRefused) {  // G2
  EXPECT_REFUSED("PK\x03\x04 and more bytes than any header needs", "must start with \"GGUF\"", "PK\\x03\\x04");
  for (const uint32_t version : {0u, 1u, 4u, 77u}) {
    GgufParts f = small();
    f.version = version;
    EXPECT_REFUSED(f, "version", std::to_string(version), "supported: 2, 3");
  }
  GgufParts f = small();
  f.version = 0x03000000;
  EXPECT_REFUSED(f, "big-endian", "version 3");
}

TEST_F(Gguf, CountsAreBoundedByTheBytesThatAreLeft) {  // G3
  for (const uint64_t n : {uint64_t{4'000'000'000}, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{65'536}, uint64_t{2}}) {
    GgufParts f;
    f.n_tensors = n;
    EXPECT_REFUSED(f, "tensors", std::to_string(n));
    f.n_tensors.reset();
    f.n_keys = n;
    EXPECT_REFUSED(f, "metadata keys", std::to_string(n));
  }
}

TEST_F(Gguf, StringLengthsAreBounded) {  // G4
  for (const uint64_t n : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1000}, uint64_t{65'536}}) {
    GgufParts key;
    key.keys = {raw(n) + std::string(40, 'k')};
    refusal(key);
    GgufParts value;
    value.keys = {gguf_key("k", 8, raw(n) + std::string(40, 'v'))};
    EXPECT_REFUSED(value, "key \"k\"");
    GgufParts element;
    element.keys = {gguf_array("k", 8, 2, gguf_string("x") + raw(n))};
    EXPECT_REFUSED(element, "key \"k\"");
    GgufParts tensor;
    tensor.tensors = {{"t", 0, {1}, "1234", {}}};
    std::string bytes = tensor.bytes();
    std::memcpy(bytes.data() + 24, &n, 8);  // right behind the counts
    refusal(bytes);
  }
  GgufLimits limits;
  limits.string_bytes = 3;
  GgufParts f;
  f.keys = {gguf_text("k", "four")};
  const std::string path = folder_.write("m.gguf", f.bytes());
  EXPECT_TRUE(contains(error_of(ErrorKind::kMalformed, [&] { GgufFile::open(path, 0, limits); }),
                       "a string of 4 bytes, the limit is 3"));
}

TEST_F(Gguf, ArraysAreBoundedFlatAndOfKnownTypes) {  // G5
  for (const uint64_t n : {~uint64_t{0}, uint64_t{1} << 61, uint64_t{1} << 24, uint64_t{8}}) {
    GgufParts f;
    f.keys = {gguf_array("k", 12, n, std::string(24, '\0'))};
    EXPECT_REFUSED(f, "key \"k\"", "array elements");
  }
  GgufParts f;
  f.keys = {gguf_array("k", 9, 1, raw(uint32_t{4}) + raw(uint64_t{1}) + raw(uint32_t{1}))};
  EXPECT_REFUSED(f, "arrays of arrays");
  for (const uint32_t type : {13u, 255u, ~0u}) {
    f.keys = {gguf_key("k", type, std::string(16, '\0'))};
    EXPECT_REFUSED(f, "type", "is unknown", "0 to 12");
    f.keys = {gguf_array("k", type, 1, std::string(16, '\0'))};
    EXPECT_REFUSED(f, "type", "is unknown");
  }
  f.keys = {gguf_key("k", 7, raw(uint8_t{2}))};
  EXPECT_REFUSED(f, "a bool must be 0 or 1, found 2");
  f.keys = {gguf_array("k", 7, 2, raw(uint8_t{1}) + raw(uint8_t{9}))};
  EXPECT_REFUSED(f, "a bool must be 0 or 1, found 9");
}

TEST_F(Gguf, AValueOfAnotherTypeIsRefusedNamingBoth) {  // G6
  const GgufFile file = open(small());
  const GgufMetadata& m = file.metadata();
  const auto refused = [&](auto read, const char* wanted, const char* found) {
    const std::string what = error_of(ErrorKind::kMalformed, read);
    EXPECT_TRUE(contains(what, wanted)) << what;
    EXPECT_TRUE(contains(what, found)) << what;
    EXPECT_TRUE(contains(what, "m.gguf: key \"a.")) << what;
  };
  refused([&] { m.integer("a.f32", 0, 9); }, "must be an integer", "found float32");
  refused([&] { m.integer("a.bool", 0, 9); }, "must be an integer", "found bool");
  refused([&] { m.integer("a.texts", 0, 9); }, "must be an integer", "found array of 3 string");
  refused([&] { m.number("a.count"); }, "must be float32 or float64", "found uint32");
  refused([&] { m.boolean("a.u8"); }, "must be bool", "found uint8");
  refused([&] { m.string("a.count"); }, "must be string", "found uint32");
  refused([&] { m.strings("a.numbers"); }, "must be an array of strings", "array of 2 int16");
  refused([&] { m.integers("a.texts"); }, "must be an array of integers", "array of 3 string");
  refused([&] { m.integer("a.count", 8, 9); }, "must be 8 to 9", "found 7");
  refused([&] { m.integer("a.missing", 0, 9); }, "is missing", "a.missing");
  GgufParts f = small();
  f.keys = {gguf_key("general.alignment", 5, raw(int32_t{32}))};
  EXPECT_REFUSED(f, "general.alignment", "must be uint32", "found int32");
}

TEST_F(Gguf, NumbersThatFitNoInt64OrAreNotFiniteAreRefused) {
  GgufParts f;
  f.keys = {gguf_key("big", 10, raw(~uint64_t{0})), gguf_array("bigs", 10, 1, raw(~uint64_t{0})),
            gguf_key("nan", 6, raw(std::numeric_limits<float>::quiet_NaN())),
            gguf_key("inf", 12, raw(std::numeric_limits<double>::infinity()))};
  const GgufFile file = open(f);
  const GgufMetadata& m = file.metadata();
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kMalformed, [&] { m.integer("big", 0, INT64_MAX); }), "found 18446744073709551615"));
  error_of(ErrorKind::kMalformed, [&] { m.integers("bigs"); });
  error_of(ErrorKind::kMalformed, [&] { m.number("nan"); });
  error_of(ErrorKind::kMalformed, [&] { m.number("inf"); });
}

TEST_F(Gguf, ShapesHaveOneToFourPositiveDimensions) {  // G7, G8
  const auto with = [](std::vector<uint64_t> dims) {
    GgufParts f;
    f.tensors = {{"t", 0, std::move(dims), "1234", {}}};
    return f;
  };
  EXPECT_REFUSED(with({}), "0 dimensions, must be 1 to 4");
  EXPECT_REFUSED(with({1, 1, 1, 1, 1}), "5 dimensions, must be 1 to 4");
  EXPECT_REFUSED(with({0}), "dimension 0 is 0");
  EXPECT_REFUSED(with({1, 0}), "dimension 1 is 0");
  EXPECT_REFUSED(with({~uint64_t{0}}), "dimension 0 is -1");
  EXPECT_REFUSED(with({uint64_t{1} << 63}), "dimension 0 is -9223372036854775808");
}

TEST_F(Gguf, SizesThatWrapAreRefused) {  // G9: product, bytes, padded bytes
  const auto with = [](uint32_t type, std::vector<uint64_t> dims) {
    GgufParts f;
    f.tensors = {{"t", type, std::move(dims), "1234", {}}};
    return f;
  };
  EXPECT_REFUSED(with(0, {uint64_t{1} << 32, uint64_t{1} << 32}), "needs more than 2^62 bytes");
  EXPECT_REFUSED(with(0, {uint64_t{1} << 62}), "needs more than 2^62 bytes");
  EXPECT_REFUSED(with(30, {INT64_MAX}), "needs more than 2^62 bytes");
  EXPECT_REFUSED(with(2, {INT64_MAX / 32 * 32, 4, 4, 4}), "needs more than 2^62 bytes");
  EXPECT_REFUSED(with(0, {uint64_t{1} << 40}), "bytes, 32 left in the file");
}

TEST_F(Gguf, TensorsFillTheDataWithoutOverlapOrHole) {  // G10
  GgufParts f = small();
  for (const auto& [offset, part] : {std::pair<uint64_t, const char*>{0, "overlaps the tensor before it"},
                                     {24, "overlaps"},
                                     {33, "leaves a hole"},
                                     {64, "leaves a hole before it: its offset is 64, must be 32"},
                                     {~uint64_t{0}, "leaves a hole"}}) {
    f.tensors[1].offset = offset;
    EXPECT_REFUSED(f, "tensor \"q\"", part);
  }
  f = small();
  f.tensors[0].offset = 32;
  EXPECT_REFUSED(f, "tensor \"w\"", "leaves a hole");
  EXPECT_REFUSED(small().bytes() + "x", "the tensors end at byte");
}

TEST_F(Gguf, UnsupportedTensorTypesAreListedWithTheSupportedOnes) {  // G11
  GgufParts f;
  f.tensors = {{"a", 17, {256}, std::string(74, '\0'), {}},
               {"b", 0, {1}, "1234", {}},
               {"c", 99, {256}, "", {}},
               {"d", 0x80000000u, {256}, "", {}}};
  EXPECT_REFUSED(f, "3 tensors of a type that is not supported", "\"a\" is IQ2_XS (17)",
                 "\"c\" is of unknown number 99", "\"d\" is of unknown number 2147483648",
                 "supported: f32, bf16, f16, q8_0, q4_0");
  GgufParts many;
  for (int i = 0; i < 12; ++i) many.tensors.push_back({"t" + std::to_string(i), 17, {256}, std::string(74, '\0'), {}});
  EXPECT_REFUSED(many, "12 tensors", "\"t9\"", "; ...");
  for (const uint64_t cols : {uint64_t{1}, uint64_t{31}, uint64_t{48}}) {
    GgufParts rows;
    rows.tensors = {{"t", 2, {cols, 2}, std::string(64, '\0'), {}}};
    EXPECT_REFUSED(rows, "are not whole blocks of 32 (q4_0)");
  }
}

TEST_F(Gguf, TheAlignmentIsAPowerOfTwoWithinLimits) {  // G12
  for (const uint32_t alignment : {0u, 1u, 4u, 13u, 33u, 131'072u, 1u << 31}) {
    GgufParts f = small();
    f.keys = {gguf_u32("general.alignment", alignment)};
    EXPECT_REFUSED(f, "general.alignment", "power of two from 8 to 65536", std::to_string(alignment));
  }
}

TEST_F(Gguf, KeysAndTensorsAreThereOnce) {  // G13
  GgufParts f = small();
  f.keys.push_back(gguf_u32("a.count", 7));
  EXPECT_REFUSED(f, "key \"a.count\"", "twice");
  f = small();
  f.tensors.push_back({"w", 0, {1}, "1234", {}});
  EXPECT_REFUSED(f, "duplicate tensor", "\"w\"");
  f = small();
  f.keys.push_back(gguf_u32("", 1));
  EXPECT_REFUSED(f, "the key is empty");
  f = small();
  f.tensors[0].name = "";
  EXPECT_REFUSED(f, "the name is empty");
  f.tensors[0].name = std::string(64, 'n');
  EXPECT_REFUSED(f, "the name of 64 bytes, the limit is 63");
}

TEST_F(Gguf, TheMostKeysAndTensorsThereMayBeAreReadAndOneMoreIsNot) {
  GgufParts f;
  for (int i = 0; i < 65'536; ++i) {
    f.keys.push_back(gguf_key("k" + std::to_string(i), 0, "x"));
    f.tensors.push_back({"t" + std::to_string(i), 0, {1}, "1234", {}});
  }
  const GgufFile file = open(f);
  EXPECT_EQ(file.tensors().size(), 65'536u);
  EXPECT_EQ(file.metadata().integer("k65535", 0, 255), 'x');
  f.keys.push_back(gguf_u32("more", 1));
  EXPECT_REFUSED(f, "65537 metadata keys, the limit is 65536");
  f.keys.pop_back();
  f.tensors.push_back({"more", 0, {1}, "1234", {}});
  EXPECT_REFUSED(f, "65537 tensors, the limit is 65536");
}

TEST_F(Gguf, AnAbsentFileAFolderAndAnEmptyFileAreRefused) {
  error_of(ErrorKind::kMissing, [&] { GgufFile::open(folder_.file("absent.gguf")); });
  error_of(ErrorKind::kMissing, [&] { GgufFile::open(folder_.path()); });
  EXPECT_REFUSED(std::string(), "needs 4 bytes, 0 left");
}

TEST_F(Gguf, NamesFromTheFileAreEscapedInMessages) {
  GgufParts f;
  f.tensors = {{"a\n\x1b[31m", 17, {256}, std::string(74, '\0'), {}}};
  EXPECT_REFUSED(f, "a\\n\\x1b[31m");
}

TEST(GgufPath, IsRecognisedByItsEnding) {
  EXPECT_TRUE(is_gguf_path("a/b.gguf"));
  EXPECT_TRUE(is_gguf_path("B.GGUF"));
  EXPECT_FALSE(is_gguf_path("gguf"));
  EXPECT_FALSE(is_gguf_path("a.gguf/"));
  EXPECT_FALSE(is_gguf_path("a.safetensors"));
}

TEST_F(Gguf, WhatTheWriterWritesIsRead) {
  const GgufFile other = open(small());
  GgufWriter writer;
  writer.add_string("s", "text");
  writer.add_u32("u", 9);
  writer.add_u64("big", uint64_t{1} << 33);
  writer.add_f32("f", 0.5f);
  writer.add_bool("b", true);
  writer.add_strings("list", {"a", "", "b"});
  const int32_t numbers[] = {1, -2};
  writer.add_i32s("numbers", numbers);
  for (const auto& entry : other.metadata().entries()) writer.add(entry);
  EXPECT_TRUE(writer.has("a.texts"));
  EXPECT_FALSE(writer.has("absent"));
  const int64_t q[] = {2, 64}, w[] = {3};
  writer.add_tensor("q", Format::kQ4_0, q);
  writer.add_tensor("w", Format::kF32, w);
  EXPECT_EQ(writer.tensor_bytes(0), 72u);
  const std::string path = folder_.file("out.gguf");
  {
    OutputFile out(path, false, writer.file_bytes());
    writer.begin(out);
    for (const size_t n : {72, 12}) {
      out.write(std::string(n, 'z'));
      writer.pad(out);
    }
    EXPECT_EQ(out.written(), writer.file_bytes());
    out.commit();
  }
  const GgufFile file = GgufFile::open(path);
  const GgufMetadata& m = file.metadata();
  EXPECT_EQ(m.string("s"), "text");
  EXPECT_EQ(m.integer("u", 0, 9), 9);
  EXPECT_EQ(m.integer("big", 0, INT64_MAX), int64_t{1} << 33);
  EXPECT_EQ(m.number("f"), 0.5);
  EXPECT_TRUE(m.boolean("b"));
  EXPECT_EQ(m.strings("list"), (std::vector<std::string_view>{"a", "", "b"}));
  EXPECT_EQ(m.integers("numbers"), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(m.strings("a.texts"), other.metadata().strings("a.texts"));
  EXPECT_EQ(m.integers("a.numbers"), other.metadata().integers("a.numbers"));
  EXPECT_EQ(m.integer("a.i64", INT64_MIN, 0), int64_t{-1} * (int64_t{1} << 40));
  EXPECT_EQ(file.tensors()[1].shape, (std::vector<int64_t>{3}));
  EXPECT_EQ(static_cast<char>(file.tensors()[1].bytes[11]), 'z');
}

// A split model of two parts; the second holds what gguf-split writes there.
struct Split {
  GgufParts parts[2];
  Split() {
    for (int i = 0; i < 2; ++i) {
      parts[i].keys = {gguf_key("split.no", 2, raw(static_cast<uint16_t>(i))),
                       gguf_key("split.count", 2, raw(uint16_t{2})),
                       gguf_key("split.tensors.count", 5, raw(int32_t{2}))};
      parts[i].tensors = {{i ? "b" : "a", 0, {1}, i ? "bbbb" : "aaaa", {}}};
    }
    parts[0].keys.push_back(gguf_text("general.architecture", "qwen3moe"));
  }
};

class GgufParts2 : public testing::Test {
 protected:
  std::string name(int i) const { return folder_.file("m-0000" + std::to_string(i + 1) + "-of-00002.gguf"); }
  void write(const Split& split) {
    for (int i = 0; i < 2; ++i)
      folder_.write(std::filesystem::path(name(i)).filename().string(), split.parts[i].bytes());
  }
  std::string refusal(const Split& split, ErrorKind kind = ErrorKind::kMalformed, int open = 0) {
    write(split);
    return error_of(kind, [&] { GgufSet::open(name(open)); });
  }
  ScratchFolder folder_;
};

TEST_F(GgufParts2, AnyPartOpensTheWholeModel) {
  write(Split());
  for (int i = 0; i < 2; ++i) {
    const GgufSet set = GgufSet::open(name(i));
    ASSERT_EQ(set.files().size(), 2u);
    EXPECT_EQ(set.metadata().string("general.architecture"), "qwen3moe");
    EXPECT_EQ(set.files()[1].tensors()[0].name, "b");
    EXPECT_EQ(set.files()[1].tensors()[0].part, 1);
  }
}

TEST_F(GgufParts2, MissingPartsAreListed) {  // G16
  write(Split());
  std::filesystem::remove(name(1));
  EXPECT_TRUE(contains(error_of(ErrorKind::kMissing, [&] { GgufSet::open(name(0)); }), "m-00002-of-00002.gguf"));
  std::filesystem::create_symlink(name(1), name(1));
  EXPECT_TRUE(contains(error_of(ErrorKind::kMissing, [&] { GgufSet::open(name(0)); }), "m-00002-of-00002.gguf"));
}

TEST_F(GgufParts2, PartsThatDoNotBelongTogetherAreRefused) {
  Split split;
  split.parts[1].keys[0] = gguf_key("split.no", 2, raw(uint16_t{0}));
  EXPECT_TRUE(contains(refusal(split), "split.no"));
  split = Split();
  split.parts[1].keys[1] = gguf_key("split.count", 2, raw(uint16_t{3}));
  EXPECT_TRUE(contains(refusal(split), "split.count"));
  split = Split();
  split.parts[1].keys[2] = gguf_key("split.tensors.count", 5, raw(int32_t{3}));
  EXPECT_TRUE(contains(refusal(split), "a part of another model"));
  split = Split();
  split.parts[1].keys.push_back(gguf_text("general.architecture", "llama"));
  EXPECT_TRUE(contains(refusal(split), "a part of another model"));
  split = Split();
  split.parts[1].keys.clear();
  EXPECT_TRUE(contains(refusal(split), "split.count\": is missing"));
  split = Split();
  split.parts[1].tensors[0].name = "a";
  EXPECT_TRUE(contains(refusal(split), "two parts hold it"));
  split = Split();
  split.parts[1].tensors.push_back({"c", 0, {1}, "cccc", {}});
  EXPECT_TRUE(contains(refusal(split), "the parts hold 3"));
  write(Split());
  std::filesystem::rename(name(0), folder_.file("renamed.gguf"));
  EXPECT_TRUE(contains(error_of(ErrorKind::kMalformed, [&] { GgufSet::open(folder_.file("renamed.gguf")); }),
                       "must end in -00001-of-00002.gguf"));
}

TEST_F(GgufParts2, AFileThatIsNoPartIsASetOfOne) {
  const std::string path = folder_.write("one.gguf", small().bytes());
  EXPECT_EQ(GgufSet::open(path).files().size(), 1u);
}

}  // namespace
}  // namespace carpool
