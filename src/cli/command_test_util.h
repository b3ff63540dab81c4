// A command as a user runs it, within the test's process: its exit code and what it said. Shared by the tests of
// commands.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"

namespace carpool {

struct Output {
  int code;
  std::string out, err;
};

// `carpool WORDS...`
inline Output run_command(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"carpool"};
  for (const std::string& w : words) argv.push_back(w.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run_cli(static_cast<int>(argv.size()), argv.data());
  std::string out = testing::internal::GetCapturedStdout();
  return {code, std::move(out), testing::internal::GetCapturedStderr()};
}

// A folder of this test process that disappears with it.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("carpool_command_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace carpool
