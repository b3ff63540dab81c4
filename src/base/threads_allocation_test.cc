// ThreadPool::run allocates nothing, neither on the caller nor on the workers.
//
// Replaces the global operator new of this test program with one that counts while a flag is up. Under a sanitizer,
// which has an operator new of its own, there is nothing to count and the tests skip.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "base/threads.h"

#ifdef CARPOOL_SANITIZED
TEST(ThreadPoolAllocations, AJobAllocatesNothing) { GTEST_SKIP() << "a sanitizer owns operator new"; }
#else
namespace {
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

void* allocate_quietly(size_t bytes) noexcept {
  if (counting) ++allocations;
  return std::malloc(bytes ? bytes : 1);
}
void* allocate(size_t bytes) {
  if (void* memory = allocate_quietly(bytes)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate_quietly(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate_quietly(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace carpool {
namespace {

TEST(ThreadPoolAllocations, AJobAllocatesNothing) {
  for (const std::chrono::microseconds spin : {std::chrono::microseconds(0), std::chrono::microseconds(500)}) {
    ThreadPool pool(3, PoolOptions{.spin = spin});
    std::vector<int> runs(64, 0);
    const auto job = [&](int task, int) { ++runs[static_cast<size_t>(task)]; };
    allocations = 0;
    counting = true;
    for (int i = 0; i < 200; ++i) pool.run(64, job);
    counting = false;
    EXPECT_EQ(allocations, 0);
    EXPECT_EQ(runs, std::vector<int>(64, 200));
  }
}

TEST(ThreadPoolAllocations, TheCountingAllocatorCounts) {
  allocations = 0;
  counting = true;
  std::vector<int> v(100);
  counting = false;
  EXPECT_EQ(v.size(), 100u);
  EXPECT_EQ(allocations, 1);
}

}  // namespace
}  // namespace carpool
#endif
