// Which tables there are and what a name gives.
#include <gtest/gtest.h>

#include <set>

#include "base/cpu_info.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "kernels/tables.h"

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
  EXPECT_EQ(names.contains("avx512"), cpu.avx512f && cpu.avx512bw && cpu.avx512vl && cpu.avx512dq && cpu.avx512vnni &&
                                          cpu.avx2 && cpu.fma && cpu.f16c);
}

#if defined(__x86_64__)
TEST(SelectKernels, EveryFeatureThatATableIsCompiledForIsDemanded) {
  using Names = std::vector<std::string>;
  CpuInfo all;
  all.avx2 = all.fma = all.f16c = true;
  EXPECT_EQ(missing_features(kAvx2Kernels, all), Names{});
  all.avx512f = all.avx512bw = all.avx512vl = all.avx512dq = all.avx512vnni = true;
  EXPECT_EQ(missing_features(kAvx512Kernels, all), Names{});
  EXPECT_EQ(missing_features(kScalarKernels, {}), Names{});
  bool CpuInfo::* const features[] = {&CpuInfo::avx2,     &CpuInfo::fma,      &CpuInfo::f16c,     &CpuInfo::avx512f,
                                      &CpuInfo::avx512bw, &CpuInfo::avx512vl, &CpuInfo::avx512dq, &CpuInfo::avx512vnni};
  const Names spelled = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"};
  for (size_t i = 0; i < spelled.size(); ++i) {
    CpuInfo cpu = all;
    cpu.*features[i] = false;
    EXPECT_EQ(missing_features(kAvx512Kernels, cpu), Names{spelled[i]});
    EXPECT_EQ(missing_features(kAvx2Kernels, cpu), i < 3 ? Names{spelled[i]} : Names{});
  }
}

TEST(SelectKernels, ATableThatCannotRunIsRefusedWithWhatTheProcessorLacks) {
  for (const Kernels* table : {&kAvx2Kernels, &kAvx512Kernels}) {
    const std::vector<std::string> lacking = missing_features(*table, cpu_info());
    if (lacking.empty()) {
      EXPECT_EQ(&select_kernels(table->name), table);
      continue;
    }
    try {
      select_kernels(table->name);
      FAIL() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUnavailable);
      for (const std::string& feature : lacking) EXPECT_NE(std::string(e.what()).find(feature), std::string::npos);
    }
  }
}
#endif

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
