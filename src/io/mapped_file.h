// A read-only memory mapping of one regular file.
//
// Owns the mapping and what the file looked like when it was mapped (size, inode, modification time). The
// weights of a model are read straight from here, so nothing is copied and the page cache is shared with other
// processes. Does not protect against somebody truncating the file under the mapping: verify_unchanged() says
// so after the fact, and a process that must be immune reads into private memory instead.
// Read next: io/safetensors.h, which gives the bytes their meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

struct stat;  // of <sys/stat.h>

namespace carpool {

// What has become of a file since it was mapped.
struct FileChange {
  // kReplaced: another file has its name, or none; the mapping keeps the old bytes. kWritten: the file itself was
  // written to or changed its size, and the mapping shows what it is now, as far as it is still there.
  enum class Kind { kNone, kReplaced, kWritten };
  Kind kind = Kind::kNone;
  std::string what;  // "PATH: written to since it was opened"
};

class MappedFile {
 public:
  // Maps the whole of `path`. Throws kMissing when it is absent, unreadable or not a regular file (a directory,
  // a pipe: never waits for a writer), kNoMemory when the address space does not suffice. A file of zero
  // bytes gives an empty span.
  static MappedFile open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Valid while this object, or the one it was moved into, lives. The address survives a move.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  int64_t modified_ns() const { return identity_.modified_ns; }  // when it was mapped, since the epoch

  // Size, place and time are compared, not bytes. Does not throw.
  FileChange change() const;
  // Throws kIo when the file at path() no longer is the one that was mapped: gone, replaced (another inode),
  // another size, or written to since. To be called after the weights were read and before "ready".
  void verify_unchanged() const;

 private:
  struct Identity {
    uint64_t size = 0;
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t modified_ns = 0;
  };

  explicit MappedFile(std::string path) : path_(std::move(path)) {}
  static Identity identity_of(const struct ::stat& status);
  void unmap() noexcept;

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  Identity identity_;
};

}  // namespace carpool
