#include "measure/bench_kernels.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "measure/ab.h"

namespace carpool {
namespace {

KernelOptions tiny() {
  KernelOptions o;
  o.formats = {Format::kF32, Format::kQ4_0};
  o.isas = {"scalar"};
  o.rows = {1, 3};
  o.threads = {1, 2};
  o.k = 64;
  o.n = 48;
  o.repeats = 2;
  o.seconds = 1e-5;
  o.probe_bytes = size_t{1} << 20;
  return o;
}

void expect_refused(const KernelOptions& o, ErrorKind kind, const std::string& part) {
  try {
    check_kernels(o);
    ADD_FAILURE() << "accepted: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(BenchKernels, ThereIsACellForEveryFormatPlaceThreadAndRow) {
  const std::vector<KernelRow> rows = run_kernels(tiny());
  ASSERT_EQ(rows.size(), 2u * 2 * 2 * 2);
  EXPECT_EQ(rows[0].format, Format::kF32);
  EXPECT_TRUE(rows[0].cold);
  EXPECT_EQ(rows[0].threads, 1);
  EXPECT_EQ(rows[2].threads, 2);
  EXPECT_EQ(rows[1].rows, 3);
  EXPECT_FALSE(rows[4].cold);
  EXPECT_EQ(rows[8].format, Format::kQ4_0);
  EXPECT_EQ(rows[0].bytes, 64.0 * 48 * 4);
  EXPECT_EQ(rows[8].bytes, 64.0 * 48 / 32 * 18);
  for (const KernelRow& row : rows) {
    EXPECT_GT(row.call_ms.value, 0);
    EXPECT_GT(row.read_gbps.value, 0);
    EXPECT_EQ(row.macs, 64.0 * 48 * row.rows);
    EXPECT_NEAR(row.gmacs() / row.gbps(), row.macs / row.bytes, 1e-9);
  }
}

TEST(BenchKernels, MatricesTooLargeForTheCacheAreMeasuredFromMemoryOnly) {
  KernelOptions o = tiny();
  o.formats = {Format::kF32};
  o.isas = {cpu_isa_names().back()};
  o.threads = {1};
  o.rows = {1};
  o.repeats = 1;
  o.k = 4096;
  o.n = static_cast<int64_t>(last_level_cache() / 2 / 4 / 4096) + 16;
  const std::vector<KernelRow> rows = run_kernels(o);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(rows[0].cold);
}

TEST(BenchKernels, TheReportHasATablePerFormatAndPlaceAndComparesWithTheFirstInstructionSet) {
  std::vector<KernelRow> rows;
  for (const char* isa : {"scalar", "fast"}) {
    KernelRow row;
    row.format = Format::kQ4_0;
    row.isa = isa;
    row.threads = 1;
    row.rows = 4;
    row.cold = true;
    row.bytes = 18e6;
    row.macs = 128e6;
    row.call_ms = isa == std::string("fast") ? Estimate{1, 0.9, 1.1} : Estimate{8, 7, 9};
    row.read_gbps = {36, 30, 40};
    rows.push_back(row);
  }
  BenchReport report;
  report_kernels(rows, 5, report);
  ASSERT_EQ(report.tables.size(), 1u);
  EXPECT_EQ(report.tables[0].title,
            "q4_0, weights from memory (18.00 MB): median [95 % bootstrap interval over repeats]");
  const std::vector<std::string> fast = {"fast", "1",    "4",     "1000.0 [900.0, 1100.0]", "18.00", "128.00",
                                         "8.00", "36.0", "50.0 %"};
  EXPECT_EQ(report.tables[0].rows[1], fast);
  const json::object& out = report.results[1].as_object();
  EXPECT_EQ(out.at("speedup"), 8.0);
  EXPECT_EQ(out.at("weights"), "memory");
  EXPECT_EQ(out.at("gbps"), 18.0);
}

TEST(BenchKernels, WhatCannotBeMeasuredIsRefused) {
  EXPECT_NO_THROW(check_kernels(tiny()));
  KernelOptions o = tiny();
  o.rows = {0};
  expect_refused(o, ErrorKind::kUsage, "rows must be 1 to 4096, got 0");
  o = tiny();
  o.formats = {};
  expect_refused(o, ErrorKind::kUsage, "no format to measure");
  o = tiny();
  o.k = 40;
  expect_refused(o, ErrorKind::kConfig, "the matrix has 40 columns, the format q4_0 needs a multiple of 32");
  o = tiny();
  o.n = 0;
  expect_refused(o, ErrorKind::kUsage, "outputs of the matrix must be");
}

}  // namespace
}  // namespace carpool
