// Errors of carpool: what went wrong, as one sentence, and how the process should exit.
//
// Owns Error (thrown at the edges: loading, parsing, options, requests), the exit codes (BSD
// sysexits meanings) and CARPOOL_CHECK for our own bugs. Nothing thrown ever crosses step(),
// policies or kernels. escape() makes text from untrusted files safe to print.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace carpool {

// The values are the process exit codes.
enum class ErrorKind {
  kUsage = 64,         // bad flags or arguments
  kMalformed = 65,     // a file breaks its format
  kMissing = 66,       // a file is missing or unreadable
  kUnavailable = 69,   // a port is busy, a device is absent
  kInternal = 70,      // our bug
  kNoMemory = 71,      // not enough memory, or an operating-system limit
  kCannotCreate = 73,  // an output file cannot be created
  kIo = 74,            // reading or writing failed midway
  kConfig = 78,        // settings that contradict each other or the model
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& sentence) : std::runtime_error(sentence), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

// Printable ASCII of `text`, at most `limit` characters: quotes, backslashes, control characters and bytes
// above 126 become escapes (\n, \", \x1b), and a cut is marked by "...".
std::string escape(std::string_view text, size_t limit = 200);

[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace carpool

// A condition that only our own bug can break. Stays on in release builds.
#define CARPOOL_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::carpool::check_failed(__FILE__, __LINE__, #condition))
