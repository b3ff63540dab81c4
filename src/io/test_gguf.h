// GGUF files for tests, built from their parts, right or wrong.
//
// For *_test.cc only. Unlike gguf_writer.h nothing is checked or computed unless a test leaves it to the builder.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace carpool::test {

template <class T>
std::string raw(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

inline std::string gguf_string(std::string_view text) { return raw(static_cast<uint64_t>(text.size())).append(text); }

// A key with a value whose type number and bytes are given.
inline std::string gguf_key(std::string_view key, uint32_t type, std::string_view value) {
  return (gguf_string(key) + raw(type)).append(value);
}
inline std::string gguf_u32(std::string_view key, uint32_t value) { return gguf_key(key, 4, raw(value)); }
inline std::string gguf_text(std::string_view key, std::string_view value) {
  return gguf_key(key, 8, gguf_string(value));
}
inline std::string gguf_array(std::string_view key, uint32_t element, uint64_t count, std::string_view elements) {
  return gguf_key(key, 9, (raw(element) + raw(count)).append(elements));
}
inline std::string gguf_strings(std::string_view key, const std::vector<std::string>& values) {
  std::string elements;
  for (const std::string& v : values) elements += gguf_string(v);
  return gguf_array(key, 8, values.size(), elements);
}

struct GgufPart {
  std::string name;
  uint32_t type = 0;           // 0 is float32
  std::vector<uint64_t> dims;  // as in the file, innermost first
  std::string data;
  std::optional<uint64_t> offset;  // the right one when absent
};

struct GgufParts {
  std::vector<std::string> keys;  // made by the functions above
  std::vector<GgufPart> tensors;
  uint32_t version = 3;
  size_t alignment = 32;  // of the data; a key that says otherwise is the test's business
  std::optional<uint64_t> n_keys, n_tensors;

  std::string bytes() const {
    const auto pad = [&](std::string& s) { s.resize((s.size() + alignment - 1) / alignment * alignment); };
    std::string out =
        "GGUF" + raw(version) + raw(n_tensors.value_or(tensors.size())) + raw(n_keys.value_or(keys.size()));
    for (const std::string& key : keys) out += key;
    std::string data;
    for (const GgufPart& t : tensors) {
      out += gguf_string(t.name) + raw(static_cast<uint32_t>(t.dims.size()));
      for (const uint64_t d : t.dims) out += raw(d);
      out += raw(t.type) + raw(t.offset.value_or(data.size()));
      data += t.data;
      pad(data);
    }
    pad(out);
    return out + data;
  }
};

}  // namespace carpool::test
