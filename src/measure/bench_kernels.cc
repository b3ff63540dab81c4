#include "measure/bench_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/time.h"
#include "measure/ab.h"
#include "measure/bench_weights.h"
#include "model/dummy.h"
#include "tensor/random_bits.h"

namespace carpool {
namespace {

void check_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    throw Error(ErrorKind::kUsage, fmt::format("{} must be {} to {}, got {}", what, low, high, value));
}

// Mean seconds of a call, over as many calls as fill `seconds`. `turn` goes on through the copies.
struct Caller {
  Ops& ops;
  Matrix x, y;
  std::span<const PanelView> copies;  // one when hot
  size_t turn = 0;

  void call() {
    const Product product{&copies[turn++ % copies.size()], y};
    ops.matmul(x, {&product, 1});
  }
  double mean_seconds(double seconds) {
    const double start = now_seconds();
    for (int calls = 1;; ++calls) {
      call();
      const double elapsed = now_seconds() - start;
      if (elapsed >= seconds) return elapsed / calls;
    }
  }
};

struct Cell {
  KernelRow row;
  size_t ops = 0;  // index into the backends
  RowTimes times;
};

struct Backend {
  std::string isa;
  int threads = 0;
  std::unique_ptr<Ops> ops;
};

std::vector<Backend> make_backends(const KernelOptions& o) {
  std::vector<Backend> out;
  for (const std::string& isa : o.isas) {
    for (const int threads : o.threads) out.push_back({isa, threads, make_cpu_ops(threads, isa)});
  }
  return out;
}

// All cells of one format, in the order of the report.
std::vector<Cell> make_cells(const KernelOptions& o, Format format, const std::vector<Backend>& backends, bool hot_fits,
                             size_t bytes) {
  std::vector<Cell> cells;
  for (const bool cold : {true, false}) {
    if (!cold && !hot_fits) continue;
    for (size_t b = 0; b < backends.size(); ++b) {
      for (const int rows : o.rows) {
        Cell& cell = cells.emplace_back();
        cell.ops = b;
        cell.row = {format,
                    backends[b].isa,
                    backends[b].threads,
                    rows,
                    cold,
                    static_cast<double>(bytes),
                    static_cast<double>(rows) * static_cast<double>(o.k) * static_cast<double>(o.n),
                    {},
                    {}};
      }
    }
  }
  return cells;
}

std::vector<float> random_rows(int rows, int64_t cols, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(rows) * static_cast<size_t>(cols));
  RandomBits bits(seed);
  for (float& v : values) v = static_cast<float>(bits.next() >> 40) * 0x1p-23f - 1.0f;
  return values;
}

std::string place(const KernelRow& row) { return row.cold ? "from memory" : "from cache"; }

}  // namespace

void check_kernels(const KernelOptions& o) {
  check_range("inputs of the matrix", o.k, 1, 1 << 17);
  check_range("outputs of the matrix", o.n, 1, 1 << 20);
  check_range("repeats", o.repeats, 1, 1000);
  for (const auto& [list, what] : {std::pair{o.formats.size(), "format"},
                                   {o.isas.size(), "instruction set"},
                                   {o.rows.size(), "number of rows"},
                                   {o.threads.size(), "number of threads"}}) {
    if (list == 0) throw Error(ErrorKind::kUsage, fmt::format("no {} to measure", what));
  }
  for (const int r : o.rows) check_range("rows", r, 1, 4096);
  for (const int t : o.threads) check_range("threads", t, 1, 1024);
  for (const Format format : o.formats) check_columns(format, o.k, "the matrix");
}

std::vector<KernelRow> run_kernels(const KernelOptions& o) {
  check_kernels(o);
  std::vector<Backend> backends = make_backends(o);
  Ops& fastest = *backends.back().ops;
  const size_t last = backends.size() - o.threads.size();
  std::vector<std::vector<double>> bandwidth(o.threads.size());
  BenchProbe probe(o.probe_bytes);
  const int most_rows = *std::max_element(o.rows.begin(), o.rows.end());
  std::vector<float> x = random_rows(most_rows, o.k, o.seed),
                     y(static_cast<size_t>(most_rows) * static_cast<size_t>(o.n));
  std::vector<Cell> all;
  for (size_t f = 0; f < o.formats.size(); ++f) {
    const PanelView shape{o.formats[f], nullptr, o.n, o.k, {1, 1}};
    const size_t bytes = shape.bytes();
    const int copies = static_cast<int>((4 * last_level_cache() + bytes - 1) / bytes) + 1;
    const RandomPanels weights(fastest, shape, copies, o.seed, "the copies of the matrix");
    std::vector<Cell> cells = make_cells(o, o.formats[f], backends, bytes <= last_level_cache() / 2, bytes);
    for (int r = 0; r < o.repeats; ++r) {
      if (o.progress) {
        o.progress(std::string(info(o.formats[f]).name), (static_cast<double>(f) + static_cast<double>(r) / o.repeats) /
                                                             static_cast<double>(o.formats.size()));
      }
      // Reading needs no kernels: the last instruction set stands for all.
      for (size_t t = 0; t < o.threads.size(); ++t) bandwidth[t].push_back(probe.pass(*backends[last + t].ops));
      for (Cell& cell : cells) {
        const auto views = weights.views().first(cell.row.cold ? weights.views().size() : 1);
        Caller caller{*backends[cell.ops].ops,
                      {x.data(), cell.row.rows, static_cast<int>(o.k), o.k},
                      {y.data(), cell.row.rows, static_cast<int>(o.n), o.n},
                      views};
        if (!cell.row.cold) caller.call();  // into the cache
        cell.times.add_step(caller.mean_seconds(o.seconds));
        cell.times.end_repeat();
      }
    }
    std::move(cells.begin(), cells.end(), std::back_inserter(all));
  }
  std::vector<KernelRow> rows;
  for (const Cell& cell : all) {
    KernelRow& row = rows.emplace_back(cell.row);
    row.call_ms = cell.times.ms();
    row.read_gbps = median_with_extremes(bandwidth[cell.ops % o.threads.size()]);
  }
  return rows;
}

void report_kernels(const std::vector<KernelRow>& rows, int repeats, BenchReport& report) {
  // The first instruction set's time of the same cell: what "x first" is relative to.
  const auto first_of = [&](const KernelRow& row) -> const KernelRow& {
    return *std::find_if(rows.begin(), rows.end(), [&](const KernelRow& r) {
      return r.format == row.format && r.cold == row.cold && r.threads == row.threads && r.rows == row.rows;
    });
  };
  for (const KernelRow& row : rows) {
    const std::string title = fmt::format("{}, weights {} ({} MB): {}", info(row.format).name, place(row),
                                          number_text(row.bytes / 1e6, 2), spread_text(repeats));
    if (report.tables.empty() || report.tables.back().title != title) {
      report.tables.push_back(
          {title,
           {"isa", "threads", "rows", "us", "GB/s", "GMAC/s", "x " + rows.front().isa, "probe GB/s", "of probe"},
           {}});
    }
    const Estimate us{row.call_ms.value * 1e3, row.call_ms.lo * 1e3, row.call_ms.hi * 1e3};
    const double speedup = first_of(row).call_ms.value / row.call_ms.value;
    report.tables.back().rows.push_back({row.isa, std::to_string(row.threads), std::to_string(row.rows),
                                         estimate_text(us, 1), number_text(row.gbps(), 2), number_text(row.gmacs(), 2),
                                         number_text(speedup, 2), number_text(row.read_gbps.value, 1),
                                         row.cold ? percent_text(row.gbps() / row.read_gbps.value) : "-"});
    json::object out;
    out["format"] = std::string(info(row.format).name);
    out["isa"] = row.isa;
    out["threads"] = row.threads;
    out["rows"] = row.rows;
    out["weights"] = row.cold ? "memory" : "cache";
    put_number(out, "bytes", row.bytes);
    put_estimate(out, "call_ms", row.call_ms);
    put_number(out, "gbps", row.gbps());
    put_number(out, "gmacs", row.gmacs());
    put_number(out, "speedup", speedup);
    put_estimate(out, "read_gbps", row.read_gbps);
    report.results.push_back(std::move(out));
  }
}

}  // namespace carpool
