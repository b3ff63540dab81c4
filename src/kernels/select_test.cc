// Which tables there are and what a name gives.
#include <gtest/gtest.h>

#include <set>

#include "base/cpu_info.h"
#include "base/error.h"
#include "kernels/kernels.h"

namespace carpool {
namespace {

TEST(SelectKernels, EveryTableIsComplete) {
  std::set<std::string> names;
  for (const Kernels* table : available_kernels()) {
    EXPECT_TRUE(names.insert(table->name).second) << table->name << " is listed twice";
    for (const PanelKernel kernel : table->product_float) EXPECT_NE(kernel, nullptr) << table->name;
    EXPECT_NE(table->product_int8[static_cast<size_t>(Format::kQ4_0)], nullptr) << table->name;
    EXPECT_NE(table->quantize, nullptr) << table->name;
    EXPECT_TRUE(table->dot && table->axpy && table->rms_norm && table->silu_mul && table->softmax) << table->name;
  }
  EXPECT_TRUE(names.contains("scalar"));
}

TEST(SelectKernels, ANameGivesItsTableAndAutoTheFastest) {
  for (const Kernels* table : available_kernels()) EXPECT_EQ(&select_kernels(table->name), table);
  EXPECT_EQ(&select_kernels("auto"), available_kernels().back());
}

TEST(SelectKernels, ATableIsOfferedExactlyWhenTheProcessorCanRunIt) {
  std::set<std::string> names;
  for (const Kernels* table : available_kernels()) names.insert(table->name);
  const CpuInfo& cpu = cpu_info();
  EXPECT_EQ(names.contains("avx2"), cpu.avx2 && cpu.fma && cpu.f16c);
  EXPECT_EQ(names.contains("avx512"),
            cpu.avx512f && cpu.avx512bw && cpu.avx512vl && cpu.avx512dq && cpu.avx2 && cpu.fma);
}

TEST(SelectKernels, AnUnknownNameIsRefusedWithTheKnownOnes) {
  try {
    select_kernels("sse9");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kConfig);
    EXPECT_NE(std::string(e.what()).find("sse9"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("scalar"), std::string::npos);
  }
}

}  // namespace
}  // namespace carpool
