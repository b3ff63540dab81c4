// The tables made from formats.def, and decode_row: one case per format, the slow definition of what bytes mean.
#include "tensor/format.h"

#include <array>
#include <cstring>

namespace carpool {
namespace {

constexpr std::array<FormatInfo, kFormatCount> kInfo = {{
#define CARPOOL_FORMAT(id, name, dtype, elements, bytes) {name, dtype, elements, bytes},
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
}};

constexpr std::array<Format, kFormatCount> kFormats = {{
#define CARPOOL_FORMAT(id, name, dtype, elements, bytes) Format::k##id,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
}};

}  // namespace

const FormatInfo& info(Format format) { return kInfo[static_cast<size_t>(format)]; }

const Format* format_of_safetensors(std::string_view dtype) {
  for (const Format& f : kFormats) {
    if (info(f).safetensors_name == dtype) return &f;
  }
  return nullptr;
}

std::string_view format_names() {
  static constexpr std::string_view all = ""
#define CARPOOL_FORMAT(id, name, dtype, elements, bytes) name ", "
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
      ;
  return all.substr(0, all.size() - 2);
}

void decode_row(const WeightView& view, int64_t r, float* out) {
  const void* row = view.row(r);
  switch (view.format) {
    case Format::kF32:
      std::memcpy(out, row, static_cast<size_t>(view.cols) * sizeof(float));
      return;
    case Format::kBF16: {
      for (int64_t i = 0; i < view.cols; ++i) {
        uint16_t bits;
        std::memcpy(&bits, static_cast<const std::byte*>(row) + 2 * i, 2);
        out[i] = bf16_to_float(bits);
      }
      return;
    }
  }
}

}  // namespace carpool
