// Repacked weights kept in a file, so that the next start maps them instead of repacking.
//
// Owns the file format and its life: written whole to a temporary name, synced, renamed; opened only for exactly what
// the caller would make now. A cache is never an error to the reader: whatever is wrong with it, from absent to
// damaged, is a miss with a reason, and the caller repacks. Does not know what the bytes mean: the caller says what
// they were made from in the key text, one "name value" a line (source files, sizes, times, formats, layout version,
// isa).
//
// File, all words 64-bit little-endian:
//   magic, version, bytes of key text, payload offset, payload bytes, checksum of all that
//   precedes the payload (with this word zero); key text, padded with zeros to a word; one checksum for each
//   2 MiB of payload; zeros to the next multiple of 2 MiB; payload, to the end of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/large_buffer.h"

namespace carpool {

// The payload of a cache file, mapped read-only and private: its memory is the page cache, shared by all processes.
// Files are replaced by renaming, never written in place, so a mapping stays what it was; like any mapped file it must
// not be truncated by others.
class MappedPanels {
 public:
  MappedPanels(MappedPanels&&) noexcept = default;  // to be destroyed or assigned to only, afterwards
  MappedPanels& operator=(MappedPanels&&) noexcept = default;
  MappedPanels(const MappedPanels&) = delete;
  MappedPanels& operator=(const MappedPanels&) = delete;

  // Starts at a multiple of 2 MiB. Valid while this object, or the one it was moved into, lives.
  std::span<const std::byte> bytes() const { return {range_.data(), bytes_}; }
  const std::string& path() const { return path_; }
  // How much of it lies in huge pages now, see huge_bytes_in(): all on systems that keep files in large folios (ext4
  // and XFS of recent kernels), else nothing.
  size_t huge_bytes() const { return huge_bytes_in(range_.data(), range_.size()); }
  // Reads all of the payload; a sentence when it is not what was written. A disk that fails to read ends the process
  // with SIGBUS, as for every mapping.
  std::optional<std::string> damage() const;

 private:
  friend class PanelCacheReader;
  MappedPanels() = default;

  std::string path_;
  AddressRange range_;
  size_t bytes_ = 0;
  std::vector<uint64_t> checksums_;  // of each 2 MiB
};

// The file that holds cache `name` in `dir`: letters, digits, '.', '_' and '-' of the name, at most 100 characters, and
// a checksum of the true name when that changed it. Never leaves `dir`.
std::string panel_cache_file(const std::string& dir, const std::string& name);

// The cache if it is there, was made for exactly `key_text` and holds `payload_bytes`; else nullopt, and `why_not`, if
// given, gets one sentence without the file's name: absent, made for something else (the first line that differs), cut
// short, damaged. The front part is checked whole; of the payload 16 pieces of 2 MiB spread over it, which costs
// milliseconds where a full check would read everything (damage() does). Huge pages are asked for unless kOff and
// never required. Never throws for what a file holds.
std::optional<MappedPanels> open_panel_cache(const std::string& dir, const std::string& name,
                                             const std::string& key_text, uint64_t payload_bytes,
                                             std::string* why_not = nullptr, HugePages huge_pages = HugePages::kAuto);

// Writes the cache, replacing one of the same name: complete under its final name or not there. `key_text` has at most
// 1 MiB. Makes `dir` when it is absent. Takes the time of the disk: the data is synced before it gets its name. Several
// processes may write the same name; the last one stays. Also removes what writers that died left behind.
// Error{kCannotCreate} when the folder or file cannot be made or the disk has too little room (both numbers),
// Error{kIo} when writing fails midway.
void write_panel_cache(const std::string& dir, const std::string& name, const std::string& key_text,
                       std::span<const std::byte> payload);

}  // namespace carpool
