// The tables made from formats.def, and the small float types that formats are made of. The formats themselves are in
// formats/, one file each.
#include "tensor/format.h"

#include <array>
#include <cmath>

#include "tensor/panels.h"

namespace carpool {

#define CARPOOL_FORMAT(id, ...) extern const FormatCode k##id##Code;
#include "tensor/formats.def"
#undef CARPOOL_FORMAT

namespace {

constexpr std::array<FormatInfo, kFormatCount> kInfo = {{
#define CARPOOL_FORMAT(id, ...) {__VA_ARGS__},
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
}};

constexpr std::array<Format, kFormatCount> kFormats = {{
#define CARPOOL_FORMAT(id, ...) Format::k##id,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
}};

constexpr std::array<const FormatCode*, kFormatCount> kCode = {{
#define CARPOOL_FORMAT(id, ...) &k##id##Code,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
}};

template <class Matches>
const Format* find(Matches matches) {
  for (const Format& f : kFormats) {
    if (matches(info(f))) return &f;
  }
  return nullptr;
}

}  // namespace

const FormatInfo& info(Format format) { return kInfo[static_cast<size_t>(format)]; }

const FormatCode& code(Format format) { return *kCode[static_cast<size_t>(format)]; }

const Format* format_of_safetensors(std::string_view dtype) {
  return find([&](const FormatInfo& f) { return !dtype.empty() && f.safetensors_name == dtype; });
}

const Format* format_of_name(std::string_view name) {
  return find([&](const FormatInfo& f) { return f.name == name; });
}

const Format* format_of_gguf(int64_t type) {
  return find([&](const FormatInfo& f) { return type >= 0 && f.gguf_type == type; });
}

std::string_view format_names() {
  static constexpr std::string_view all = ""
#define CARPOOL_FORMAT(id, name, ...) name ", "
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
      ;
  return all.substr(0, all.size() - 2);
}

void decode_row(const WeightView& view, int64_t r, float* out) { code(view.format).decode_row(view, r, out); }

void encode_row(Format format, const float* values, int64_t cols, void* out) {
  code(format).encode_row(values, cols, out);
}

void unpack_row(const PanelView& view, int64_t r, float* out) { code(view.format).unpack_row(view, r, out); }

float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24 is exact
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, magnitude) | sign);
  }
  const uint32_t wide = exponent == 31 ? 0x7f800000u | fraction << 13 : (exponent + 112) << 23 | fraction << 13;
  return __builtin_bit_cast(float, wide | sign);
}

uint16_t float_to_f16(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {  // subnormal: round value * 2^24 to an integer
    const float scaled = __builtin_bit_cast(float, magnitude) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t exponent = (bits >> 3) & 15u, fraction = bits & 7u;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-9 is exact
    const float magnitude = static_cast<float>(fraction) * 0x1p-9f;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, magnitude) | sign);
  }
  const uint32_t wide = (bits & 0x7fu) == 0x7fu ? 0x7fc00000u : (exponent + 120) << 23 | fraction << 20;
  return __builtin_bit_cast(float, wide | sign);
}

uint8_t float_to_e4m3(float value) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
  const float magnitude = std::fabs(value);
  if (magnitude >= 448.0f) return static_cast<uint8_t>(sign | 0x7e);
  if (magnitude < 0x1p-6f) {  // subnormal: steps of 2^-9; 8 of them are the smallest normal
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f)));
  }
  int exponent;
  std::frexp(magnitude, &exponent);  // magnitude = [0.5, 1) * 2^exponent
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 4 - exponent)));  // 8..16
  return static_cast<uint8_t>(sign | (((exponent + 6) << 3) + steps - 8));
}

float e8m0_to_float(uint8_t bits) {
  if (bits == 255) return __builtin_nanf("");
  return __builtin_bit_cast(float, bits == 0 ? 0x00400000u : static_cast<uint32_t>(bits) << 23);  // 2^-127 is subnormal
}

float e2m1_to_float(uint8_t bits) {
  static constexpr float kValues[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return bits & 8 ? -kValues[bits & 7] : kValues[bits & 7];
}

}  // namespace carpool
