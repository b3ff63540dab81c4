// See safetensors_writer.h.
#include "io/safetensors_writer.h"

#include "base/error.h"

namespace carpool {

void SafetensorsWriter::add_tensor(std::string_view name, std::string_view dtype, std::span<const int64_t> shape,
                                   uint64_t bytes) {
  CARPOOL_CHECK(!tensors_.contains(name));
  tensors_[name] = {{"dtype", dtype},
                    {"shape", json::array(shape.begin(), shape.end())},
                    {"data_offsets", json::array{data_bytes_, data_bytes_ + bytes}}};
  data_bytes_ += bytes;
}

std::string SafetensorsWriter::header() const {
  std::string text = json::serialize(tensors_);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return out + text;
}

void SafetensorsWriter::begin(OutputFile& out) const {
  CARPOOL_CHECK(out.written() == 0);
  out.write(header());
}

}  // namespace carpool
