// A tiny model whose final norm is NaN, so that all its logits are: for tests of what is refused then.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/json.h"
#include "model/golden_test_util.h"

namespace carpool {

class DamagedModel {
 public:
  DamagedModel() {
    namespace fs = std::filesystem;
    std::string name = (fs::temp_directory_path() / "carpool_damaged_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(fs::path(golden::kFolder) / "bf16_tied" / file, fs::path(folder_) / file);
    const std::string path = folder_ + "/model.safetensors";
    std::string bytes;
    {
      std::ifstream in(path, std::ios::binary);
      bytes.assign(std::istreambuf_iterator<char>(in), {});
    }
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);  // little-endian, as every machine this builds for
    const json::value root = parse_json(std::string_view(bytes).substr(8, header), "header");
    const json::array& range = root.at("model.norm.weight").at("data_offsets").as_array();
    const auto begin = range.at(0).to_number<size_t>(), end = range.at(1).to_number<size_t>();
    std::memset(bytes.data() + 8 + header + begin, 0xff, end - begin);  // NaN in every float format
    std::ofstream(path, std::ios::binary) << bytes;
  }
  ~DamagedModel() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  DamagedModel(const DamagedModel&) = delete;
  DamagedModel& operator=(const DamagedModel&) = delete;

  Model load() const {
    LoadOptions options;
    options.threads = 1;
    options.check_finite = false;
    return Model::load(folder_, options);
  }

 private:
  std::string folder_;
};

}  // namespace carpool
