// Files for the tests of io/: a scratch folder and safetensors files built from their parts.
//
// For *_test.cc only. The builders write whatever they are told, right or wrong.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace carpool::test {

// A folder that lives as long as this object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "carpool_io_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  // Writes `bytes` to `name`, replacing the file's content in place; returns the whole path.
  std::string write(std::string_view name, std::string_view bytes) const {
    std::ofstream out(file(name), std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file(name);
  }

 private:
  std::string path_;
};

// Length field, header text, data; `length` replaces the true header length.
inline std::string safetensors_bytes(std::string_view header, std::string_view data, uint64_t length) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(length >> (8 * i) & 0xff);
  return out.append(header).append(data);
}
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return safetensors_bytes(header, data, header.size());
}

struct Part {
  std::string name;   // as it stands between the quotes of the JSON text
  std::string dtype;  // "U8"
  std::string shape;  // "2,3"
  std::string data;
};

// A file that holds `parts` in this order.
inline std::string safetensors_file(const std::vector<Part>& parts) {
  std::string header = "{", data;
  for (const Part& p : parts) {
    header += (header.size() > 1 ? ",\"" : "\"") + p.name + "\":{\"dtype\":\"" + p.dtype + "\",\"shape\":[" + p.shape +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," + std::to_string(data.size() + p.data.size()) +
              "]}";
    data += p.data;
  }
  return safetensors_bytes(header + "}", data);
}

// The sentence with which `f` throws an Error of this kind; a test failure when it does not.
template <typename F>
std::string error_of(ErrorKind kind, F f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << "more than one line: " << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace carpool::test
