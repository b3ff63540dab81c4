// The table of arithmetic functions of one instruction set.
//
// Owns the Kernels table and its selection by name. Promise "a row is a row" rests here: the value of an output
// depends on its own row and weights alone, never on how many rows share the call or how a range is cut, because
// the order of its sum over K is fixed. Tables of different instruction sets may differ in the last bits.
// Reference: scalar/ (plain C++, the oracle). Read next: backend/cpu/, which is the only folder that sees this one.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention.h"
#include "tensor/activations.h"
#include "tensor/format.h"
#include "tensor/panels.h"

namespace carpool {

// y[m][16 (p - begin) + r] = sum over k of x[m][k] * w[16 p + r][k], for m in [0, rows) and panels p in [begin, end);
// outputs past w.rows are not written. `next` is what the caller reads after this call, or null: the last bytes are
// worked on while the first of those are on their way.
struct PanelProduct {
  const void* const* x = nullptr;  // [rows] rows of w.cols floats, or quantised rows (tensor/activations.h)
  int rows = 0;
  const PanelView* w = nullptr;
  int64_t begin = 0, end = 0;
  float* const* y = nullptr;  // [rows]
  const void* next = nullptr;
};
using PanelKernel = void (*)(const PanelProduct&);

struct Kernels {
  const char* name = "";  // "scalar", "avx2", "avx512"
  // By Format. Float rows: sums in four chains over k mod 4, fused, then (0 + 1) + (2 + 3), times the panel's scale.
  // Quantised rows: exact integer sums of 16 or 32 products, times the sub-block's scale, fused into a sum per 128
  // columns (integers throughout where sub-blocks have integer scales), which is fused times the row's scale into the
  // result; null for formats that are not integer codes.
  std::array<PanelKernel, kFormatCount> product_float{}, product_int8{};
  // Quantises blocks [begin, end) of 128 values of the row x[0..k) into `out`, a QuantizedRow(k).
  void (*quantize)(const float* x, int64_t k, int64_t begin, int64_t end, std::byte* out) = nullptr;
  // Reads every byte and returns the exclusive or of the 64-bit words (the last one filled up with zeros).
  uint64_t (*read)(const std::byte* data, size_t bytes) = nullptr;
  float (*dot)(const float* a, const float* b, int n) = nullptr;
  void (*axpy)(float a, const float* x, float* y, int n) = nullptr;  // y += a * x
  // y[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]; y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, float* y, int n) = nullptr;
  void (*silu_mul)(const float* gate, const float* up, float* y, int n) = nullptr;  // y = gate * sigmoid(gate) * up
  void (*softmax)(float* x, int n) = nullptr;                                       // in place; n >= 1; all finite
  AttentionKernels attention;
};

// Tables this machine can run, slowest first; "scalar" is always there.
const std::vector<const Kernels*>& available_kernels();

// The table called `name`, or the fastest one for "auto". Error{kConfig} for an unknown name (lists all) and
// Error{kUnavailable} for a table that this machine cannot run.
const Kernels& select_kernels(std::string_view name);

}  // namespace carpool
