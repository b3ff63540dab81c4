// Golden models with one thing changed: what a file says is what a test is about.
//
// Owns ModelCopy, a private copy of a golden model in a temporary folder that goes with it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "model/golden_test_util.h"

namespace carpool::golden {

// A private copy of a golden model.
class ModelCopy {
 public:
  explicit ModelCopy(const std::string& name)
      : path_(std::filesystem::temp_directory_path() /
              ("carpool_model_copy_" + std::to_string(getpid()) + "_" + std::to_string(count_++))) {
    std::filesystem::copy(golden::folder(name), path_);
  }
  ~ModelCopy() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::string read(const char* file) const { return read_text_file((path_ / file).string()); }
  void write(const char* file, const std::string& text) const { std::ofstream(path_ / file, std::ios::binary) << text; }
  // Replaces `key` of config.json; an empty value removes it.
  void set(const std::string& key, const std::string& value, const char* file = "config.json") const {
    json::value root =
        std::filesystem::exists(path_ / file) ? parse_json(read(file), file) : json::value(json::object{});
    if (value.empty()) {
      root.as_object().erase(key);
    } else {
      root.as_object()[key] = json::parse(value);
    }
    write(file, json::serialize(root));
  }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

}  // namespace carpool::golden
