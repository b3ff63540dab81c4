// Mapping and the identity check of MappedFile; plain POSIX calls, no policy.
#include "io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace carpool {
namespace {

constexpr size_t kPathLimit = 400;  // characters of a path in a message

// Closes a file descriptor at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail(ErrorKind kind, const std::string& path, const std::string& what) {
  throw Error(kind, fmt::format("{}: {}", escape(path, kPathLimit), what));
}

std::string system_reason(int code) { return std::strerror(code); }

}  // namespace

MappedFile::Identity MappedFile::identity_of(const struct ::stat& status) {
  return {static_cast<uint64_t>(status.st_size), static_cast<uint64_t>(status.st_dev),
          static_cast<uint64_t>(status.st_ino),
          static_cast<int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec};
}

MappedFile MappedFile::open(const std::string& path) {
  // A name with a zero byte inside would be cut short by the system call and open another file.
  if (path.find('\0') != std::string::npos) fail(ErrorKind::kMissing, path, "not a file name");
  // O_NONBLOCK: opening a named pipe must not wait for somebody to write to it.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail(ErrorKind::kMissing, path, "cannot be opened: " + system_reason(errno));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) {
    fail(ErrorKind::kMissing, path, "cannot be examined: " + system_reason(errno));
  }
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::kMissing, path, "not a regular file");

  MappedFile mapped(path);
  mapped.identity_ = identity_of(status);
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return mapped;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    const ErrorKind kind = errno == ENOMEM ? ErrorKind::kNoMemory : ErrorKind::kIo;
    fail(kind, path, fmt::format("{} bytes cannot be mapped: {}", size, system_reason(errno)));
  }
  mapped.data_ = static_cast<const std::byte*>(address);
  mapped.size_ = size;
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      identity_(other.identity_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    identity_ = other.identity_;
  }
  return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() noexcept {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
  size_ = 0;
}

FileChange MappedFile::change() const {
  using Kind = FileChange::Kind;
  const auto changed = [this](Kind kind, const std::string& what) {
    return FileChange{kind, fmt::format("{}: {}", escape(path_, kPathLimit), what)};
  };
  struct stat status{};
  if (::stat(path_.c_str(), &status) != 0) {
    return changed(Kind::kReplaced, "gone since it was opened: " + system_reason(errno));
  }
  const Identity now = identity_of(status);
  const bool same_file = now.inode == identity_.inode && now.device == identity_.device;
  if (now.size != identity_.size) {
    return changed(same_file ? Kind::kWritten : Kind::kReplaced,
                   fmt::format("changed since it was opened: had {} bytes, has {}", identity_.size, now.size));
  }
  if (!same_file) return changed(Kind::kReplaced, "replaced by another file since it was opened");
  if (now.modified_ns != identity_.modified_ns) return changed(Kind::kWritten, "written to since it was opened");
  return {};
}

void MappedFile::verify_unchanged() const {
  const FileChange found = change();
  if (found.kind != FileChange::Kind::kNone) throw Error(ErrorKind::kIo, found.what);
}

}  // namespace carpool
