// Dense operations: embedding, norms, matrix products, sums, and the bandwidth probe.
//
// A product is cut into tiles of weight rows small enough to stay in a core's cache while all rows of the batch pass
// over them; tiles are handed out in memory order, so the threads together read one ascending stream.
#include "backend/cpu/cpu_ops.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace carpool {
namespace {

constexpr int64_t kTileBytes = 256 << 10;  // of weights: inside L2 beside the activations, and long enough to stream
constexpr int64_t kTileRows = 8;           // kernels work on groups of eight weight rows
constexpr int kTasksPerThread = 4;         // at least, when there is work: evens out slow threads
constexpr double kSmallWork = 32 << 10;    // multiply-adds below which waking a thread costs more than it brings
constexpr size_t kReadChunk = size_t{1} << 20;

// Sums the 64-bit words of `bytes`; eight chains, so that loads, not additions, are the limit.
uint64_t sum_words(std::span<const std::byte> bytes) {
  uint64_t sum[8] = {};
  size_t i = 0;
  for (; i + 64 <= bytes.size(); i += 64) {
    uint64_t words[8];
    std::memcpy(words, bytes.data() + i, 64);
    for (int j = 0; j < 8; ++j) sum[j] += words[j];
  }
  for (; i < bytes.size(); ++i) sum[0] += static_cast<uint64_t>(bytes[i]);
  uint64_t total = 0;
  for (const uint64_t s : sum) total += s;
  return total;
}

}  // namespace

CpuOps::Tiles CpuOps::tiles_for(const WeightView& w, int parts) const {
  const int64_t row_bytes = std::max<int64_t>(1, static_cast<int64_t>(w.row_bytes()));
  int64_t size = std::max<int64_t>(kTileBytes / row_bytes, 1);
  const int64_t wanted = (int64_t{kTasksPerThread} * pool_.size() + parts - 1) / parts;
  size = std::min(size, (w.rows + wanted - 1) / wanted);
  size = std::max<int64_t>((size + kTileRows - 1) / kTileRows * kTileRows, kTileRows);
  return {size, static_cast<int>((w.rows + size - 1) / size)};
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
  for (int t = 0; t < out.rows; ++t) {
    const int token = tokens[static_cast<size_t>(t)];
    if (token < 0) {
      std::fill_n(out.row(t), out.cols, 0.0f);
    } else {
      CARPOOL_CHECK(token < table.rows);
      decode_row(table, token, out.row(t));
    }
  }
}

void CpuOps::rms_norm(Matrix x, std::span<const float> weight, float eps, Matrix out) {
  CARPOOL_CHECK(x.rows == out.rows && x.cols == out.cols && weight.size() == static_cast<size_t>(x.cols));
  run(x.rows, 4.0 * x.rows * x.cols,
      [&](int t, int) { kernels_.rms_norm(x.row(t), weight.data(), eps, out.row(t), x.cols); });
}

void CpuOps::matmul(Matrix x, const WeightView& w, Matrix out) {
  CARPOOL_CHECK(x.cols == w.cols && out.cols == w.rows && x.rows == out.rows);
  if (x.rows == 0 || w.rows == 0) return;
  x_rows_.resize(static_cast<size_t>(x.rows));
  y_rows_.resize(static_cast<size_t>(x.rows));
  for (int t = 0; t < x.rows; ++t) {
    x_rows_[static_cast<size_t>(t)] = x.row(t);
    y_rows_[static_cast<size_t>(t)] = out.row(t);
  }
  const MatMulKernel kernel = kernels_.matmul[static_cast<size_t>(w.format)];
  const Tiles tiles = tiles_for(w, 1);
  const double work = static_cast<double>(x.rows) * static_cast<double>(w.rows) * static_cast<double>(w.cols);
  run(tiles.count, work, [&](int tile, int) {
    const int64_t begin = tile * tiles.size;
    kernel(x_rows_.data(), x.rows, w, begin, std::min(begin + tiles.size, w.rows), y_rows_.data());
  });
}

void CpuOps::add(Matrix x, Matrix out) {
  CARPOOL_CHECK(x.rows == out.rows && x.cols == out.cols);
  run(x.rows, 2.0 * x.rows * x.cols, [&](int t, int) { kernels_.axpy(1.0f, x.row(t), out.row(t), x.cols); });
}

void CpuOps::router_logits(Matrix x, const WeightView& gate, std::span<float> logits) {
  CARPOOL_CHECK(gate.format == Format::kF32);
  CARPOOL_CHECK(logits.size() == static_cast<size_t>(x.rows) * static_cast<size_t>(gate.rows));
  matmul(x, gate, {logits.data(), x.rows, static_cast<int>(gate.rows), gate.rows});
}

double CpuOps::read_seconds(std::span<const std::byte> bytes) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<uint64_t> total{0};
  const int chunks = static_cast<int>((bytes.size() + kReadChunk - 1) / kReadChunk);
  pool_.run(chunks, [&](int chunk, int) {
    const size_t begin = static_cast<size_t>(chunk) * kReadChunk;
    total.fetch_add(sum_words(bytes.subspan(begin, std::min(kReadChunk, bytes.size() - begin))),
                    std::memory_order_relaxed);
  });
  const volatile uint64_t keep = total.load();  // the sum must be made
  static_cast<void>(keep);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::unique_ptr<Ops> make_cpu_ops(int threads, const std::string& isa) {
  if (threads < 1) throw Error(ErrorKind::kConfig, "the number of threads must be at least 1");
  return std::make_unique<CpuOps>(threads, select_kernels(isa));
}

std::vector<std::string> cpu_isa_names() {
  std::vector<std::string> names;
  for (const Kernels* table : available_kernels()) names.emplace_back(table->name);
  return names;
}

}  // namespace carpool
