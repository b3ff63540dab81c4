// Reading and writing of cache files; see panel_cache.h for the format.
#include "io/panel_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"

namespace carpool {
namespace {

constexpr uint64_t kMagic = 0x314c4e4150504143;  // "CAPPANL1" in little-endian bytes
constexpr uint64_t kVersion = 1;
constexpr uint64_t kPiece = kHugePageBytes;            // bytes of payload under one checksum
constexpr uint64_t kKeyLimit = uint64_t{1} << 20;      // bytes of key text
constexpr uint64_t kPayloadLimit = uint64_t{1} << 46;  // 64 TiB: sums of sizes below cannot overflow
constexpr size_t kSamples = 16;                        // pieces checked when a file is opened
constexpr size_t kNameLimit = 100;                     // characters of a name inside of a file name
constexpr size_t kPathLimit = 400;                     // characters of a path in a message

struct Front {
  uint64_t magic = kMagic;
  uint64_t version = kVersion;
  uint64_t key_bytes = 0;
  uint64_t payload_offset = 0;
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(Front) == 48);

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }
uint64_t pieces_of(uint64_t payload_bytes) { return (payload_bytes + kPiece - 1) / kPiece; }

// Bytes that precede the payload and mean something.
uint64_t front_bytes(uint64_t key_bytes, uint64_t payload_bytes) {
  return sizeof(Front) + round_up(key_bytes, 8) + 8 * pieces_of(payload_bytes);
}

std::span<const std::byte> piece(std::span<const std::byte> payload, uint64_t index) {
  const std::span<const std::byte> rest = payload.subspan(index * kPiece);
  return rest.first(std::min<size_t>(rest.size(), kPiece));
}

// Closes a file descriptor at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string reason(int code) { return std::strerror(code); }

[[noreturn]] void fail(ErrorKind kind, const std::string& path, const std::string& what) {
  throw Error(kind, fmt::format("{}: {}", escape(path, kPathLimit), what));
}

// The first line in which two key texts differ, as the end of a sentence.
std::string difference(std::string_view had, std::string_view wanted) {
  const auto line = [](std::string_view& text) {
    const std::string_view first = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(first.size() + 1, text.size()));
    return first;
  };
  for (int number = 1;; ++number) {
    const bool had_ends = had.empty(), wanted_ends = wanted.empty();
    const std::string_view a = line(had), b = line(wanted);
    if (a != b || had_ends || wanted_ends) {
      return fmt::format("line {} of its key is \"{}\", \"{}\" is wanted", number, escape(a, 120), escape(b, 120));
    }
  }
}

}  // namespace

// Opens one file step by step; the first step that fails says why.
class PanelCacheReader {
 public:
  PanelCacheReader(std::string path, std::string* why_not) : path_(std::move(path)), why_not_(why_not) {}

  std::optional<MappedPanels> read(const std::string& key_text, uint64_t payload_bytes, HugePages huge_pages) {
    MappedPanels panels;
    if (!open() || !read_front(key_text, payload_bytes, panels.checksums_)) return std::nullopt;
    if (!map(panels, huge_pages) || !samples_hold(panels)) return std::nullopt;
    panels.path_ = path_;
    return panels;
  }

 private:
  bool miss(std::string sentence) {
    if (why_not_ != nullptr) *why_not_ = std::move(sentence);
    return false;
  }

  bool open() {
    if (path_.find('\0') != std::string::npos) return miss("not a file name");
    file_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe must not wait for a writer
    if (file_.get() < 0) return miss(errno == ENOENT ? "there is none yet" : "cannot be opened: " + reason(errno));
    struct stat status{};
    if (::fstat(file_.get(), &status) != 0) return miss("cannot be examined: " + reason(errno));
    if (!S_ISREG(status.st_mode)) return miss("not a regular file");
    size_ = static_cast<uint64_t>(status.st_size);
    return true;
  }

  bool read_at(uint64_t offset, void* to, size_t count) {
    for (size_t done = 0; done < count;) {
      const ssize_t got =
          ::pread(file_.get(), static_cast<char*>(to) + done, count - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return miss("cannot be read: " + reason(errno));
      if (got == 0) return miss(fmt::format("cut short at {} bytes", offset + done));
      done += static_cast<size_t>(got);
    }
    return true;
  }

  // Sizes are checked one after another, so that nothing of a wrong size is ever read or reserved.
  bool read_front(const std::string& key_text, uint64_t payload_bytes, std::vector<uint64_t>& checksums) {
    if (!read_at(0, &front_, sizeof(front_))) return false;
    if (front_.magic != kMagic) return miss("not a cache of repacked weights");
    if (front_.version != kVersion) {
      return miss(fmt::format("written in version {} of the format, {} is wanted", front_.version, kVersion));
    }
    if (front_.key_bytes > kKeyLimit || front_.payload_bytes > kPayloadLimit) return miss("damaged: impossible sizes");
    const uint64_t front = front_bytes(front_.key_bytes, front_.payload_bytes);
    if (front_.payload_offset != round_up(front, kPiece)) return miss("damaged: impossible payload offset");
    const uint64_t whole = front_.payload_offset + front_.payload_bytes;
    if (size_ != whole) return miss(fmt::format("has {} bytes, its header says {}", size_, whole));
    std::vector<std::byte> all(front);
    if (!read_at(0, all.data(), all.size())) return false;
    std::memcpy(&front_, all.data(), sizeof(front_));
    Front unsigned_front = front_;
    unsigned_front.checksum = 0;
    std::memcpy(all.data(), &unsigned_front, sizeof(Front));
    if (checksum64(all) != front_.checksum) return miss("damaged: the checksum of its header is wrong");
    const std::string_view had(reinterpret_cast<const char*>(all.data()) + sizeof(Front), front_.key_bytes);
    if (had != key_text) return miss("made for something else: " + difference(had, key_text));
    if (front_.payload_bytes != payload_bytes) {
      return miss(fmt::format("holds {} bytes, {} are wanted", front_.payload_bytes, payload_bytes));
    }
    checksums.resize(pieces_of(payload_bytes));
    if (!checksums.empty()) {
      std::memcpy(checksums.data(), all.data() + front - 8 * checksums.size(), 8 * checksums.size());
    }
    return true;
  }

  bool map(MappedPanels& panels, HugePages huge_pages) {
    if (front_.payload_bytes == 0) return true;
    auto range = AddressRange::reserve(front_.payload_bytes);
    if (!range || ::mmap(range->data(), front_.payload_bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, file_.get(),
                         static_cast<off_t>(front_.payload_offset)) == MAP_FAILED) {
      return miss(fmt::format("{} bytes cannot be mapped: {}", front_.payload_bytes, reason(errno)));
    }
    // Advice only: file systems without large folios ignore it.
    const int advice = huge_pages == HugePages::kOff ? MADV_NOHUGEPAGE : MADV_HUGEPAGE;
    static_cast<void>(::madvise(range->data(), front_.payload_bytes, advice));
    panels.range_ = std::move(*range);
    panels.bytes_ = front_.payload_bytes;
    return true;
  }

  // By reading, not through the mapping: a disk that fails gives a miss, not a signal. The first and the last piece are
  // always among the samples.
  bool samples_hold(const MappedPanels& panels) {
    const size_t pieces = panels.checksums_.size(), samples = std::min(pieces, kSamples);
    std::vector<std::byte> buffer(pieces == 0 ? 0 : kPiece);
    for (size_t i = 0; i < samples; ++i) {
      const size_t index = samples == 1 ? 0 : i * (pieces - 1) / (samples - 1);
      const std::span<std::byte> part = std::span(buffer).first(piece(panels.bytes(), index).size());
      if (!read_at(front_.payload_offset + index * kPiece, part.data(), part.size())) return false;
      if (checksum64(part) != panels.checksums_[index]) {
        return miss(fmt::format("damaged: the payload is wrong in the 2 MiB from byte {}",
                                front_.payload_offset + index * kPiece));
      }
    }
    return true;
  }

  std::string path_;
  std::string* why_not_;
  Descriptor file_;
  uint64_t size_ = 0;
  Front front_;
};

std::optional<std::string> MappedPanels::damage() const {
  for (size_t i = 0; i < checksums_.size(); ++i) {
    if (checksum64(piece(bytes(), i)) != checksums_[i]) {
      return fmt::format("damaged: the payload is wrong in the 2 MiB from its byte {}", i * kPiece);
    }
  }
  return std::nullopt;
}

namespace {

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

std::string file_name(const std::string& name) {
  std::string plain = name.substr(0, kNameLimit);
  for (char& c : plain) c = is_plain(c) ? c : '_';
  if (plain.empty() || plain[0] == '.')
    plain = std::string("_").append(plain);  // hidden names are those of temporary files
  if (plain != name) plain += fmt::format("-{:016x}", checksum64(std::string_view(name)));
  return plain + ".panels";
}

// A file under a temporary name, locked while its writer lives, gone at the end of the scope unless it was kept.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& dir, const std::string& final_name) {
    for (int attempt = 0; attempt < 100; ++attempt) {
      path_ = fmt::format("{}/{}{}-{}", dir, prefix(final_name), ::getpid(), attempt);
      file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));  // less the umask
      if (file_.get() < 0 && errno == EEXIST) continue;  // another thread's, or another machine's with this folder
      if (file_.get() < 0) fail(ErrorKind::kCannotCreate, dir, "no file can be made here: " + reason(errno));
      // A sweep by another writer may have taken the file for an orphan before the lock: then it has no name any more.
      struct stat status{};
      ::flock(file_.get(), LOCK_EX);
      if (::fstat(file_.get(), &status) == 0 && status.st_nlink > 0) return;
    }
    fail(ErrorKind::kCannotCreate, dir, "temporary files vanish here");
  }
  ~TemporaryFile() {
    if (!kept_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  static std::string prefix(const std::string& final_name) { return "." + final_name + ".tmp-"; }
  int fd() const { return file_.get(); }
  const std::string& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::string path_;
  Descriptor file_;
  bool kept_ = false;
};

// Removes temporary files of this cache whose writer is gone: nobody holds their lock. Best effort.
void sweep_orphans(const std::string& dir, const std::string& final_name) {
  const std::string prefix = TemporaryFile::prefix(final_name);
  DIR* const folder = ::opendir(dir.c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(prefix)) continue;
    const std::string path = dir + "/" + std::string(name);
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
    if (file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
  }
  ::closedir(folder);
}

void write_at(const TemporaryFile& file, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail(ErrorKind::kIo, file.path(), "writing failed: " + reason(put < 0 ? errno : ENOSPC));
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
}

void require_room(const std::string& dir, uint64_t bytes) {
  struct statvfs status{};
  if (::statvfs(dir.c_str(), &status) != 0) return;  // the reservation below will say
  const auto room = static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
  if (room >= bytes) return;
  fail(ErrorKind::kCannotCreate, dir,
       fmt::format("the cache of repacked weights needs {} MiB of disk, {} MiB are free", (bytes >> 20) + 1,
                   room >> 20));
}

// Writes the payload and gives the checksums of its pieces. Each piece is read once, summed and handed to the disk at
// once: the final sync has little left, and no more than a few pieces wait in memory.
std::vector<uint64_t> write_payload(const TemporaryFile& file, uint64_t offset, std::span<const std::byte> payload) {
  std::vector<uint64_t> checksums(pieces_of(payload.size()));
  for (size_t i = 0; i < checksums.size(); ++i) {
    const std::span<const std::byte> part = piece(payload, i);
    checksums[i] = checksum64(part);
    write_at(file, offset + i * kPiece, part);
    ::sync_file_range(file.fd(), static_cast<off_t>(offset + i * kPiece), static_cast<off_t>(part.size()),
                      SYNC_FILE_RANGE_WRITE);
  }
  return checksums;
}

void sync_folder(const std::string& dir) {
  const Descriptor folder(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) ::fsync(folder.get());  // some file systems cannot; the file itself is safe
}

}  // namespace

std::string panel_cache_file(const std::string& dir, const std::string& name) { return dir + "/" + file_name(name); }

std::optional<MappedPanels> open_panel_cache(const std::string& dir, const std::string& name,
                                             const std::string& key_text, uint64_t payload_bytes, std::string* why_not,
                                             HugePages huge_pages) {
  return PanelCacheReader(panel_cache_file(dir, name), why_not).read(key_text, payload_bytes, huge_pages);
}

void write_panel_cache(const std::string& dir, const std::string& name, const std::string& key_text,
                       std::span<const std::byte> payload) {
  CARPOOL_CHECK(key_text.size() <= kKeyLimit && payload.size() <= kPayloadLimit);
  if (dir.empty() || dir.find('\0') != std::string::npos) fail(ErrorKind::kCannotCreate, dir, "not a folder name");
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) fail(ErrorKind::kCannotCreate, dir, "cannot be made: " + error.message());

  Front front;
  front.key_bytes = key_text.size();
  front.payload_bytes = payload.size();
  const uint64_t front_size = front_bytes(front.key_bytes, front.payload_bytes);
  front.payload_offset = round_up(front_size, kPiece);
  const uint64_t whole = front.payload_offset + front.payload_bytes;

  sweep_orphans(dir, file_name(name));
  require_room(dir, whole);
  TemporaryFile file(dir, file_name(name));
  if (::ftruncate(file.fd(), static_cast<off_t>(whole)) != 0) {
    fail(ErrorKind::kIo, file.path(), fmt::format("cannot have {} bytes: {}", whole, reason(errno)));
  }
  if (::fallocate(file.fd(), 0, 0, static_cast<off_t>(whole)) != 0 && errno == ENOSPC) {
    fail(ErrorKind::kCannotCreate, file.path(), fmt::format("the disk has no room for {} MiB", whole >> 20));
  }
  const std::vector<uint64_t> checksums = write_payload(file, front.payload_offset, payload);

  std::vector<std::byte> all(front_size);
  std::memcpy(all.data(), &front, sizeof(front));
  if (!key_text.empty()) std::memcpy(all.data() + sizeof(front), key_text.data(), key_text.size());
  if (!checksums.empty()) {
    std::memcpy(all.data() + front_size - 8 * checksums.size(), checksums.data(), 8 * checksums.size());
  }
  front.checksum = checksum64(all);
  std::memcpy(all.data(), &front, sizeof(front));
  write_at(file, 0, all);

  if (::fsync(file.fd()) != 0) fail(ErrorKind::kIo, file.path(), "cannot be completed: " + reason(errno));
  const std::string final_path = panel_cache_file(dir, name);
  if (::rename(file.path().c_str(), final_path.c_str()) != 0) {
    fail(ErrorKind::kCannotCreate, final_path, "cannot be put in place: " + reason(errno));
  }
  file.keep();
  sync_folder(dir);
}

}  // namespace carpool
