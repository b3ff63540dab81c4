// LargeBuffer: what it costs, how it is aligned, what each choice of huge pages does; smaps files made by hand.
#include "base/large_buffer.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"

namespace carpool {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// A folder that stands for / and goes away with the test.
class FakeRoot {
 public:
  FakeRoot() {
    char name[] = "/tmp/carpool_large_XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path_ + file).parent_path());
    std::ofstream(path_ + file) << text;
  }
  void write_huge_pages(const std::string& text) const {
    write("/sys/kernel/mm/transparent_hugepage/enabled", text + "\n");
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Pages of a range that lie in memory.
size_t resident_bytes(const void* data, size_t bytes) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  EXPECT_EQ(::mincore(const_cast<void*>(data), bytes, pages.data()), 0);
  return page * static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; }));
}

std::string kernel_flags_at(const void* data) {
  std::ifstream file("/proc/self/smaps");
  char start[32];
  std::snprintf(start, sizeof(start), "%lx-", reinterpret_cast<unsigned long>(data));
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.find("-") < 20 && line.find(" ") > line.find("-")) inside = line.rfind(start, 0) == 0;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line + " ";
  }
  return "";
}

TEST(LargeBuffer, IsAlignedZeroAndWritableToTheLastByte) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, 2 * kMiB, 2 * kMiB + 1, 5 * kMiB}) {
    LargeBuffer buffer(bytes, HugePages::kAuto, "weights");
    ASSERT_EQ(buffer.size(), bytes);
    ASSERT_EQ(buffer.bytes().size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.bytes().data()) % kHugePageBytes, 0u);
    EXPECT_TRUE(
        std::all_of(buffer.bytes().begin(), buffer.bytes().end(), [](std::byte b) { return b == std::byte{}; }));
    std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte{0x5a});
    EXPECT_EQ(buffer.bytes().back(), std::byte{0x5a});
  }
}

TEST(LargeBuffer, AnEmptyOneHoldsNothing) {
  const LargeBuffer none, zero(0, HugePages::kAuto, "weights");
  EXPECT_TRUE(none.bytes().empty());
  EXPECT_TRUE(zero.bytes().empty());
  EXPECT_EQ(zero.huge_bytes(), 0u);
}

TEST(LargeBuffer, ATerabyteCostsNothingUntilItIsTouched) {
#ifdef CARPOOL_SANITIZED
  GTEST_SKIP() << "sanitizers limit the address space";
#endif
  LargeBuffer buffer(size_t{1} << 40, HugePages::kOff, "weights");
  EXPECT_EQ(resident_bytes(buffer.bytes().data(), 64 * kMiB), 0u);
  buffer.bytes()[buffer.size() - 1] = std::byte{1};
  buffer.bytes()[0] = std::byte{1};
  EXPECT_EQ(resident_bytes(buffer.bytes().data(), 64 * kMiB), static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
}

TEST(LargeBuffer, AMoveKeepsTheAddressAndLeavesNothingBehind) {
  LargeBuffer a(3 * kMiB, HugePages::kAuto, "a"), b(kMiB, HugePages::kAuto, "b");
  const std::byte* const address = a.bytes().data();
  a.bytes()[7] = std::byte{9};
  b = std::move(a);
  EXPECT_EQ(b.bytes().data(), address);
  EXPECT_EQ(b.size(), 3 * kMiB);
  EXPECT_EQ(b.bytes()[7], std::byte{9});
  EXPECT_TRUE(a.bytes().empty());  // NOLINT: the state after a move is what is tested
  const LargeBuffer c(std::move(b));
  EXPECT_EQ(c.bytes().data(), address);
  EXPECT_EQ(b.size(), 0u);  // NOLINT
}

TEST(LargeBuffer, HugePagesAreCountedWhereTheSystemGivesThem) {
  LargeBuffer off(8 * kMiB, HugePages::kOff, "weights"), on(8 * kMiB, HugePages::kAuto, "weights");
  EXPECT_EQ(on.huge_bytes(), 0u) << "untouched";
  std::fill(off.bytes().begin(), off.bytes().end(), std::byte{1});
  std::fill(on.bytes().begin(), on.bytes().end(), std::byte{1});
  EXPECT_EQ(off.huge_bytes(), 0u);
  EXPECT_LE(on.huge_bytes(), on.size());
  EXPECT_EQ(on.huge_bytes() % kHugePageBytes, 0u);
  EXPECT_TRUE(no_huge_pages_reason().empty() || on.huge_bytes() == 0);
}

TEST(LargeBuffer, TheChoiceReachesTheSystem) {
  if (!no_huge_pages_reason().empty()) GTEST_SKIP() << no_huge_pages_reason();
  const LargeBuffer off(8 * kMiB, HugePages::kOff, "weights"), on(8 * kMiB, HugePages::kAuto, "weights"),
      thp(8 * kMiB, HugePages::kThp, "weights");
  EXPECT_NE(kernel_flags_at(off.bytes().data()).find(" nh "), std::string::npos);
  EXPECT_NE(kernel_flags_at(on.bytes().data()).find(" hg "), std::string::npos);
  EXPECT_NE(kernel_flags_at(thp.bytes().data()).find(" hg "), std::string::npos);
}

TEST(LargeBuffer, HugePagesThatMustBeButCannotAreUnavailableWithTheReason) {
  const FakeRoot root;
  const auto sentence = [&](HugePages choice) {
    try {
      const LargeBuffer buffer(kMiB, choice, "the weights", root.path());
      return std::string("no error");
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUnavailable);
      return std::string(e.what());
    }
  };
  EXPECT_NE(sentence(HugePages::kThp).find("no transparent huge pages"), std::string::npos);
  root.write_huge_pages("always madvise [never]");
  EXPECT_EQ(sentence(HugePages::kThp),
            "the weights: huge pages were asked for, but /sys/kernel/mm/transparent_hugepage/enabled is set to never "
            "(madvise or always would do)");
  EXPECT_EQ(sentence(HugePages::kAuto), "no error");
  EXPECT_EQ(sentence(HugePages::kOff), "no error");
  root.write_huge_pages("[always] madvise never");
  EXPECT_EQ(no_huge_pages_reason(root.path()), "");
  root.write_huge_pages("always [madvise] never");
  EXPECT_EQ(no_huge_pages_reason(root.path()), "");
}

TEST(LargeBuffer, ARangeThatTheSystemRefusesIsNoMemoryWithBothNumbers) {
  const FakeRoot root;
  root.write("/proc/meminfo", "MemAvailable: 2048000 kB\n");
  for (const size_t bytes : {size_t{1} << 60, SIZE_MAX, SIZE_MAX - 2 * kMiB}) {
    try {
      const LargeBuffer buffer(bytes, HugePages::kAuto, "the weights", root.path());
      FAIL() << bytes << " bytes are more than a process can have";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 71);
      const std::string sentence = e.what();
      EXPECT_TRUE(sentence.starts_with("the weights: the system refused " + std::to_string(bytes >> 20) + " MiB ("))
          << sentence;
      EXPECT_TRUE(sentence.ends_with("), 2000 MiB are available")) << sentence;
    }
  }
}

TEST(HugeBytes, OnlyMappingsInsideOfTheRangeCountAndAllKindsDo) {
  const FakeRoot root;
  root.write("/proc/self/smaps",
             "10000000-10200000 rw-p 00000000 00:00 0 \nSize: 2048 kB\nAnonHugePages:      2048 kB\nVmFlags: rd wr hg\n"
             "10200000-10600000 rw-p 00000000 00:00 0 \nAnonHugePages:      4096 kB\nFilePmdMapped: 0 kB\n"
             "10600000-10800000 r--p 00000000 08:01 77 /a/b-c d\nFilePmdMapped:  2048 kB\nShmemPmdMapped: 2048 kB\n"
             "10800000-10c00000 rw-p 00000000 00:00 0 \nAnonHugePages:  4096 kB\n"
             "nonsense\nAnonHugePages:\nAnonHugePages: x kB\n");
  const auto count = [&](uintptr_t first, uintptr_t end) {
    return huge_bytes_in(reinterpret_cast<const void*>(first), end - first, root.path()) >> 20;
  };
  EXPECT_EQ(count(0x10000000, 0x10c00000), 14u);
  EXPECT_EQ(count(0x10200000, 0x10600000), 4u);
  EXPECT_EQ(count(0x10600000, 0x10800000), 4u) << "a file's and shared ones";
  EXPECT_EQ(count(0x10000000, 0x10400000), 2u) << "half a mapping cannot be told apart";
  EXPECT_EQ(count(0x20000000, 0x30000000), 0u);
  const FakeRoot nothing;
  EXPECT_EQ(huge_bytes_in(nullptr, SIZE_MAX, nothing.path()), 0u);
}

TEST(HugeBytes, NeighbouringBuffersAreToldApart) {
  std::vector<LargeBuffer> buffers;
  for (int i = 0; i < 4; ++i) buffers.emplace_back(4 * kMiB, HugePages::kAuto, "weights");
  std::fill(buffers[1].bytes().begin(), buffers[1].bytes().end(), std::byte{1});
  EXPECT_EQ(buffers[0].huge_bytes() + buffers[2].huge_bytes() + buffers[3].huge_bytes(), 0u);
  for (const LargeBuffer& b : buffers) EXPECT_NE(kernel_flags_at(b.bytes().data()), "") << "starts its own mapping";
}

TEST(HugePagesName, NamesAreReadAndSpelledAndNothingElseIs) {
  for (const std::string name : {"auto", "thp", "off"}) EXPECT_EQ(name_of(hugepages_of_name(name).value()), name);
  for (const std::string name : {"", "Auto", "on", "thp ", "never"}) EXPECT_FALSE(hugepages_of_name(name)) << name;
}

}  // namespace
}  // namespace carpool
