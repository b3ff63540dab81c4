// Reserving, mapping and counting; see large_buffer.h.
#include "base/large_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/memory.h"

namespace carpool {
namespace {

size_t page_bytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

uintptr_t address_of(const void* p) { return reinterpret_cast<uintptr_t>(p); }

// First and last address + 1 of a line of smaps that starts a mapping, "7f00-7f80 rw-p ..."; nullopt for other lines.
struct Mapping {
  uint64_t first = 0, end = 0;
};
std::optional<Mapping> mapping_of(std::string_view line) {
  Mapping m;
  const char* const stop = line.data() + line.size();
  const auto first = std::from_chars(line.data(), stop, m.first, 16);
  if (first.ec != std::errc() || first.ptr == stop || *first.ptr != '-') return std::nullopt;
  const auto end = std::from_chars(first.ptr + 1, stop, m.end, 16);
  if (end.ec != std::errc() || end.ptr == stop || *end.ptr != ' ') return std::nullopt;
  return m;
}

// The bytes of "Key:   12 kB" for the keys that count huge pages; 0 for other lines.
uint64_t huge_bytes_of(std::string_view line) {
  for (const std::string_view key : {"AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"}) {
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    const size_t digits = line.find_first_not_of(' ');
    uint64_t kib = 0;
    if (digits == std::string_view::npos) return 0;
    std::from_chars(line.data() + digits, line.data() + line.size(), kib);
    return kib * 1024;
  }
  return 0;
}

[[noreturn]] void refuse(size_t bytes, const std::string& what, const std::string& root) {
  const std::string reason = std::strerror(errno);
  const std::optional<uint64_t> available = available_memory(root);
  throw Error(ErrorKind::kNoMemory,
              fmt::format("{}: the system refused {} MiB ({}), {} are available", what, bytes >> 20, reason,
                          available ? fmt::format("{} MiB", *available >> 20) : "an unknown number of MiB"));
}

}  // namespace

std::optional<HugePages> hugepages_of_name(std::string_view name) {
  for (const HugePages choice : {HugePages::kAuto, HugePages::kThp, HugePages::kOff}) {
    if (name == name_of(choice)) return choice;
  }
  return std::nullopt;
}

std::string_view name_of(HugePages choice) {
  switch (choice) {
    case HugePages::kAuto:
      return "auto";
    case HugePages::kThp:
      return "thp";
    case HugePages::kOff:
      return "off";
  }
  CARPOOL_CHECK(false);
}

std::string no_huge_pages_reason(const std::string& root) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/enabled";
  std::ifstream file(root + path);
  std::string line;
  if (!file || !std::getline(file, line)) return "this system has no transparent huge pages (no " + path + ")";
  if (line.find("[never]") != std::string::npos) return path + " is set to never (madvise or always would do)";
  return "";
}

size_t huge_bytes_in(const void* data, size_t bytes, const std::string& root) {
  const uint64_t first = address_of(data), end = first + bytes;
  std::ifstream file(root + "/proc/self/smaps");
  uint64_t total = 0;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (const auto m = mapping_of(line)) {
      inside = m->first >= first && m->end <= end;
    } else if (inside) {
      total += huge_bytes_of(line);
    }
  }
  return static_cast<size_t>(total);
}

std::optional<AddressRange> AddressRange::reserve(size_t bytes) {
  const size_t page = page_bytes();
  size_t rounded = 0, total = 0;
  if (__builtin_add_overflow(bytes, kHugePageBytes - 1, &rounded) ||
      __builtin_add_overflow(rounded / kHugePageBytes * kHugePageBytes, kHugePageBytes + 2 * page, &total)) {
    errno = ENOMEM;
    return std::nullopt;
  }
  void* const all = ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return std::nullopt;
  AddressRange range;
  range.size_ = rounded / kHugePageBytes * kHugePageBytes;
  std::byte* const start = static_cast<std::byte*>(all);
  const size_t lead = (kHugePageBytes - (address_of(start) + page) % kHugePageBytes) % kHugePageBytes;
  range.data_ = start + page + lead;
  // What alignment left over goes back: [lead][page][size][page][rest].
  if (lead > 0) ::munmap(start, lead);
  const size_t used = lead + page + range.size_ + page;
  if (used < total) ::munmap(start + used, total - used);
  return range;
}

AddressRange::AddressRange(AddressRange&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AddressRange& AddressRange::operator=(AddressRange&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

AddressRange::~AddressRange() { release(); }

void AddressRange::release() noexcept {
  const size_t page = page_bytes();
  if (data_ != nullptr) ::munmap(data_ - page, size_ + 2 * page);
}

LargeBuffer::LargeBuffer(size_t bytes, HugePages huge_pages, const std::string& what, const std::string& root) {
  if (huge_pages == HugePages::kThp) {
    const std::string reason = no_huge_pages_reason(root);
    if (!reason.empty()) throw Error(ErrorKind::kUnavailable, what + ": huge pages were asked for, but " + reason);
  }
  if (bytes == 0) return;
  std::optional<AddressRange> range = AddressRange::reserve(bytes);
  if (!range) refuse(bytes, what, root);
  void* const data = ::mmap(range->data(), range->size(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (data == MAP_FAILED) refuse(bytes, what, root);
  const int advice = huge_pages == HugePages::kOff ? MADV_NOHUGEPAGE : MADV_HUGEPAGE;
  if (::madvise(data, range->size(), advice) != 0 && huge_pages == HugePages::kThp) {
    throw Error(ErrorKind::kUnavailable, fmt::format("{}: huge pages were asked for, but the system refuses them: {}",
                                                     what, std::strerror(errno)));
  }
  range_ = std::move(*range);
  bytes_ = bytes;
}

}  // namespace carpool
