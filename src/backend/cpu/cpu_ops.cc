// Dense operations: embedding, norms, matrix products, sums, and the bandwidth probe.
//
// A product is cut into tiles of panels small enough to stay in a core's cache while all rows of the batch pass over
// them; each thread begins in a part of the matrix of its own and reads one ascending stream, and each kernel call
// knows where the thread will probably read next.
#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace carpool {
namespace {

constexpr int64_t kTileBytes = 128 << 10;  // of weights: inside L2 beside the activations, and long enough to stream
constexpr int kTasksPerThread = 4;         // at least, when there is work: evens out slow threads
constexpr double kSmallWork = 32 << 10;    // multiply-adds below which waking a thread costs more than it brings
constexpr double kQuantizeWork = 8;        // what quantising a value costs, in multiply-adds
constexpr size_t kReadChunk = size_t{1} << 20;

}  // namespace

int64_t panels_in(int64_t bytes, const PanelView& w) {
  const int64_t fit = std::max<int64_t>(1, bytes / static_cast<int64_t>(w.panel_bytes()));
  return fit == 1 ? 1 : (fit + 1) / 2 * 2;
}

void CpuOps::run(int tasks, double work, TaskRef task) {
  if (work < kSmallWork) {
    for (int i = 0; i < tasks; ++i) task(i, 0);
  } else {
    pool_.run(tasks, task);
  }
}

void CpuOps::embed(const WeightView& table, std::span<const int> tokens, Matrix out) {
  CARPOOL_CHECK(out.cols == table.cols && static_cast<size_t>(out.rows) == tokens.size());
  run(out.rows, kQuantizeWork * out.rows * out.cols, [&](int t, int) {
    const int token = tokens[static_cast<size_t>(t)];
    if (token < 0) {
      std::fill_n(out.row(t), out.cols, 0.0f);
    } else {
      CARPOOL_CHECK(token < table.rows);
      decode_row(table, token, out.row(t));
    }
  });
}

void CpuOps::rms_norm(Matrix x, std::span<const float> weight, float eps, Matrix out) {
  CARPOOL_CHECK(x.rows == out.rows && x.cols == out.cols && weight.size() == static_cast<size_t>(x.cols));
  run(x.rows, 4.0 * x.rows * x.cols,
      [&](int t, int) { kernels_.rms_norm(x.row(t), weight.data(), eps, out.row(t), x.cols); });
}

void CpuOps::layer_norm(Matrix x, std::span<const float> weight, std::span<const float> bias, float eps, Matrix out) {
  const auto n = static_cast<size_t>(x.cols);
  CARPOOL_CHECK(x.rows == out.rows && x.cols == out.cols && weight.size() == n && bias.size() == n);
  run(x.rows, 8.0 * x.rows * x.cols, [&](int t, int) {
    const float* in = x.row(t);
    float* y = out.row(t);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; ++i) sum += static_cast<double>(in[i]);
    const double mean = sum / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) squares += (in[i] - mean) * (in[i] - mean);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(eps));
    for (size_t i = 0; i < n; ++i) y[i] = static_cast<float>((in[i] - mean) * scale) * weight[i] + bias[i];
  });
}

void CpuOps::take_inputs(Matrix x, bool quantized, Inputs& in) {
  in.floats.resize(static_cast<size_t>(x.rows));
  for (int t = 0; t < x.rows; ++t) in.floats[static_cast<size_t>(t)] = x.row(t);
  in.quantized.clear();
  if (!quantized) return;
  const size_t row_bytes = QuantizedRow(x.cols).bytes;
  // One row more than needed: the first is moved up to a cache line.
  const size_t needed = row_bytes * (static_cast<size_t>(x.rows) + 1);
  if (in.storage.size() < needed) in.storage.resize(needed);
  auto address = reinterpret_cast<uintptr_t>(in.storage.data());
  std::byte* rows = in.storage.data() + ((address + 63) / 64 * 64 - address);
  in.quantized.resize(static_cast<size_t>(x.rows));
  for (int t = 0; t < x.rows; ++t) {
    in.quantized[static_cast<size_t>(t)] = rows + static_cast<size_t>(t) * row_bytes;
  }
  const int64_t blocks = (x.cols + kActivationBlock - 1) / kActivationBlock;
  const int pieces = x.rows >= 2 * pool_.size() ? 1 : 2;  // of a row, when there are too few rows to go round
  run(x.rows * pieces, kQuantizeWork * x.rows * x.cols, [&](int task, int) {
    const int t = task / pieces, piece = task % pieces;
    kernels_.quantize(x.row(t), x.cols, blocks * piece / pieces, blocks * (piece + 1) / pieces,
                      rows + static_cast<size_t>(t) * row_bytes);
  });
}

void CpuOps::product(const Tile& tile, const void* const* x, int rows, float* const* y, const void* next) const {
  const auto format = static_cast<size_t>(tile.w->format);
  const PanelKernel kernel = quantizes(*tile.w) ? kernels_.product_int8[format] : kernels_.product_float[format];
  kernel({x, rows, tile.w, tile.begin, tile.end, y, next});
}

void CpuOps::matmul(Matrix x, std::span<const Product> products) {
  if (x.rows == 0) return;
  bool quantized = false;
  int64_t panels = 0;
  double work = 0;
  for (const Product& p : products) {
    CARPOOL_CHECK(x.cols == p.w->cols && p.out.cols == p.w->rows && x.rows == p.out.rows);
    quantized = quantized || quantizes(*p.w);
    panels += p.w->panels();
    work += static_cast<double>(x.rows) * static_cast<double>(p.w->rows) * static_cast<double>(x.cols);
  }
  take_inputs(x, quantized, inputs_);
  const int64_t most = std::max<int64_t>(1, panels / (int64_t{kTasksPerThread} * pool_.size()));
  tiles_.clear();
  tile_outs_.clear();
  for (const Product& p : products) {
    const int64_t size = std::min(panels_in(kTileBytes, *p.w), most);
    for (int64_t begin = 0; begin < p.w->panels(); begin += size) {
      tiles_.push_back({p.w, begin, std::min(begin + size, p.w->panels())});
      tile_outs_.push_back(p.out);
    }
  }
  for (Worker& worker : workers_) {
    if (worker.outputs.size() < static_cast<size_t>(x.rows)) worker.outputs.resize(static_cast<size_t>(x.rows));
  }
  run(static_cast<int>(tiles_.size()), work, [&](int task, int id) {
    const auto i = static_cast<size_t>(tile_of(task, static_cast<int>(tiles_.size())));
    const Tile& tile = tiles_[i];
    float** y = workers_[static_cast<size_t>(id)].outputs.data();
    for (int t = 0; t < x.rows; ++t) y[t] = tile_outs_[i].row(t) + kPanelRows * tile.begin;
    product(tile, (quantizes(*tile.w) ? inputs_.quantized : inputs_.floats).data(), x.rows, y,
            task + pool_.size() < static_cast<int>(tiles_.size()) ? tiles_[i + 1].first() : nullptr);
  });
}

void CpuOps::matmul_heads(Matrix x, int x_step, const PanelView& w, int heads, Matrix out, int out_step) {
  const int64_t R = w.rows / heads, panels = R / kPanelRows;
  CARPOOL_CHECK(heads > 0 && w.rows == R * heads && R % kPanelRows == 0 && x.rows == out.rows);
  CARPOOL_CHECK(x.cols >= (heads - 1) * int64_t{x_step} + w.cols && out.cols >= (heads - 1) * int64_t{out_step} + R);
  if (x.rows == 0) return;
  for (Worker& worker : workers_) {
    if (worker.outputs.size() < static_cast<size_t>(x.rows)) worker.outputs.resize(static_cast<size_t>(x.rows));
    if (worker.inputs.size() < static_cast<size_t>(x.rows)) worker.inputs.resize(static_cast<size_t>(x.rows));
  }
  const PanelKernel kernel = kernels_.product_float[static_cast<size_t>(w.format)];
  const double work = static_cast<double>(x.rows) * static_cast<double>(w.rows) * static_cast<double>(w.cols);
  // Tiles of one head's panels, as even as they come.
  const int64_t fit = panels_in(kTileBytes, w);
  const int64_t wanted = (int64_t{kTasksPerThread} * pool_.size() + heads - 1) / heads;
  const int64_t tiles = std::min(panels, std::max((panels + fit - 1) / fit, wanted));
  const auto begin = [&](int tile) { return tile / tiles * panels + tile % tiles * panels / tiles; };
  const int tasks = static_cast<int>(heads * tiles);
  run(tasks, work, [&](int task, int id) {
    Worker& mine = workers_[static_cast<size_t>(id)];
    const int tile = tile_of(task, tasks);
    const int64_t h = tile / tiles;
    for (int t = 0; t < x.rows; ++t) {
      mine.inputs[static_cast<size_t>(t)] = x.row(t) + h * x_step;
      mine.outputs[static_cast<size_t>(t)] = out.row(t) + h * out_step + kPanelRows * (begin(tile) - h * panels);
    }
    kernel({mine.inputs.data(), x.rows, &w, begin(tile), begin(tile + 1), mine.outputs.data(),
            task + pool_.size() < tasks ? w.panel(begin(tile + 1)) : nullptr});
  });
}

void CpuOps::add_bias(Matrix x, std::span<const float> bias) {
  if (bias.empty()) return;
  CARPOOL_CHECK(bias.size() == static_cast<size_t>(x.cols));
  run(x.rows, 2.0 * x.rows * x.cols, [&](int t, int) { kernels_.axpy(1.0f, bias.data(), x.row(t), x.cols); });
}

void CpuOps::add(Matrix x, Matrix out) {
  CARPOOL_CHECK(x.rows == out.rows && x.cols == out.cols);
  run(x.rows, 2.0 * x.rows * x.cols, [&](int t, int) { kernels_.axpy(1.0f, x.row(t), out.row(t), x.cols); });
}

void CpuOps::router_logits(Matrix x, const PanelView& gate, std::span<float> logits) {
  CARPOOL_CHECK(gate.format == Format::kF32);
  CARPOOL_CHECK(logits.size() == static_cast<size_t>(x.rows) * static_cast<size_t>(gate.rows));
  const Product product{&gate, {logits.data(), x.rows, static_cast<int>(gate.rows), gate.rows}};
  matmul(x, {&product, 1});
}

double CpuOps::read_seconds(std::span<const std::byte> bytes) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<uint64_t> total{0};
  const int chunks = static_cast<int>((bytes.size() + kReadChunk - 1) / kReadChunk);
  pool_.run(chunks, [&](int chunk, int) {
    const size_t begin = static_cast<size_t>(chunk) * kReadChunk;
    total.fetch_xor(kernels_.read(bytes.data() + begin, std::min(kReadChunk, bytes.size() - begin)),
                    std::memory_order_relaxed);
  });
  const volatile uint64_t keep = total.load();  // the result must be made
  static_cast<void>(keep);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::unique_ptr<Ops> make_cpu_ops(int threads, const std::string& isa, Activations activations) {
  if (threads < 1) throw Error(ErrorKind::kConfig, "the number of threads must be at least 1");
  return std::make_unique<CpuOps>(threads, select_kernels(isa), activations);
}

std::vector<std::string> cpu_isa_names() {
  std::vector<std::string> names;
  for (const Kernels* table : available_kernels()) names.emplace_back(table->name);
  return names;
}

}  // namespace carpool
