// MappedFile: what can be mapped, what a move keeps, and the check that the file stayed the same (cases F5, S10).
#include "io/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "io/test_files.h"

namespace carpool {
namespace {

using test::contains;
using test::error_of;
using test::ScratchFolder;

std::string text_of(const MappedFile& file) {
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

// Sets the modification time, so that no test depends on the resolution of the clock.
void set_time(const std::string& path, time_t seconds, long nanoseconds) {
  const timespec times[2] = {{seconds, nanoseconds}, {seconds, nanoseconds}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST(MappedFile, GivesTheBytesOfTheFile) {
  const ScratchFolder folder;
  const std::string text("a\0b\xff", 4);
  const MappedFile file = MappedFile::open(folder.write("f", text));
  EXPECT_EQ(text_of(file), text);
  EXPECT_EQ(file.path(), folder.file("f"));
}

TEST(MappedFile, AnEmptyFileIsAnEmptySpan) {
  const ScratchFolder folder;
  const MappedFile file = MappedFile::open(folder.write("f", ""));
  EXPECT_TRUE(file.bytes().empty());
  file.verify_unchanged();
}

TEST(MappedFile, AbsentFilesFoldersAndPipesAreMissingAndNothingWaits) {
  const ScratchFolder folder;
  EXPECT_TRUE(contains(error_of(ErrorKind::kMissing, [&] { MappedFile::open(folder.file("absent")); }), "/absent: "));
  EXPECT_TRUE(contains(error_of(ErrorKind::kMissing, [&] { MappedFile::open(folder.path()); }), "not a regular file"));
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  error_of(ErrorKind::kMissing, [&] { MappedFile::open(folder.file("pipe")); });
  error_of(ErrorKind::kMissing, [&] { MappedFile::open(folder.file("f") + "/below"); });
  error_of(ErrorKind::kMissing, [&] { MappedFile::open(""); });
}

TEST(MappedFile, AnUnreadableFileIsMissing) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read every file";
  const ScratchFolder folder;
  const std::string path = folder.write("f", "x");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  EXPECT_TRUE(contains(error_of(ErrorKind::kMissing, [&] { MappedFile::open(path); }), "cannot be opened"));
}

TEST(MappedFile, AZeroByteInANameDoesNotOpenTheFileBeforeIt) {
  const ScratchFolder folder;
  const std::string path = folder.write("f", "x");
  error_of(ErrorKind::kMissing, [&] { MappedFile::open(path + std::string("\0.safetensors", 13)); });
}

TEST(MappedFile, OddNamesAreEscapedInMessages) {
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kMissing, [] { MappedFile::open("/no\nsuch\x1b[31m"); }), "/no\\nsuch\\x1b[31m: "));
}

TEST(MappedFile, AMoveKeepsTheAddress) {
  const ScratchFolder folder;
  MappedFile a = MappedFile::open(folder.write("a", "first"));
  MappedFile b = MappedFile::open(folder.write("b", "second"));
  const std::byte* address = a.bytes().data();
  MappedFile c(std::move(a));
  EXPECT_EQ(c.bytes().data(), address);
  EXPECT_TRUE(a.bytes().empty());  // NOLINT: the state after a move is what is tested
  b = std::move(c);
  EXPECT_EQ(b.bytes().data(), address);
  EXPECT_EQ(text_of(b), "first");
  b.verify_unchanged();
}

TEST(MappedFile, AnUntouchedFileIsUnchanged) {
  const ScratchFolder folder;
  const MappedFile file = MappedFile::open(folder.write("f", "text"));
  file.verify_unchanged();
  EXPECT_EQ(text_of(file), "text");
  file.verify_unchanged();
}

TEST(MappedFile, AGrownOrShortenedFileIsReportedWithBothSizes) {
  const ScratchFolder folder;
  const MappedFile file = MappedFile::open(folder.write("f", "text"));
  folder.write("f", "texts");
  EXPECT_TRUE(contains(error_of(ErrorKind::kIo, [&] { file.verify_unchanged(); }), "had 4 bytes, has 5"));
  ASSERT_EQ(::truncate(file.path().c_str(), 0), 0);
  EXPECT_TRUE(contains(error_of(ErrorKind::kIo, [&] { file.verify_unchanged(); }), "had 4 bytes, has 0"));
}

TEST(MappedFile, AFileOverwrittenInPlaceIsReported) {
  const ScratchFolder folder;
  const std::string path = folder.write("f", "text");
  set_time(path, 1000, 5);
  const MappedFile file = MappedFile::open(path);
  file.verify_unchanged();
  folder.write("f", "next");
  set_time(path, 1000, 6);
  EXPECT_TRUE(contains(error_of(ErrorKind::kIo, [&] { file.verify_unchanged(); }), "written to"));
  set_time(path, 1000, 5);
  file.verify_unchanged();  // size, place and time are all that is compared
}

TEST(MappedFile, AReplacedFileIsReportedEvenWithTheSameSizeAndTime) {
  const ScratchFolder folder;
  const std::string path = folder.write("f", "text");
  set_time(path, 1000, 5);
  const MappedFile file = MappedFile::open(path);
  const std::string other = folder.write("g", "text");
  set_time(other, 1000, 5);
  std::filesystem::rename(other, path);
  EXPECT_TRUE(contains(error_of(ErrorKind::kIo, [&] { file.verify_unchanged(); }), "replaced"));
  EXPECT_EQ(text_of(file), "text");
}

TEST(MappedFile, AChangeSaysWhetherTheMappingShowsIt) {
  using Kind = FileChange::Kind;
  const ScratchFolder folder;
  const std::string path = folder.write("f", "text");
  set_time(path, 1000, 5);
  const MappedFile file = MappedFile::open(path);
  EXPECT_EQ(file.change().kind, Kind::kNone);
  EXPECT_EQ(file.change().what, "");
  folder.write("f", "next");
  EXPECT_EQ(file.change().kind, Kind::kWritten);
  EXPECT_EQ(file.change().what, path + ": written to since it was opened");
  EXPECT_EQ(text_of(file), "next") << "of the same size: the mapping shows it";
  folder.write("f", "longer");
  EXPECT_EQ(file.change().kind, Kind::kWritten);
  std::filesystem::rename(folder.write("g", "other"), path);
  EXPECT_EQ(file.change().kind, Kind::kReplaced) << "whatever its size is";
  std::filesystem::remove(path);
  EXPECT_EQ(file.change().kind, Kind::kReplaced);
}

TEST(MappedFile, ARemovedFileIsReported) {
  const ScratchFolder folder;
  const MappedFile file = MappedFile::open(folder.write("f", "text"));
  std::filesystem::remove(file.path());
  EXPECT_TRUE(contains(error_of(ErrorKind::kIo, [&] { file.verify_unchanged(); }), "gone since"));
}

}  // namespace
}  // namespace carpool
