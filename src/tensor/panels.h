// Weights in the order that kernels stream them.
//
// A panel is 16 consecutive rows (outputs) of a weight matrix, cut along K into blocks of panel_elements columns; in a
// block the 16 rows stand side by side, so that one vector register holds the same columns of 8 or 16 rows and a sum
// needs no reduction across lanes. All instruction sets share one layout. Rows past the last are zeros; columns past
// the last (F32, BF16 and FP8 with a ragged end) are zeros too. Inside a block:
//   F32    16 floats of one k
//   BF16   16 words of 32 bits, k in the lower and k+1 in the upper half
//   F16    16 halves of one k
//   Q8_0   8 x 64 bytes: word r of group j = columns 4j..4j+3 of row r, signed; then 16 half scales
//   Q4_0   4 x 64 bytes: byte c of word r of pair j = column 8j+c of row r in the low nibble, 8j+4+c in the high one,
//          0..15 for -8..7; then 16 half scales
//   NVFP4  2 x 64 bytes of E2M1 nibbles paired as in Q4_0 (16 columns); then 16 E4M3 scales
//   MXFP4  4 x 64 bytes of E2M1 nibbles paired as in Q4_0; then 16 E8M0 scales
//   Q4_K   8 times (4 x 64 bytes of nibbles as in Q4_0, 0..15; 16 scales 0..63; 16 minima 0..63); 16 half d;
//          16 half dmin
//   Q6_K   16 times (2 x 64 bytes: low 4 bits paired as in Q4_0 (16 columns); 64 bytes: byte c of word r = upper
//          2 bits of columns c, 4+c, 8+c, 12+c of row r, lowest first; 16 signed scales); 16 half d
//   Q4_1   4 x 64 bytes of nibbles as in Q4_0, 0..15; 16 half scales; 16 half minima
//   Q5_0   4 x 64 bytes of nibbles as in Q4_0; 64 bytes: bit g of byte c of word r = fifth bit of column 4g+c of row r;
//          16 half scales; 0..31 for -16..15
//   Q5_1   as Q5_0, 0..31, and 16 half minima
//   Q5_K   8 times (nibbles and fifth bits as in Q5_0; 16 scales 0..63; 16 minima 0..63); 16 half d; 16 half dmin
//   Q2_K   16 times (64 bytes: byte c of word r = codes 0..3 of columns c, 4+c, 8+c, 12+c of row r, lowest first; 16
//          bytes: scale 0..15 in the low nibble, minimum in the high one); 16 half d; 16 half dmin
//   Q3_K   8 times (2 x 64 bytes as in Q2_K: low 2 bits of 16 columns each; 64 bytes of third bits as Q5_0's fifth
//   ones;
//          2 x 16 signed scales), 0..7 for -4..3; 16 half d
//   IQ4_NL as Q4_0; codes choose levels
//   IQ4_XS 8 times (4 x 64 bytes of nibbles as in Q4_0, which choose levels; 16 signed scales); 16 half d
//   INT4   as Q4_0, the scales bfloat16
//   INT4F  4 x 64 bytes of nibbles as in Q4_0, 0..15; 16 float32 scales; 16 zero points 0..15
//   INT8   8 x 64 bytes as in Q8_0; 16 float32 scales; 16 signed zero points
//   FP8    128 x 16 bytes: the 16 rows of one k; then 16 float32 scales
// NVFP4 scales are E4M3 with sign, whatever the file had (GGUF's 0x7f has become 0), and NaN scales make NaN. MXFP4:
// 255 is NaN; the scale byte 0 (2^-127) may be taken for zero by kernels, which have no subnormal numbers to spare. The
// zeros past the last row are bytes of value 0 (a Q4_0 code there is not 8: its scale is 0). Packing leaves out
// WeightView::scale; whoever packs puts it into PanelView::scale.
// A view owns nothing; packing is one panel at a time, so callers may pack in parallel.
#pragma once

#include "tensor/format.h"

namespace carpool {

inline constexpr int kPanelRows = 16;

// Panels of a matrix [rows, cols], one after another. Even panels are multiplied by scale[0],
// odd ones by scale[1]: the gate and up matrices of an expert are stored as one view whose panels alternate.
struct PanelView {
  Format format = Format::kF32;
  const std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  float scale[2] = {1.0f, 1.0f};

  int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  size_t panel_bytes() const {
    const FormatInfo& f = info(format);
    return static_cast<size_t>((cols + f.panel_elements - 1) / f.panel_elements) * static_cast<size_t>(f.panel_bytes);
  }
  size_t bytes() const { return panel_bytes() * static_cast<size_t>(panels()); }
  const std::byte* panel(int64_t p) const { return data + static_cast<size_t>(p) * panel_bytes(); }
};

// Row `r` of `view` as float32, scale included: what kernels must compute with.
void unpack_row(const PanelView& view, int64_t r, float* out);

}  // namespace carpool
