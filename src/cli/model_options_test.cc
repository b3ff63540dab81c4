// Where output may go and what must survive it, and which policy the options and the environment ask for.
#include "cli/model_options.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "text/utf8.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

template <class F>
std::string error_of(ErrorKind kind, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), static_cast<int>(kind)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

class WriteOutput : public testing::Test {
 protected:
  WriteOutput() {
    char name[] = "/tmp/carpool_output_XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~WriteOutput() override { fs::remove_all(folder_); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  static std::string slurp(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Nothing but these entries: no temporary file was left behind.
  void expect_entries(size_t n) const {
    EXPECT_EQ(static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator())), n);
  }
  std::string folder_;
};

TEST_F(WriteOutput, ANewFileHoldsTheTextWithTheUsualPermissionsAndNothingElseAppears) {
  const mode_t before = ::umask(027);
  write_output(file("x"), std::string("a\0b", 3));
  ::umask(before);
  EXPECT_EQ(slurp(file("x")), std::string("a\0b", 3));
  EXPECT_EQ(fs::status(file("x")).permissions(), fs::perms(0640));
  expect_entries(1);
}

TEST_F(WriteOutput, AFileIsReplacedAndTheUsersOwnTmpFileIsLeftAlone) {
  std::ofstream(file("x")) << "old and longer";
  std::ofstream(file("x.tmp")) << "mine";
  fs::permissions(file("x"), fs::perms(0600));
  write_output(file("x"), "new");
  EXPECT_EQ(slurp(file("x")), "new");
  EXPECT_EQ(slurp(file("x.tmp")), "mine");
  EXPECT_EQ(fs::status(file("x")).permissions(), fs::perms(0600)) << "what was private stays so";
  expect_entries(2);
}

TEST_F(WriteOutput, ALinkStaysALinkAndItsTargetGetsTheText) {
  fs::create_directory(file("sub"));
  std::ofstream(file("sub/target")) << "old";
  fs::create_symlink("sub/target", file("link"));
  fs::create_symlink("link", file("link2"));
  write_output(file("link2"), "new");
  EXPECT_TRUE(fs::is_symlink(file("link")));
  EXPECT_TRUE(fs::is_symlink(file("link2")));
  EXPECT_EQ(slurp(file("sub/target")), "new");
}

TEST_F(WriteOutput, ALinkToAFileThatIsNotThereYetCreatesThatFile) {
  fs::create_symlink("target", file("link"));
  write_output(file("link"), "new");
  EXPECT_TRUE(fs::is_symlink(file("link")));
  EXPECT_EQ(slurp(file("target")), "new");
}

TEST_F(WriteOutput, ALinkToItselfAndANameThatIsTooLongAreRefused) {
  fs::create_symlink("loop", file("loop"));
  error_of(ErrorKind::kCannotCreate, [&] { write_output(file("loop"), "x"); });
  error_of(ErrorKind::kCannotCreate, [&] { write_output(file(std::string(5000, 'y')), "x"); });
  error_of(ErrorKind::kCannotCreate, [&] { write_output("", "x"); });
  error_of(ErrorKind::kCannotCreate, [&] { write_output(file(std::string("a\0b", 3)), "x"); });
  EXPECT_TRUE(fs::is_symlink(file("loop")));
  expect_entries(1);
}

TEST_F(WriteOutput, AFolderIsRefusedAndStays) {
  fs::create_directory(file("sub"));
  EXPECT_NE(error_of(ErrorKind::kCannotCreate, [&] { write_output(file("sub"), "x"); }).find("sub"), std::string::npos);
  EXPECT_TRUE(fs::is_directory(file("sub")));
  expect_entries(1);
}

TEST_F(WriteOutput, AFolderThatIsAbsentOrNoFolderOrNotWritableIsRefused) {
  error_of(ErrorKind::kCannotCreate, [&] { write_output(file("absent/x"), "x"); });
  std::ofstream(file("file")) << "old";
  error_of(ErrorKind::kCannotCreate, [&] { write_output(file("file/x"), "x"); });
  EXPECT_EQ(slurp(file("file")), "old");
  error_of(ErrorKind::kCannotCreate, [&] { write_output("/proc/carpool", "x"); });  // not even root may create there
}

TEST_F(WriteOutput, ADeviceIsWrittenIntoAndStaysADevice) {
  write_output("/dev/null", "text");
  struct stat status{};
  ASSERT_EQ(::stat("/dev/null", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  if (::access("/dev/full", F_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  EXPECT_NE(error_of(ErrorKind::kIo, [&] { write_output("/dev/full", "x"); }).find("/dev/full"), std::string::npos);
  ASSERT_EQ(::stat("/dev/full", &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
}

TEST_F(WriteOutput, APipeIsWrittenIntoAndStaysAPipe) {
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = slurp(file("pipe")); });
  write_output(file("pipe"), "text");
  reader.join();
  EXPECT_EQ(got, "text");
  EXPECT_TRUE(fs::is_fifo(file("pipe")));
}

extern "C" void count_interruption(int) {}

// F8: a signal that interrupts a system call every half a millisecond, on the thread that writes.
TEST_F(WriteOutput, InterruptedCallsGoOnUntilAllIsWritten) {
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  const std::string text(1 << 20, 'x');  // sixteen times what a pipe holds
  std::atomic<bool> done = false;
  std::string got;
  const pthread_t writer = ::pthread_self();
  struct sigaction action{}, before{};
  action.sa_handler = count_interruption;  // without SA_RESTART
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  std::thread interrupter([&] {
    while (!done) {
      ::pthread_kill(writer, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  });
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the writer waits for somebody to open the other end
    std::ifstream in(file("pipe"), std::ios::binary);
    std::string piece(4096, ' ');
    while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())) || in.gcount() > 0) {
      got.append(piece, 0, static_cast<size_t>(in.gcount()));
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  std::string error;
  try {
    write_output(file("pipe"), text);
  } catch (const Error& e) {
    error = e.what();
    std::ofstream(file("pipe"), std::ios::binary | std::ios::in | std::ios::out);  // let the reader go
  }
  done = true;
  interrupter.join();
  reader.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(error, "");
  EXPECT_EQ(got, text);
}

// Sets environment variables for one test and clears them afterwards.
class PolicyOptions : public testing::Test {
 protected:
  PolicyOptions() { clear(); }
  ~PolicyOptions() override { clear(); }
  static void clear() {
    ::unsetenv("CARPOOL_OEA_K0");
    ::unsetenv("CARPOOL_OEA_MIN_BATCH");
  }
  static std::string resolve(const std::string& words) {
    CLI::App app;
    PolicyOption option;
    option.add_to(app);
    app.parse(words);
    return option.resolve();
  }
  static std::string refusal(const std::string& words) {
    return error_of(ErrorKind::kConfig, [&] { resolve(words); });
  }
};

TEST_F(PolicyOptions, ThePolicyIsTheSpecOrTheAliasesOrPlain) {
  EXPECT_EQ(resolve(""), "topk");
  EXPECT_EQ(resolve("--policy oea:k0=5"), "oea:k0=5");
  EXPECT_EQ(resolve("--oea-k0 3"), "oea:k0=3");
  EXPECT_EQ(resolve("--oea-k0 3 --oea-min-batch 9"), "oea:k0=3,min_batch=9");
  EXPECT_EQ(resolve("--oea-k0 0"), "topk");
}

TEST_F(PolicyOptions, TheEnvironmentStandsInForTheAliasesOnly) {
  ::setenv("CARPOOL_OEA_MIN_BATCH", "7", 1);
  EXPECT_EQ(resolve(""), "topk") << "the environment's min_batch alone is silent";
  EXPECT_EQ(resolve("--oea-k0 4"), "oea:k0=4,min_batch=7");
  ::setenv("CARPOOL_OEA_K0", "5", 1);
  EXPECT_EQ(resolve(""), "oea:k0=5,min_batch=7");
  EXPECT_EQ(resolve("--oea-min-batch 2"), "oea:k0=5,min_batch=2");
  EXPECT_EQ(resolve("--oea-k0 0"), "topk");
  EXPECT_EQ(resolve("--policy topk"), "topk") << "an explicit policy wins";
  ::setenv("CARPOOL_OEA_K0", "", 1);
  EXPECT_EQ(resolve(""), "topk");
}

TEST_F(PolicyOptions, OptionsThatContradictOrHaveNoEffectAreRefused) {
  EXPECT_NE(refusal("--policy oea:k0=3 --oea-k0 4").find("give one"), std::string::npos);
  EXPECT_NE(refusal("--policy oea:k0=3 --oea-min-batch 4").find("oea:k0=3,min_batch=4"), std::string::npos);
  EXPECT_NE(refusal("--oea-min-batch 4").find("--oea-k0"), std::string::npos);
  EXPECT_NE(refusal("--oea-k0 0 --oea-min-batch 4").find("--oea-k0"), std::string::npos);
}

TEST_F(PolicyOptions, AnEnvironmentThatIsNoNumberInItsRangeIsRefusedByItsName) {
  for (const char* text : {"x", "3x", "-1", "4097", "99999999999", " 3"}) {
    ::setenv("CARPOOL_OEA_K0", text, 1);
    EXPECT_NE(refusal("").find("CARPOOL_OEA_K0"), std::string::npos) << text;
    EXPECT_EQ(resolve("--policy topk"), "topk") << "not read then";
  }
  ::setenv("CARPOOL_OEA_K0", "3", 1);
  ::setenv("CARPOOL_OEA_MIN_BATCH", "0", 1);
  EXPECT_NE(refusal("").find("CARPOOL_OEA_MIN_BATCH"), std::string::npos);
}

TEST_F(PolicyOptions, TheHelpNamesTheEnvironment) {
  CLI::App app;
  PolicyOption option;
  option.add_to(app);
  for (const char* name : {"CARPOOL_OEA_K0", "CARPOOL_OEA_MIN_BATCH"}) {
    EXPECT_NE(app.help().find(name), std::string::npos) << app.help();
  }
}

TEST(CommandLine, IsValidUtf8WhateverTheWordsAre) {
  EXPECT_EQ(command_line({"run", "a b", "it's"}), "carpool run 'a b' 'it'\\''s'");
  EXPECT_EQ(command_line({"x\xff\xc3"}), "carpool x\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_TRUE(is_valid_utf8(command_line({"\x80", "\xed\xa0\x80 b"})));
}

TEST(LoadModel, ADirectoryNameThatCannotBeFollowedIsNoModelDirectory) {
  char name[] = "/tmp/carpool_loop_XXXXXX";
  const std::string folder = ::mkdtemp(name);
  fs::create_symlink("loop", folder + "/loop");
  for (const std::string& path : {folder + "/loop", "/" + std::string(5000, 'z')}) {
    ModelOptions options;
    options.model = path;
    options.quiet = true;
    EXPECT_NE(error_of(ErrorKind::kMissing, [&] { load_model(options); }).find("no such model directory"),
              std::string::npos);
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace carpool
