// A big file, or a folder of files, that appears whole or not at all.
//
// Owns a temporary file or folder beside the wanted one: filled in pieces, renamed at commit(), removed when the object
// dies before that. Output that fits in memory is cli/model_options.h, write_output.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace carpool {

class OutputFile {
 public:
  // Begins `path`, for which `bytes` bytes must be free on its file system. `replace`: an existing regular file is
  // replaced by commit(); otherwise a name that is taken is refused, now and at commit(). Throws kCannotCreate.
  OutputFile(const std::string& path, bool replace, uint64_t bytes);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Appends. Throws kIo.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  uint64_t written() const { return written_; }
  // Makes the file durable and gives it its name. Throws kIo, kCannotCreate when the name was taken meanwhile.
  void commit();

 private:
  [[noreturn]] void fail(int code) const;
  void flush();

  std::string path_, temporary_;
  bool replace_;
  int fd_ = -1;
  uint64_t written_ = 0;
  std::string buffer_;
};

class OutputFolder {
 public:
  // Begins the folder `path`. `replace`: a folder that is there already is exchanged for the new one by commit() and
  // removed, but only when it is empty or holds an entry named `must_hold`, so that a slip does not remove somebody's
  // files. Throws kCannotCreate.
  OutputFolder(const std::string& path, bool replace, const std::string& must_hold);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Where to write the file `name`.
  std::string file(const std::string& name) const { return temporary_ + "/" + name; }
  // Gives the folder its name. Throws kIo, kCannotCreate when the name was taken meanwhile.
  void commit();

 private:
  std::string path_, temporary_;
  bool replace_;
};

// Throws kCannotCreate unless `bytes` bytes are free where `path` is to be made, naming both numbers.
void require_disk_space(const std::string& path, uint64_t bytes);

}  // namespace carpool
