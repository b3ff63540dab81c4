// The scalar table: plain C++ that says what every other table must compute, and the oracle of their tests.
//
// Sums run in eight interleaved partial sums (k mod 8), added in a fixed tree at the end: more exact than one long
// chain, and still independent of how many rows or columns share a call. Weights are read byte-wise, because a mapped
// file aligns them to nothing. Does not use intrinsics; what the compiler makes of it is baseline code.
#include <cmath>
#include <cstring>

#include "kernels/tables.h"

namespace carpool {
namespace {

constexpr int kLanes = 8;

struct LoadF32 {
  static constexpr int kBytes = 4;
  static float at(const std::byte* row, int64_t k) {
    float value;
    std::memcpy(&value, row + k * kBytes, kBytes);
    return value;
  }
};

struct LoadBF16 {
  static constexpr int kBytes = 2;
  static float at(const std::byte* row, int64_t k) {
    uint16_t bits;
    std::memcpy(&bits, row + k * kBytes, kBytes);
    return bf16_to_float(bits);
  }
};

float sum_lanes(const float* s) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }

template <class Load>
float dot_row(const float* x, const std::byte* w, int64_t n) {
  float sum[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    for (int i = 0; i < kLanes; ++i) sum[i] += x[k + i] * Load::at(w, k + i);
  }
  for (int i = 0; k < n; ++k, ++i) sum[i] += x[k] * Load::at(w, k);
  return sum_lanes(sum);
}

template <class Load>
void matmul(const float* const* x, int rows, const WeightView& w, int64_t begin, int64_t end, float* const* y) {
  const auto* weights = static_cast<const std::byte*>(w.data);
  for (int64_t n = begin; n < end; ++n) {
    const std::byte* row = weights + n * w.cols * Load::kBytes;
    for (int m = 0; m < rows; ++m) y[m][n] = dot_row<Load>(x[m], row, w.cols);
  }
}

float dot(const float* a, const float* b, int n) {
  return dot_row<LoadF32>(a, reinterpret_cast<const std::byte*>(b), n);
}

void axpy(float a, const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] += a * x[i];
}

void rms_norm(const float* x, const float* weight, float eps, float* y, int n) {
  const float scale = 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
  for (int i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

void silu_mul(const float* gate, const float* up, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void softmax(float* x, int n) {
  float top = x[0];
  for (int i = 1; i < n; ++i) top = x[i] > top ? x[i] : top;
  float sum[kLanes] = {};
  for (int i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - top);
    sum[i % kLanes] += x[i];
  }
  const float total = sum_lanes(sum);
  for (int i = 0; i < n; ++i) x[i] /= total;
}

}  // namespace

constinit const Kernels kScalarKernels = {
    .name = "scalar",
    .matmul =
        {
#define CARPOOL_FORMAT(id, name, dtype, elements, bytes) matmul<Load##id>,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
        },
    .dot = dot,
    .axpy = axpy,
    .rms_norm = rms_norm,
    .silu_mul = silu_mul,
    .softmax = softmax,
};

}  // namespace carpool
