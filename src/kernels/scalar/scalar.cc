// The scalar table: plain C++ that says what every other table must compute, and the oracle of their tests.
//
// Products sum in the order that kernels.h fixes, so they have the same bits as those of every other table; the vector
// functions sum in eight interleaved partial sums (k mod 8), added in a fixed tree at the end. Does not use intrinsics;
// what the compiler makes of it is baseline code, but for the one loop that most of the time goes to.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/scalar/attention.h"
#include "kernels/scalar/sub_blocks.h"
#include "kernels/tables.h"

namespace carpool {
namespace {

constexpr int kLanes = 8;

float sum_lanes(const float* s) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }

constexpr int kColumns = 32;  // decoded at a time: whole sub-blocks, a divisor of every block
constexpr int kRows = 16;     // of activations that share what was decoded

// Columns [k, k + count) of row `r`, 0..15, of a panel as floats without the view's scale; k is a multiple of kColumns.
void read_weights(Format format, const uint8_t* panel, int64_t k, int count, int r, float* out) {
  const auto each = [&](auto value) {
    for (int c = 0; c < count; ++c) out[c] = value(k + c);
  };
  switch (format) {
    case Format::kF32:
      each([&](int64_t i) {
        float value;
        std::memcpy(&value, panel + 64 * i + 4 * r, 4);
        return value;
      });
      return;
    case Format::kBF16:
      each([&](int64_t i) {
        uint16_t bits;
        std::memcpy(&bits, panel + 64 * (i / 2) + 4 * r + 2 * (i % 2), 2);
        return bf16_to_float(bits);
      });
      return;
    case Format::kF16:
      each([&](int64_t i) { return panel_half(panel + 32 * i + 2 * r); });
      return;
    case Format::kFP8: {
      const uint8_t* block = panel + 2112 * (k / 128);
      float scale;
      std::memcpy(&scale, block + 2048 + 4 * r, 4);
      each([&](int64_t i) { return e4m3_to_float(block[16 * (i % 128) + r]) * scale; });
      return;
    }
    default: {
      const int columns = sub_block_columns(format);
      for (int at = 0; at < count; at += columns) {
        const SubBlock w = read_sub_block(format, panel, (k + at) / columns, r);
        for (int c = 0; c < columns; ++c) out[at + c] = static_cast<float>(w.codes[c]) * w.scale - w.minimum;
      }
    }
  }
}

// sums[c mod 4] += x[c] * w[c], each a fused multiply-add.
[[gnu::always_inline]] inline void add_products_of(const float* x, const float* w, int columns, float* sums) {
  float s[4] = {sums[0], sums[1], sums[2], sums[3]};
  int c = 0;
  for (; c + 4 <= columns; c += 4) {
    for (int j = 0; j < 4; ++j) s[j] = std::fma(x[c + j], w[c + j], s[j]);
  }
  for (; c < columns; ++c) s[c % 4] = std::fma(x[c], w[c], s[c % 4]);
  std::memcpy(sums, s, sizeof s);
}

// Without its instruction a fused multiply-add is a call into the C library, and tests that force this table take
// several times as long. The bits are the same: both round once.
#if defined(__x86_64__)
[[gnu::target("fma")]] void add_products_fused(const float* x, const float* w, int columns, float* sums) {
  add_products_of(x, w, columns, sums);
}
#endif

void add_products(const float* x, const float* w, int columns, float* sums) {
#if defined(__x86_64__)
  static const bool fused = __builtin_cpu_supports("fma");
  if (fused) return add_products_fused(x, w, columns, sums);
#endif
  add_products_of(x, w, columns, sums);
}

// Rows [m, m + count) of activations times weight row `r`.
void product_float_of(const PanelProduct& p, int64_t r, int m, int count) {
  const auto* panel = reinterpret_cast<const uint8_t*>(p.w->panel(r / kPanelRows));
  float sums[kRows][4] = {};
  for (int64_t k = 0; k < p.w->cols; k += kColumns) {
    const int columns = static_cast<int>(std::min<int64_t>(kColumns, p.w->cols - k));
    float w[kColumns];
    read_weights(p.w->format, panel, k, columns, static_cast<int>(r % kPanelRows), w);
    for (int i = 0; i < count; ++i) {
      add_products(static_cast<const float*>(p.x[m + i]) + k, w, columns, sums[i]);
    }
  }
  for (int i = 0; i < count; ++i) {
    const float* s = sums[i];
    p.y[m + i][r - kPanelRows * p.begin] = ((s[0] + s[1]) + (s[2] + s[3])) * p.w->scale[r / kPanelRows % 2];
  }
}

void product_float(const PanelProduct& p) {
  for (int64_t r = kPanelRows * p.begin; r < kPanelRows * p.end && r < p.w->rows; ++r) {
    for (int m = 0; m < p.rows; m += kRows) product_float_of(p, r, m, std::min(kRows, p.rows - m));
  }
}

// As product_float_of, with codes of activations.
void product_int8_of(const PanelProduct& p, int64_t r, int m, int count) {
  const int64_t k = p.w->cols, columns = sub_block_columns(p.w->format);
  const auto* panel = reinterpret_cast<const uint8_t*>(p.w->panel(r / kPanelRows));
  const QuantizedRow layout(k);
  float totals[kRows] = {}, parts[kRows] = {};
  int scaled[kRows] = {}, taken[kRows] = {};  // of formats with integer scales
  for (int64_t s = 0; s < k / columns; ++s) {
    const SubBlock w = read_sub_block(p.w->format, panel, s, static_cast<int>(r % kPanelRows));
    const int64_t done = (s + 1) * columns;
    const bool ends = done % kActivationBlock == 0 || done == k;  // a block of activations
    for (int i = 0; i < count; ++i) {
      const auto* x = static_cast<const std::byte*>(p.x[m + i]);
      const auto* codes = reinterpret_cast<const int8_t*>(x) + s * columns;
      const auto* scales = reinterpret_cast<const float*>(x + layout.scales);
      int product = 0, sum = 0;
      for (int c = 0; c < columns; ++c) {
        product += w.codes[c] * codes[c];
        sum += codes[c];
      }
      if (has_integer_scales(p.w->format)) {
        scaled[i] += w.factor * product;
        taken[i] += w.low * sum;
      } else {
        parts[i] = std::fma(static_cast<float>(product), w.scale, parts[i]);
        if (has_float_minima(p.w->format)) parts[i] = std::fma(-w.minimum, static_cast<float>(sum), parts[i]);
      }
      if (!ends) continue;
      if (has_integer_scales(p.w->format))
        parts[i] = std::fma(-w.dmin, static_cast<float>(taken[i]), static_cast<float>(scaled[i]) * w.d);
      totals[i] = std::fma(parts[i], scales[(done - 1) / kActivationBlock], totals[i]);
      parts[i] = 0;
      scaled[i] = taken[i] = 0;
    }
  }
  for (int i = 0; i < count; ++i) p.y[m + i][r - kPanelRows * p.begin] = totals[i] * p.w->scale[r / kPanelRows % 2];
}

void product_int8(const PanelProduct& p) {
  for (int64_t r = kPanelRows * p.begin; r < kPanelRows * p.end && r < p.w->rows; ++r) {
    for (int m = 0; m < p.rows; m += kRows) product_int8_of(p, r, m, std::min(kRows, p.rows - m));
  }
}

void quantize(const float* x, int64_t k, int64_t begin, int64_t end, std::byte* out) {
  const QuantizedRow layout(k);
  auto* codes = reinterpret_cast<int8_t*>(out);
  auto* sums16 = reinterpret_cast<int32_t*>(out + layout.sums16);
  auto* sums32 = reinterpret_cast<int32_t*>(out + layout.sums32);
  for (int64_t b = begin; b < end; ++b) {
    const auto at = [&](int64_t i) { return b * kActivationBlock + i < k ? x[b * kActivationBlock + i] : 0.0f; };
    float largest = 0;
    bool finite = true;
    for (int i = 0; i < kActivationBlock; ++i) {
      largest = std::fmax(largest, std::fabs(at(i)));
      finite = finite && std::isfinite(at(i));
    }
    const bool none = largest < kActivationZero;
    const float inverse = none ? 0.0f : 127.0f / largest;
    float scale = none ? 0.0f : largest / 127.0f;
    if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(out + layout.scales + static_cast<size_t>(b) * sizeof(float), &scale, sizeof(float));
    for (int i = 0; i < kActivationBlock; ++i) {
      const int code = finite ? static_cast<int>(std::nearbyint(at(i) * inverse)) : 0;
      codes[b * kActivationBlock + i] = static_cast<int8_t>(code);
      if (i % 16 == 0) sums16[8 * b + i / 16] = 0;
      if (i % 32 == 0) sums32[4 * b + i / 32] = 0;
      sums16[8 * b + i / 16] += code;
      sums32[4 * b + i / 32] += code;
    }
  }
}

uint64_t read_bytes(const std::byte* data, size_t bytes) {
  uint64_t all = 0;
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    all ^= word;
  }
  for (; i < bytes; ++i) all ^= static_cast<uint64_t>(data[i]) << 8 * (i % 8);
  return all;
}

float dot(const float* a, const float* b, int n) {
  float sum[kLanes] = {};
  for (int i = 0; i < n; ++i) sum[i % kLanes] += a[i] * b[i];
  return sum_lanes(sum);
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
    .product_float =
        {
#define CARPOOL_FORMAT(id, ...) product_float,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
        },
    .product_int8 =
        {
#define CARPOOL_FORMAT(id, ...) has_sub_blocks(Format::k##id) ? product_int8 : nullptr,
#include "tensor/formats.def"
#undef CARPOOL_FORMAT
        },
    .quantize = quantize,
    .read = read_bytes,
    .dot = dot,
    .axpy = axpy,
    .rms_norm = rms_norm,
    .silu_mul = silu_mul,
    .softmax = softmax,
    .attention = {scalar::rotate, scalar::rotate_pairs, scalar::attention_span, scalar::attention_merge,
                  scalar::attention_finish, scalar::attention_index},
};

}  // namespace carpool
