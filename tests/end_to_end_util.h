// Shared by the end-to-end tests: runs the carpool binary in a shell and collects what it said.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "programs.h"

namespace carpool::end_to_end {

namespace fs = std::filesystem;

inline const std::string kSource = source_dir();
inline const std::string kBooks = kSource + "/models/books-qwen3";

// A folder of this test process that disappears with it.
class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(fs::temp_directory_path() /
              ("carpool_end_to_end_" + std::to_string(getpid()) + "_" + std::to_string(count_++))) {
    fs::create_directories(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  static inline int count_ = 0;
  fs::path path_;
};

struct Outcome {
  int code = -1;
  std::string out, err;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Runs `carpool ARGUMENTS` through the shell with `environment` ("NAME=value ...") and `input` as standard input.
inline Outcome carpool(const std::string& arguments, const std::string& input = "",
                       const std::string& environment = "") {
  const TemporaryFolder folder;
  std::ofstream(folder / "in", std::ios::binary) << input;
  // Redirections come first, so that `arguments` may contain others.
  const std::string command = environment + " <" + (folder / "in") + " >" + (folder / "out") + " 2>" +
                              (folder / "err") + " timeout 600 " + carpool_binary() + " " + arguments;
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, slurp(folder / "out"), slurp(folder / "err")};
}

// The command must succeed; its standard output, which must be one JSON value.
inline json::value carpool_json(const std::string& arguments, const std::string& environment = "") {
  const Outcome o = carpool(arguments, "", environment);
  EXPECT_EQ(o.code, 0) << arguments << "\n" << o.err;
  return o.code == 0 ? parse_json(o.out, arguments) : json::value(json::object{});
}

inline void expect_refused(const std::string& arguments, int code, const std::string& part,
                           const std::string& environment = "") {
  const Outcome o = carpool(arguments, "", environment);
  EXPECT_EQ(o.code, code) << arguments << "\n" << o.err;
  EXPECT_NE(o.err.find(part), std::string::npos) << arguments << "\n" << o.err;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << "one line: " << o.err;
  EXPECT_EQ(o.err.rfind("error: ", 0), 0u) << o.err;
}

}  // namespace carpool::end_to_end
