// See gguf_writer.h.
#include "io/gguf_writer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace carpool {
namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;  // the format's default, so that no key has to say so

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));  // little-endian, as every machine this builds for
  out.append(bytes, sizeof(T));
}

uint64_t padded(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void GgufWriter::start(std::string_view key, GgufType type) {
  CARPOOL_CHECK(!has(key));
  names_.emplace_back(key);
  put_string(key);
  put(keys_, static_cast<uint32_t>(type));
}

void GgufWriter::put_string(std::string_view text) {
  put(keys_, static_cast<uint64_t>(text.size()));
  keys_ += text;
}

bool GgufWriter::has(std::string_view key) const {
  return std::find(names_.begin(), names_.end(), key) != names_.end();
}

void GgufWriter::add_u32(std::string_view key, uint32_t value) {
  start(key, GgufType::kU32);
  put(keys_, value);
}

void GgufWriter::add_u64(std::string_view key, uint64_t value) {
  start(key, GgufType::kU64);
  put(keys_, value);
}

void GgufWriter::add_f32(std::string_view key, float value) {
  start(key, GgufType::kF32);
  put(keys_, value);
}

void GgufWriter::add_bool(std::string_view key, bool value) {
  start(key, GgufType::kBool);
  put(keys_, static_cast<uint8_t>(value));
}

void GgufWriter::add_string(std::string_view key, std::string_view value) {
  start(key, GgufType::kString);
  put_string(value);
}

void GgufWriter::add_strings(std::string_view key, const std::vector<std::string>& values) {
  start(key, GgufType::kArray);
  put(keys_, static_cast<uint32_t>(GgufType::kString));
  put(keys_, static_cast<uint64_t>(values.size()));
  for (const std::string& v : values) put_string(v);
}

void GgufWriter::add_i32s(std::string_view key, std::span<const int32_t> values) {
  start(key, GgufType::kArray);
  put(keys_, static_cast<uint32_t>(GgufType::kI32));
  put(keys_, static_cast<uint64_t>(values.size()));
  for (const int32_t v : values) put(keys_, v);
}

void GgufWriter::add_f32s(std::string_view key, std::span<const float> values) {
  start(key, GgufType::kArray);
  put(keys_, static_cast<uint32_t>(GgufType::kF32));
  put(keys_, static_cast<uint64_t>(values.size()));
  for (const float v : values) put(keys_, v);
}

void GgufWriter::add(const GgufMetadata::Entry& entry) {
  start(entry.key, entry.type);
  if (entry.type == GgufType::kString) put(keys_, static_cast<uint64_t>(entry.bytes.size()));
  if (entry.type == GgufType::kArray) {
    put(keys_, static_cast<uint32_t>(entry.element));
    put(keys_, entry.count);
  }
  keys_.append(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
}

void GgufWriter::add_tensor(std::string_view name, Format format, std::span<const int64_t> shape) {
  const FormatInfo& f = info(format);
  CARPOOL_CHECK(f.gguf_type >= 0 && !shape.empty() && shape.back() % f.block_elements == 0);
  Declared d;
  put(d.info, static_cast<uint64_t>(name.size()));
  d.info += name;
  put(d.info, static_cast<uint32_t>(shape.size()));
  d.bytes = static_cast<size_t>(f.block_bytes);
  for (size_t i = shape.size(); i-- > 0;) {
    put(d.info, static_cast<uint64_t>(shape[i]));
    d.bytes *= static_cast<size_t>(i + 1 == shape.size() ? shape[i] / f.block_elements : shape[i]);
  }
  put(d.info, static_cast<uint32_t>(f.gguf_type));
  tensors_.push_back(std::move(d));
}

std::string GgufWriter::header() const {
  std::string out = "GGUF";
  put(out, kVersion);
  put(out, static_cast<uint64_t>(tensors_.size()));
  put(out, static_cast<uint64_t>(names_.size()));
  out += keys_;
  uint64_t offset = 0;
  for (const Declared& d : tensors_) {
    out += d.info;
    put(out, offset);
    offset += padded(d.bytes);
  }
  out.resize(static_cast<size_t>(padded(out.size())));
  return out;
}

uint64_t GgufWriter::file_bytes() const {
  uint64_t total = header().size();
  for (const Declared& d : tensors_) total += padded(d.bytes);
  return total;
}

void GgufWriter::begin(OutputFile& out) const {
  CARPOOL_CHECK(out.written() == 0);
  out.write(header());
}

void GgufWriter::pad(OutputFile& out) const {
  out.write(std::string(static_cast<size_t>(padded(out.written()) - out.written()), '\0'));
}

}  // namespace carpool
