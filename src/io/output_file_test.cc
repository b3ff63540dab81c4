// Files and folders appear whole or not at all, and nobody's are replaced by accident.
#include "io/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>

#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/test_files.h"

namespace carpool {
namespace {

using namespace test;
namespace fs = std::filesystem;

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Output : public testing::Test {
 protected:
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }
  ScratchFolder folder_;
};

TEST_F(Output, AFileHasItsNameOnlyWhenItIsCommitted) {
  const std::string path = folder_.file("x"), text(9'000'000, 'z');
  {
    OutputFile out(path, false, text.size());
    out.write(text);
    EXPECT_EQ(out.written(), text.size());
    EXPECT_FALSE(fs::exists(path));
    const mode_t before = ::umask(027);
    out.commit();
    ::umask(before);
  }
  EXPECT_EQ(slurp(path), text);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms(0640));
  EXPECT_EQ(entries(), 1u);
  {
    OutputFile out(folder_.file("y"), false, 0);
  }
  EXPECT_EQ(entries(), 1u) << "what was not committed leaves nothing";
}

TEST_F(Output, AFileThatIsThereIsReplacedOnlyWhenAsked) {
  const std::string path = folder_.write("x", "old");
  EXPECT_TRUE(contains(error_of(ErrorKind::kCannotCreate, [&] { OutputFile(path, false, 0); }), "the file exists"));
  {
    OutputFile out(path, true, 3);
    out.write("new");
    EXPECT_EQ(slurp(path), "old");
    out.commit();
  }
  EXPECT_EQ(slurp(path), "new");
  OutputFile late(folder_.file("z"), false, 0);
  folder_.write("z", "somebody else's");
  error_of(ErrorKind::kCannotCreate, [&] { late.commit(); });
  EXPECT_EQ(slurp(folder_.file("z")), "somebody else's");
}

TEST_F(Output, NamesThatCannotBeFilesAreRefused) {
  error_of(ErrorKind::kCannotCreate, [&] { OutputFile("", false, 0); });
  error_of(ErrorKind::kCannotCreate, [&] { OutputFile(std::string("a\0b", 3), false, 0); });
  error_of(ErrorKind::kCannotCreate, [&] { OutputFile(folder_.file("absent/x"), false, 0); });
  error_of(ErrorKind::kCannotCreate, [&] { OutputFile(folder_.path(), true, 0); });
}

TEST_F(Output, ADiskThatIsTooSmallIsSaidBeforeAnythingIsWritten) {
  const std::string what =
      error_of(ErrorKind::kCannotCreate, [&] { OutputFile(folder_.file("x"), false, uint64_t{1} << 60); });
  EXPECT_TRUE(contains(what, "1152921504606846976 bytes are needed on the disk")) << what;
  EXPECT_EQ(entries(), 0u);
}

TEST_F(Output, AFolderAppearsWholeAndIsExchangedWhenAsked) {
  const std::string path = folder_.file("m");
  const auto make = [&](bool replace, const std::string& text) {
    OutputFolder out(path + "/", replace, "config.json");
    std::ofstream(out.file("config.json")) << text;
    EXPECT_NE(slurp(path + "/config.json"), text);
    out.commit();
  };
  make(false, "one");
  EXPECT_EQ(slurp(path + "/config.json"), "one");
  EXPECT_TRUE(contains(error_of(ErrorKind::kCannotCreate, [&] { make(false, "two"); }), "it exists"));
  make(true, "three");
  EXPECT_EQ(slurp(path + "/config.json"), "three");
  EXPECT_EQ(entries(), 1u);
  {
    OutputFolder out(folder_.file("n"), false, "config.json");
  }
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Output, AFolderOfOtherThingsIsNotReplaced) {
  fs::create_directory(folder_.file("photos"));
  folder_.write("photos/a.jpg", "x");
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kCannotCreate, [&] { OutputFolder(folder_.file("photos"), true, "config.json"); }),
               "holds no config.json"));
  folder_.write("file", "x");
  error_of(ErrorKind::kCannotCreate, [&] { OutputFolder(folder_.file("file"), true, "config.json"); });
  EXPECT_TRUE(fs::exists(folder_.file("photos/a.jpg")));
}

TEST_F(Output, WhatTheSafetensorsWriterWritesIsRead) {
  SafetensorsWriter writer;
  const int64_t shape[] = {2, 3};
  writer.add_tensor("a", "F32", shape, 24);
  writer.add_tensor("b\"\n", "U8", {}, 1);
  OutputFile out(folder_.file("m.safetensors"), false, writer.file_bytes());
  writer.begin(out);
  EXPECT_EQ(out.written() % 8, 0u);
  out.write(std::string(24, 'a') + "b");
  EXPECT_EQ(out.written(), writer.file_bytes());
  out.commit();
  const SafetensorsFile file = SafetensorsFile::open(folder_.file("m.safetensors"));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.tensors()[1].name, "b\"\n");
  EXPECT_EQ(static_cast<char>(file.tensors()[1].data[0]), 'b');
}

}  // namespace
}  // namespace carpool
