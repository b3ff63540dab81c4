// POSIX calls of OutputFile; see output_file.h.
#include "io/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace carpool {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

[[noreturn]] void cannot_create(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kCannotCreate, fmt::format("{}: cannot be created: {}", escape(path, 400), why));
}

// Permissions of a file created the usual way.
mode_t new_file_mode() {
  const mode_t mask = ::umask(0);  // reading is setting; no other thread of ours creates files meanwhile
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

void require_disk_space(const std::string& path, uint64_t bytes) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  struct statvfs status{};
  if (::statvfs(folder.c_str(), &status) != 0) cannot_create(path, std::strerror(errno));
  const uint64_t available = static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
  if (bytes > available) {
    cannot_create(path, fmt::format("{} bytes are needed on the disk, {} are free", bytes, available));
  }
}

OutputFile::OutputFile(const std::string& path, bool replace, uint64_t bytes) : path_(path), replace_(replace) {
  if (path.empty() || path.find('\0') != std::string::npos) cannot_create(path, std::strerror(EINVAL));
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!replace) cannot_create(path, "the file exists");
    if (!S_ISREG(status.st_mode)) cannot_create(path, "it exists and is not a regular file");
  }
  require_disk_space(path, bytes);
  temporary_ = path + ".XXXXXX";
  fd_ = ::mkstemp(temporary_.data());
  if (fd_ < 0) cannot_create(path, std::strerror(errno));
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(int code) const {
  throw Error(ErrorKind::kIo, fmt::format("{}: cannot be written after {} bytes: {}", escape(path_, 400), written_,
                                          std::strerror(code)));
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), n);
    bytes = bytes.subspan(n);
    written_ += n;
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void OutputFile::flush() {
  std::string_view left = buffer_;
  while (!left.empty()) {
    const ssize_t n = ::write(fd_, left.data(), left.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(n < 0 ? errno : EIO);
    left.remove_prefix(static_cast<size_t>(n));
  }
  buffer_.clear();
}

void OutputFile::commit() {
  flush();
  if (::fchmod(fd_, new_file_mode()) != 0 || ::fsync(fd_) != 0) fail(errno);
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) fail(errno);
  // link() fails where the name is taken, rename() does not.
  if (replace_) {
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
    temporary_.clear();
  } else if (::link(temporary_.c_str(), path_.c_str()) != 0) {
    if (errno == EEXIST) cannot_create(path_, "the file exists");
    fail(errno);
  }
}

OutputFolder::OutputFolder(const std::string& path, bool replace, const std::string& must_hold)
    : path_(path), replace_(replace) {
  namespace fs = std::filesystem;
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  if (path_.empty() || path_.find('\0') != std::string::npos) cannot_create(path, std::strerror(EINVAL));
  std::error_code error;
  if (const fs::file_status status = fs::symlink_status(path_, error); fs::exists(status)) {
    if (!replace) cannot_create(path, "it exists");
    if (!fs::is_directory(status)) cannot_create(path, "it exists and is not a folder");
    if (!fs::is_empty(path_, error) && !fs::exists(fs::path(path_) / must_hold, error)) {
      cannot_create(path, fmt::format("the folder that is there holds no {}, so it is not replaced", must_hold));
    }
  }
  temporary_ = path_ + ".XXXXXX";
  if (!::mkdtemp(temporary_.data())) {
    temporary_.clear();
    cannot_create(path, std::strerror(errno));
  }
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

void OutputFolder::commit() {
  const auto rename = [&](unsigned flags) {
    return ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), flags) == 0 ? 0 : errno;
  };
  const mode_t mode = new_file_mode();  // who may read a folder may look into it
  if (::chmod(temporary_.c_str(), mode | (mode & 0444) >> 2) != 0) cannot_create(path_, std::strerror(errno));
  const bool there = std::filesystem::exists(path_);
  const int code = rename(there && replace_ ? RENAME_EXCHANGE : RENAME_NOREPLACE);
  if (code == EEXIST) cannot_create(path_, "it exists");
  if (code != 0)
    throw Error(ErrorKind::kIo, fmt::format("{}: cannot be created: {}", escape(path_, 400), std::strerror(code)));
  if (!there) temporary_.clear();  // after an exchange it names the old folder, which goes
}

}  // namespace carpool
