// One big private range of memory for weights, in huge pages where the system has them.
//
// Owns LargeBuffer (one anonymous mapping, aligned to 2 MiB), the choice of huge pages and its spelling, AddressRange
// (the reserved addresses below it, which a mapping of a file can take the place of: io/panel_cache.h) and the
// count of what really lies in huge pages. Pages cost memory from their first write on, not before. Does not say
// whether the bytes will fit: base/memory.h does, and the loader asks it first.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace carpool {

constexpr size_t kHugePageBytes = size_t{2} << 20;

enum class HugePages {
  kAuto,  // where the system allows them
  kThp,   // the same, and an error where it does not
  kOff,   // small pages even where the system would choose huge ones
};

// "auto", "thp" or "off"; nullopt for anything else.
std::optional<HugePages> hugepages_of_name(std::string_view name);
std::string_view name_of(HugePages choice);

// Why transparent huge pages cannot be had here, as the end of a sentence; empty when they can. `root` is where /sys is
// found, for tests.
std::string no_huge_pages_reason(const std::string& root = "");

// Bytes of [data, data + bytes) that lie in huge pages at this moment, anonymous or of a file, from /proc/self/smaps:
// only mappings that lie inside of the range count. Walks the page tables of the process: milliseconds for each GB of
// small pages. 0 when the system does not say. `root` is where /proc is found, for tests.
size_t huge_bytes_in(const void* data, size_t bytes, const std::string& root = "");

// Reserved addresses: no memory, no access, until something is mapped over them. The usable range starts at a multiple
// of 2 MiB and is one long; an inaccessible page on each side keeps the system from merging its mappings with a
// neighbour's (their huge pages could not be told apart) and stops whoever runs over the end.
class AddressRange {
 public:
  AddressRange() = default;
  // nullopt, with errno set, when the system refuses so many addresses.
  static std::optional<AddressRange> reserve(size_t bytes);
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  ~AddressRange();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // bytes, a multiple of 2 MiB

 private:
  void release() noexcept;

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

class LargeBuffer {
 public:
  LargeBuffer() = default;
  // `bytes` zero bytes for `what` ("weights"; the subject of messages). Nothing is allocated until it is written, so a
  // buffer of any size costs nothing by itself. The last huge page may reach beyond `bytes`: one buffer for many
  // tensors, not one for each. 0 bytes give an empty buffer.
  // Error{kNoMemory} with both numbers when the system refuses the range, Error{kUnavailable} with the reason when kThp
  // cannot be had. `root` is where /sys and /proc are found, for tests.
  LargeBuffer(size_t bytes, HugePages huge_pages, const std::string& what, const std::string& root = "");
  LargeBuffer(LargeBuffer&& other) noexcept : range_(std::move(other.range_)), bytes_(std::exchange(other.bytes_, 0)) {}
  LargeBuffer& operator=(LargeBuffer&& other) noexcept {
    range_ = std::move(other.range_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  LargeBuffer(const LargeBuffer&) = delete;
  LargeBuffer& operator=(const LargeBuffer&) = delete;

  // Addresses survive a move. Threads may write disjoint parts at the same time.
  std::span<std::byte> bytes() { return {range_.data(), bytes_}; }
  std::span<const std::byte> bytes() const { return {range_.data(), bytes_}; }
  size_t size() const { return bytes_; }
  // How much of it lies in huge pages now, at most size() rounded up to 2 MiB; see huge_bytes_in().
  size_t huge_bytes() const { return huge_bytes_in(range_.data(), range_.size()); }

 private:
  AddressRange range_;
  size_t bytes_ = 0;
};

}  // namespace carpool
