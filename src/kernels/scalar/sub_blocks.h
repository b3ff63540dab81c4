// The integer codes and scales of one row's sub-block of a panel, read slowly: what the scalar products are made of,
// and an oracle that shares nothing with the fast kernels. Layouts: tensor/panels.h.
#pragma once

#include <cstring>

#include "tensor/panels.h"

namespace carpool {

// Value of column c = scale * codes[c] - minimum. Formats with integer scales have scale = d * factor and minimum =
// dmin * low.
struct SubBlock {
  int columns = 32;
  int codes[32];
  float scale = 0, minimum = 0;
  int factor = 0, low = 0;
  float d = 0, dmin = 0;
};

constexpr bool has_integer_scales(Format format) { return format == Format::kQ4_K || format == Format::kQ6_K; }

constexpr bool has_sub_blocks(Format format) {
  return format != Format::kF32 && format != Format::kBF16 && format != Format::kF16 && format != Format::kFP8;
}

constexpr int sub_block_columns(Format format) { return format == Format::kNVFP4 || format == Format::kQ6_K ? 16 : 32; }

// Column c's nibble of row r in pairs of groups of four columns.
inline int panel_nibble(const uint8_t* pairs, int r, int c) {
  const uint8_t byte = pairs[64 * (c / 8) + 4 * r + c % 4];
  return c % 8 < 4 ? byte & 15 : byte >> 4;
}

inline float panel_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_to_float(bits);
}

// Sub-block `s` of row `r`, 0..15, of the panel at `panel`. E2M1 codes are twice the value.
inline SubBlock read_sub_block(Format format, const uint8_t* panel, int64_t s, int r) {
  SubBlock out;
  out.columns = sub_block_columns(format);
  const auto each = [&](auto value) {
    for (int c = 0; c < out.columns; ++c) out.codes[c] = value(c);
  };
  switch (format) {
    case Format::kQ8_0:
      panel += 544 * s;
      each([&](int c) { return static_cast<int8_t>(panel[64 * (c / 4) + 4 * r + c % 4]); });
      out.scale = panel_half(panel + 512 + 2 * r);
      break;
    case Format::kQ4_0:
      panel += 288 * s;
      each([&](int c) { return panel_nibble(panel, r, c) - 8; });
      out.scale = panel_half(panel + 256 + 2 * r);
      break;
    case Format::kNVFP4:
      panel += 144 * s;
      each([&](int c) { return static_cast<int>(2 * e2m1_to_float(static_cast<uint8_t>(panel_nibble(panel, r, c)))); });
      out.scale = e4m3_to_float(panel[128 + r]) * 0.5f;
      break;
    case Format::kMXFP4:
      panel += 272 * s;
      each([&](int c) { return static_cast<int>(2 * e2m1_to_float(static_cast<uint8_t>(panel_nibble(panel, r, c)))); });
      out.scale = panel[256 + r] == 0 ? 0.0f : e8m0_to_float(panel[256 + r]) * 0.5f;
      break;
    case Format::kQ4_K: {
      panel += 2368 * (s / 8);
      const uint8_t* part = panel + 288 * (s % 8);
      each([&](int c) { return panel_nibble(part, r, c); });
      out.d = panel_half(panel + 2304 + 2 * r);
      out.dmin = panel_half(panel + 2336 + 2 * r);
      out.factor = part[256 + r];
      out.low = part[272 + r];
      out.scale = out.d * static_cast<float>(out.factor);
      out.minimum = out.dmin * static_cast<float>(out.low);
      break;
    }
    case Format::kQ6_K: {
      panel += 3360 * (s / 16);
      const uint8_t* part = panel + 208 * (s % 16);
      each(
          [&](int c) { return (panel_nibble(part, r, c) | (part[128 + 4 * r + c % 4] >> 2 * (c / 4) & 3) << 4) - 32; });
      out.d = panel_half(panel + 3328 + 2 * r);
      out.factor = static_cast<int8_t>(part[192 + r]);
      out.scale = out.d * static_cast<float>(out.factor);
      break;
    }
    default:
      break;
  }
  return out;
}

}  // namespace carpool
