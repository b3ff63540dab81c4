// The integer codes and scales of one row's sub-block of a panel, read slowly: what the scalar products are made of,
// and an oracle that shares nothing with the fast kernels. Layouts: tensor/panels.h.
#pragma once

#include <cstring>

#include "tensor/panels.h"

namespace carpool {

// Value of column c = scale * codes[c] - minimum; codes without their zero point. Formats with integer scales have
// scale = d * factor and minimum = dmin * low.
struct SubBlock {
  int columns = 32;
  int codes[32];
  float scale = 0, minimum = 0;
  int factor = 0, low = 0;
  float d = 0, dmin = 0;
};

constexpr bool has_integer_scales(Format format) {
  return format == Format::kQ2_K || format == Format::kQ3_K || format == Format::kQ4_K || format == Format::kQ5_K ||
         format == Format::kQ6_K;
}

// Whether sub-blocks have a minimum that is no integer times one of the block.
constexpr bool has_float_minima(Format format) { return format == Format::kQ4_1 || format == Format::kQ5_1; }

constexpr bool has_sub_blocks(Format format) {
  return format != Format::kF32 && format != Format::kBF16 && format != Format::kF16 && format != Format::kFP8;
}

constexpr int sub_block_columns(Format format) {
  return format == Format::kNVFP4 || format == Format::kQ2_K || format == Format::kQ3_K || format == Format::kQ6_K ? 16
                                                                                                                   : 32;
}

// Column c's nibble of row r in pairs of groups of four columns.
inline int panel_nibble(const uint8_t* pairs, int r, int c) {
  const uint8_t byte = pairs[64 * (c / 8) + 4 * r + c % 4];
  return c % 8 < 4 ? byte & 15 : byte >> 4;
}

// Column c's bit of row r in words of one bit for each of 32 columns.
inline int panel_bit(const uint8_t* words, int r, int c) { return words[4 * r + c % 4] >> (c / 4) & 1; }

// Column c's two bits of row r in words of 16 columns.
inline int panel_pair(const uint8_t* words, int r, int c) { return words[4 * r + c % 4] >> 2 * (c / 4) & 3; }

inline float panel_float(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, 4);
  return value;
}

// IQ4_NL and IQ4_XS.
inline constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

inline float panel_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_to_float(bits);
}

// Of a format that GGUF stores in blocks of 256.
inline SubBlock read_k_sub_block(Format format, const uint8_t* panel, int64_t s, int r) {
  SubBlock out;
  out.columns = sub_block_columns(format);
  const auto each = [&](auto value) {
    for (int c = 0; c < out.columns; ++c) out.codes[c] = value(c);
  };
  switch (format) {
    case Format::kQ4_K: {
      panel += 2368 * (s / 8);
      const uint8_t* part = panel + 288 * (s % 8);
      each([&](int c) { return panel_nibble(part, r, c); });
      out.d = panel_half(panel + 2304 + 2 * r);
      out.dmin = panel_half(panel + 2336 + 2 * r);
      out.factor = part[256 + r];
      out.low = part[272 + r];
      break;
    }
    case Format::kQ6_K: {
      panel += 3360 * (s / 16);
      const uint8_t* part = panel + 208 * (s % 16);
      each(
          [&](int c) { return (panel_nibble(part, r, c) | (part[128 + 4 * r + c % 4] >> 2 * (c / 4) & 3) << 4) - 32; });
      out.d = panel_half(panel + 3328 + 2 * r);
      out.factor = static_cast<int8_t>(part[192 + r]);
      break;
    }
    case Format::kQ5_K: {
      panel += 2880 * (s / 8);
      const uint8_t* part = panel + 352 * (s % 8);
      each([&](int c) { return panel_nibble(part, r, c) | panel_bit(part + 256, r, c) << 4; });
      out.d = panel_half(panel + 2816 + 2 * r);
      out.dmin = panel_half(panel + 2848 + 2 * r);
      out.factor = part[320 + r];
      out.low = part[336 + r];
      break;
    }
    case Format::kQ2_K: {
      panel += 1344 * (s / 16);
      const uint8_t* part = panel + 80 * (s % 16);
      each([&](int c) { return panel_pair(part, r, c); });
      out.d = panel_half(panel + 1280 + 2 * r);
      out.dmin = panel_half(panel + 1312 + 2 * r);
      out.factor = part[64 + r] & 15;
      out.low = part[64 + r] >> 4;
      break;
    }
    case Format::kQ3_K: {
      panel += 1824 * (s / 16);
      const uint8_t* pair = panel + 224 * (s % 16 / 2);
      const int half = static_cast<int>(s % 2);
      each([&](int c) {
        return (panel_pair(pair + 64 * half, r, c) | panel_bit(pair + 128, r, 16 * half + c) << 2) - 4;
      });
      out.d = panel_half(panel + 1792 + 2 * r);
      out.factor = static_cast<int8_t>(pair[192 + 16 * half + r]);
      break;
    }
    default:
      break;
  }
  out.scale = out.d * static_cast<float>(out.factor);
  out.minimum = out.dmin * static_cast<float>(out.low);
  return out;
}

// Sub-block `s` of row `r`, 0..15, of the panel at `panel`. E2M1 codes are twice the value.
inline SubBlock read_sub_block(Format format, const uint8_t* panel, int64_t s, int r) {
  if (has_integer_scales(format)) return read_k_sub_block(format, panel, s, r);
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
    case Format::kQ4_1:
      panel += 320 * s;
      each([&](int c) { return panel_nibble(panel, r, c); });
      out.scale = panel_half(panel + 256 + 2 * r);
      out.minimum = -panel_half(panel + 288 + 2 * r);
      break;
    case Format::kQ5_0:
      panel += 352 * s;
      each([&](int c) { return (panel_nibble(panel, r, c) | panel_bit(panel + 256, r, c) << 4) - 16; });
      out.scale = panel_half(panel + 320 + 2 * r);
      break;
    case Format::kQ5_1:
      panel += 384 * s;
      each([&](int c) { return panel_nibble(panel, r, c) | panel_bit(panel + 256, r, c) << 4; });
      out.scale = panel_half(panel + 320 + 2 * r);
      out.minimum = -panel_half(panel + 352 + 2 * r);
      break;
    case Format::kIQ4_NL:
      panel += 288 * s;
      each([&](int c) { return kIq4[panel_nibble(panel, r, c)]; });
      out.scale = panel_half(panel + 256 + 2 * r);
      break;
    case Format::kIQ4_XS: {
      panel += 2208 * (s / 8);
      const uint8_t* part = panel + 272 * (s % 8);
      each([&](int c) { return kIq4[panel_nibble(part, r, c)]; });
      out.scale = panel_half(panel + 2176 + 2 * r) * static_cast<float>(static_cast<int8_t>(part[256 + r]));
      break;
    }
    case Format::kINT4: {
      panel += 288 * s;
      each([&](int c) { return panel_nibble(panel, r, c) - 8; });
      uint16_t bits;
      std::memcpy(&bits, panel + 256 + 2 * r, 2);
      out.scale = bf16_to_float(bits);
      break;
    }
    case Format::kINT4F:
      panel += 336 * s;
      each([&](int c) { return panel_nibble(panel, r, c) - panel[320 + r]; });
      out.scale = panel_float(panel + 256 + 4 * r);
      break;
    case Format::kINT8:
      panel += 592 * s;
      each([&](int c) {
        return static_cast<int8_t>(panel[64 * (c / 4) + 4 * r + c % 4]) - static_cast<int8_t>(panel[576 + r]);
      });
      out.scale = panel_float(panel + 512 + 4 * r);
      break;
    default:
      break;
  }
  return out;
}

}  // namespace carpool
