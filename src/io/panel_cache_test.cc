// Caches of repacked weights: what is written comes back, whatever is wrong is a miss with a reason, and writers that
// race or die leave nothing broken behind.
#include "io/panel_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "io/test_files.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using test::ScratchFolder;

const std::string kKey = "source model-00001.safetensors 123\nformat q4_0\nisa avx2\n";

std::vector<std::byte> pattern(size_t count, uint32_t seed = 1) {
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) {
    seed = seed * 1664525u + 1013904223u;
    b = static_cast<std::byte>(seed >> 24);
  }
  return bytes;
}

// Why the cache "w" for kKey is a miss; "" when it opens.
std::string miss(const ScratchFolder& folder, uint64_t payload_bytes, const std::string& key = kKey) {
  std::string why;
  return open_panel_cache(folder.path(), "w", key, payload_bytes, &why) ? "" : why;
}

void flip_bit(const std::string& path, uint64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(static_cast<char>(byte ^ (1 << bit % 8)));
}

size_t files_in(const std::string& dir) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

TEST(PanelCache, WhatWasWrittenComesBackAligned) {
  const ScratchFolder folder;
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{4096}, kHugePageBytes, kHugePageBytes + 1, 5 * kHugePageBytes + 12345}) {
    const std::vector<std::byte> payload = pattern(bytes);
    write_panel_cache(folder.path(), "w", kKey, payload);
    std::string why;
    const auto panels = open_panel_cache(folder.path(), "w", kKey, bytes, &why);
    ASSERT_TRUE(panels) << bytes << ": " << why;
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), panels->bytes().begin(), panels->bytes().end()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(panels->bytes().data()) % kHugePageBytes, 0u);
    EXPECT_EQ(panels->path(), panel_cache_file(folder.path(), "w"));
    EXPECT_EQ(panels->damage(), std::nullopt);
    EXPECT_LE(panels->huge_bytes(), bytes);
    EXPECT_EQ(fs::file_size(panels->path()), kHugePageBytes + bytes) << "the payload starts at 2 MiB";
    EXPECT_EQ(files_in(folder.path()), 1u);
  }
}

TEST(PanelCache, KeysOfAnyLengthUpToTheLimitWork) {
  const ScratchFolder folder;
  const std::vector<std::byte> payload = pattern(100);
  for (const size_t length : {0u, 1u, 7u, 8u, 9u, 1u << 20}) {
    const std::string key(length, 'k');
    write_panel_cache(folder.path(), "w", key, payload);
    EXPECT_EQ(miss(folder, 100, key), "");
    EXPECT_TRUE(contains(miss(folder, 100, key + "x"), "made for something else"));
  }
}

TEST(PanelCache, AMoveKeepsTheAddress) {
  const ScratchFolder folder;
  write_panel_cache(folder.path(), "w", kKey, pattern(3000));
  auto panels = open_panel_cache(folder.path(), "w", kKey, 3000);
  ASSERT_TRUE(panels);
  const std::byte* const address = panels->bytes().data();
  const MappedPanels moved = std::move(*panels);
  panels.reset();
  EXPECT_EQ(moved.bytes().data(), address);
  EXPECT_EQ(moved.damage(), std::nullopt);
}

TEST(PanelCache, AnAbsentOneIsAMissThatSaysSo) {
  const ScratchFolder folder;
  EXPECT_EQ(miss(folder, 1), "there is none yet");
  std::string why;
  EXPECT_FALSE(open_panel_cache(folder.file("no/such/folder"), "w", kKey, 1, &why));
  EXPECT_EQ(why, "there is none yet");
  EXPECT_FALSE(open_panel_cache(folder.path() + std::string("\0x", 2), "w", kKey, 1, &why));
  EXPECT_EQ(why, "not a file name");
  EXPECT_FALSE(open_panel_cache(folder.path(), "w", kKey, 1)) << "the reason is optional";
}

TEST(PanelCache, AStaleOneNamesTheFirstLineThatDiffers) {
  const ScratchFolder folder;
  write_panel_cache(folder.path(), "w", kKey, pattern(64));
  EXPECT_EQ(miss(folder, 64, "source model-00001.safetensors 123\nformat q4_0\nisa avx512\n"),
            "made for something else: line 3 of its key is \"isa avx2\", \"isa avx512\" is wanted");
  EXPECT_TRUE(contains(miss(folder, 64, kKey + "more\n"), "line 4 of its key is \"\", \"more\" is wanted"));
  EXPECT_TRUE(contains(miss(folder, 64, ""), "line 1"));
  EXPECT_EQ(miss(folder, 65), "holds 64 bytes, 65 are wanted");
  write_panel_cache(folder.path(), "w", "esc\x1b[31m", pattern(64));
  EXPECT_TRUE(contains(miss(folder, 64), "\\x1b")) << "text of files is escaped";
}

TEST(PanelCache, ATruncatedFileIsAMissAtEveryLength) {
  const ScratchFolder folder;
  const size_t bytes = 3 * kHugePageBytes + 100;
  write_panel_cache(folder.path(), "w", kKey, pattern(bytes));
  const std::string path = panel_cache_file(folder.path(), "w");
  const uint64_t whole = fs::file_size(path);
  std::vector<uint64_t> lengths;
  for (uint64_t n = 0; n < 200; ++n) lengths.push_back(199 - n);
  for (uint64_t n = 1; n < 40; ++n) lengths.push_back(whole * n / 40);
  for (const uint64_t n : {whole - 1, whole - 100, whole - 101, kHugePageBytes, kHugePageBytes - 1})
    lengths.push_back(n);
  std::sort(lengths.rbegin(), lengths.rend());
  for (const uint64_t n : lengths) {
    fs::resize_file(path, n);
    const std::string why = miss(folder, bytes);
    EXPECT_TRUE(contains(why, "cut short") || contains(why, "its header says")) << n << ": " << why;
  }
}

TEST(PanelCache, AFileThatGrewIsAMiss) {
  const ScratchFolder folder;
  write_panel_cache(folder.path(), "w", kKey, pattern(100));
  fs::resize_file(panel_cache_file(folder.path(), "w"), kHugePageBytes + 101);
  EXPECT_TRUE(contains(miss(folder, 100), "has 2097253 bytes, its header says 2097252"));
}

TEST(PanelCache, EveryBitOfTheFrontPartCounts) {
  const ScratchFolder folder;
  const size_t bytes = 2 * kHugePageBytes + 5;
  write_panel_cache(folder.path(), "w", kKey, pattern(bytes));
  const std::string path = panel_cache_file(folder.path(), "w");
  const uint64_t front = 48 + (kKey.size() + 7) / 8 * 8 + 3 * 8;
  for (uint64_t bit = 0; bit < 8 * front; ++bit) {
    flip_bit(path, bit);
    EXPECT_NE(miss(folder, bytes), "") << "bit " << bit;
    flip_bit(path, bit);
  }
  EXPECT_EQ(miss(folder, bytes), "");
}

TEST(PanelCache, DamageOfThePayloadIsFoundBySamplesOrByTheFullCheck) {
  const ScratchFolder folder;
  const size_t pieces = 33, bytes = pieces * kHugePageBytes - 7;
  write_panel_cache(folder.path(), "w", kKey, pattern(bytes));
  const std::string path = panel_cache_file(folder.path(), "w");
  for (const uint64_t byte : {uint64_t{0}, uint64_t{bytes - 1}}) {  // first and last piece are always looked at
    flip_bit(path, 8 * (kHugePageBytes + byte));
    EXPECT_TRUE(contains(miss(folder, bytes), "damaged: the payload is wrong in the 2 MiB from byte ")) << byte;
    flip_bit(path, 8 * (kHugePageBytes + byte));
  }
  // The 16 samples of 33 pieces start with 0 and 2.
  flip_bit(path, 8 * (kHugePageBytes + kHugePageBytes + 1));
  const auto panels = open_panel_cache(folder.path(), "w", kKey, bytes);
  ASSERT_TRUE(panels);
  EXPECT_EQ(panels->damage(), "damaged: the payload is wrong in the 2 MiB from its byte 2097152");
}

TEST(PanelCache, FoldersPipesAndOtherFilesAreMisses) {
  const ScratchFolder folder;
  const std::string path = panel_cache_file(folder.path(), "w");
  fs::create_directory(path);
  EXPECT_EQ(miss(folder, 1), "not a regular file");
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(miss(folder, 1), "not a regular file");
  fs::remove(path);
  std::ofstream(path) << std::string(5000, 'x');
  EXPECT_EQ(miss(folder, 1), "not a cache of repacked weights");
}

TEST(PanelCache, AReplacedFileLeavesOpenMappingsAsTheyWere) {
  const ScratchFolder folder;
  const std::vector<std::byte> first = pattern(9000, 1), second = pattern(9000, 2);
  write_panel_cache(folder.path(), "w", kKey, first);
  const auto before = open_panel_cache(folder.path(), "w", kKey, 9000);
  write_panel_cache(folder.path(), "w", kKey, second);
  const auto after = open_panel_cache(folder.path(), "w", kKey, 9000);
  ASSERT_TRUE(before && after);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), before->bytes().begin()));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), after->bytes().begin()));
}

TEST(PanelCache, RacingWritersAndReadersOnlyEverSeeWholeFiles) {
  const ScratchFolder folder;
  const size_t bytes = 2 * kHugePageBytes + 77;
  const std::vector<std::byte> payload[2] = {pattern(bytes, 1), pattern(bytes, 2)};
  std::atomic<int> writing{2};
  std::atomic<int> wrong{0}, opened{0};
  std::vector<std::thread> writers;
  for (const auto& p : payload) {
    writers.emplace_back([&] {
      for (int i = 0; i < 6; ++i) write_panel_cache(folder.path(), "w", kKey, p);
      --writing;
    });
  }
  while (writing > 0) {
    std::string why;
    if (const auto panels = open_panel_cache(folder.path(), "w", kKey, bytes, &why)) {
      ++opened;
      const auto same = [&](const auto& p) { return std::equal(p.begin(), p.end(), panels->bytes().begin()); };
      if (panels->damage() || (!same(payload[0]) && !same(payload[1]))) ++wrong;
    } else if (why != "there is none yet" || opened > 0) {
      ++wrong;
    }
  }
  for (std::thread& t : writers) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(miss(folder, bytes), "");
  EXPECT_EQ(files_in(folder.path()), 1u) << "no temporary file is left";
}

TEST(PanelCache, LeftoversOfDeadWritersGoAndThoseOfLivingOnesStay) {
  const ScratchFolder folder;
  const std::string dead = folder.write(".w.panels.tmp-123-0", "half"),
                    alive = folder.write(".w.panels.tmp-124-0", "h");
  const std::string other = folder.write(".v.panels.tmp-123-0", "another cache's");
  const int lock = ::open(alive.c_str(), O_RDONLY);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  write_panel_cache(folder.path(), "w", kKey, pattern(10));
  ::close(lock);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(other));
}

TEST(PanelCache, AFolderThatIsAbsentIsMade) {
  const ScratchFolder folder;
  write_panel_cache(folder.file("a/b"), "w", kKey, pattern(10));
  EXPECT_TRUE(open_panel_cache(folder.file("a/b"), "w", kKey, 10));
}

TEST(PanelCache, APlaceWhereNothingCanBeMadeIsAnErrorAndLeavesNothing) {
  const ScratchFolder folder;
  const auto write = [&](const std::string& dir) { write_panel_cache(dir, "w", kKey, pattern(10)); };
  folder.write("file", "x");
  EXPECT_TRUE(contains(error_of(ErrorKind::kCannotCreate, [&] { write(folder.file("file")); }), "/file: "));
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kCannotCreate, [&] { write(folder.file("file/below")); }), "cannot be made"));
  error_of(ErrorKind::kCannotCreate, [&] { write(""); });
  error_of(ErrorKind::kCannotCreate, [&] { write("/proc/carpool"); });
  fs::create_directories(panel_cache_file(folder.path(), "w") + "/not empty");
  EXPECT_TRUE(contains(error_of(ErrorKind::kCannotCreate, [&] { write(folder.path()); }), "cannot be put in place"));
  EXPECT_EQ(files_in(folder.path()), 2u) << "the file and the folder of this test";
}

TEST(PanelCache, AReadOnlyFolderIsAnError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const ScratchFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0500), 0);
  EXPECT_TRUE(
      contains(error_of(ErrorKind::kCannotCreate, [&] { write_panel_cache(folder.path(), "w", kKey, pattern(10)); }),
               "no file can be made here"));
  ::chmod(folder.path().c_str(), 0700);
}

TEST(PanelCache, ADiskWithoutRoomIsRefusedWithBothNumbersBeforeAnythingIsRead) {
  const ScratchFolder folder;
  // Addresses without memory: touching them would take far more than there is.
  const auto range = AddressRange::reserve(uint64_t{1} << 45);
  if (!range) GTEST_SKIP() << "a sanitizer limits the address space";
  const std::string sentence = error_of(ErrorKind::kCannotCreate, [&] {
    write_panel_cache(folder.path(), "w", kKey, std::span<const std::byte>(range->data(), range->size()));
  });
  EXPECT_TRUE(contains(sentence, "needs 33554")) << sentence;
  EXPECT_TRUE(contains(sentence, " MiB are free")) << sentence;
  EXPECT_EQ(files_in(folder.path()), 0u);
}

TEST(PanelCache, NamesNeverLeaveTheFolderAndDifferentNamesNeverMeet) {
  EXPECT_EQ(panel_cache_file("/d", "Qwen3-30B.q4_0"), "/d/Qwen3-30B.q4_0.panels");
  std::vector<std::string> seen;
  for (const std::string& name :
       {std::string("../../etc/passwd"), std::string(".."), std::string("."), std::string(), std::string("a/b"),
        std::string("a_b"), std::string("a b"), std::string("a\0b", 3), std::string(".hidden"), std::string("_hidden"),
        std::string("n\xc3\xa9"), std::string(300, 'x'), std::string(301, 'x'), std::string(100, 'x')}) {
    const std::string path = panel_cache_file("/d", name);
    ASSERT_TRUE(path.starts_with("/d/") && path.ends_with(".panels")) << path;
    const std::string file = path.substr(3);
    EXPECT_EQ(file.find('/'), std::string::npos);
    EXPECT_NE(file[0], '.') << file;
    EXPECT_LE(file.size(), 200u);
    EXPECT_TRUE(std::all_of(file.begin(), file.end(), [](char c) { return c > 32 && c < 127; })) << file;
    EXPECT_EQ(std::find(seen.begin(), seen.end(), path), seen.end()) << path;
    seen.push_back(path);
  }
  const ScratchFolder folder;
  write_panel_cache(folder.path(), "../up", kKey, pattern(10));
  EXPECT_EQ(files_in(folder.path()), 1u);
  EXPECT_TRUE(open_panel_cache(folder.path(), "../up", kKey, 10));
}

}  // namespace
}  // namespace carpool
