// Lines of results that are appended to a file: what a full disk or a run that died leaves behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"
#include "cli/model_options.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

class AppendLine : public testing::Test {
 protected:
  AppendLine() : folder_(fs::temp_directory_path() / ("carpool_append_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~AppendLine() override { fs::remove_all(folder_); }

  std::string file() const { return (folder_ / "lines.jsonl").string(); }
  std::string text() const {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // The kind of the error; "" without one.
  static std::string refusal(const std::string& path, const std::string& line) {
    try {
      append_line(path, line);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
      return e.kind() == ErrorKind::kIo ? "io" : e.kind() == ErrorKind::kCannotCreate ? "cannot create" : "other";
    }
    return "";
  }

 private:
  fs::path folder_;
};

TEST_F(AppendLine, CreatesTheFileAndAddsToIt) {
  append_line(file(), "{\"a\":1}");
  append_line(file(), "{\"b\":2}");
  EXPECT_EQ(text(), "{\"a\":1}\n{\"b\":2}\n");
}

TEST_F(AppendLine, HalfALineThatARunLeftStaysALineOfItsOwn) {
  std::ofstream(file()) << "{\"a\":1}\n{\"torn\":";
  append_line(file(), "{\"b\":2}");
  EXPECT_EQ(text(), "{\"a\":1}\n{\"torn\":\n{\"b\":2}\n");
}

TEST_F(AppendLine, AFullDiskIsAnErrorAndTakesNothingOfEarlierResults) {
  append_line(file(), "{\"a\":1}");
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 12;  // the first line and half of the next
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string what = refusal(file(), "{\"b\":2}");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(what, "io");
  EXPECT_EQ(text(), "{\"a\":1}\n") << "what was half written is taken back";
  append_line(file(), "{\"b\":2}");
  EXPECT_EQ(text(), "{\"a\":1}\n{\"b\":2}\n");
}

TEST_F(AppendLine, AnAbsentFolderAndAFullDeviceAreRefused) {
  EXPECT_EQ(refusal(file() + "/absent", "x"), "cannot create");
  if (::access("/dev/full", F_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  EXPECT_EQ(refusal("/dev/full", "x"), "io");
}

}  // namespace
}  // namespace carpool
