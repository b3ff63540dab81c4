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

#include "tensor/format.h"

namespace carpool {

// y[m][n] = sum over k of x[m][k] * w[n][k], for m in [0, rows) and n in [begin, end); sums in float32.
// x: `rows` pointers to w.cols floats; y: `rows` pointers to at least `end` floats.
using MatMulKernel = void (*)(const float* const* x, int rows, const WeightView& w, int64_t begin, int64_t end,
                              float* const* y);

struct Kernels {
  const char* name = "";                            // "scalar", "avx2", "avx512"
  std::array<MatMulKernel, kFormatCount> matmul{};  // by Format
  float (*dot)(const float* a, const float* b, int n) = nullptr;
  void (*axpy)(float a, const float* x, float* y, int n) = nullptr;  // y += a * x
  // y[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]; y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, float* y, int n) = nullptr;
  void (*silu_mul)(const float* gate, const float* up, float* y, int n) = nullptr;  // y = gate * sigmoid(gate) * up
  void (*softmax)(float* x, int n) = nullptr;                                       // in place; n >= 1; all finite
};

// Tables this machine can run, slowest first; "scalar" is always there.
const std::vector<const Kernels*>& available_kernels();

// The table called `name`, or the fastest one for "auto". Error{kConfig} for an unknown name (lists all) and
// Error{kUnavailable} for a table that this machine cannot run.
const Kernels& select_kernels(std::string_view name);

}  // namespace carpool
