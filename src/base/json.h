// Strict JSON: Boost.JSON values, read with the limits and the typed accessors that untrusted files need.
//
// Owns: parsing (UTF-8 checked, depth and size limited, duplicate keys refused), accessors that
// name the key path when a value is missing or of the wrong type, and reading of whole files and streams. Errors are
// Error{kMalformed} whose sentence begins with `where` (a file name or "request").
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include "base/error.h"

namespace carpool {

namespace json = boost::json;

// What parse_json throws: why and where, for those who say it in words of their own.
class JsonError : public Error {
 public:
  enum class Reason { kSyntax, kUnicode, kTooDeep, kTooLarge, kDuplicateKey, kOverflow };
  JsonError(Reason reason, size_t offset, const std::string& sentence)
      : Error(ErrorKind::kMalformed, sentence), reason_(reason), offset_(offset) {}
  Reason reason() const { return reason_; }
  size_t offset() const { return offset_; }  // bytes

 private:
  Reason reason_;
  size_t offset_;
};

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;
  size_t max_depth = 64;
};

// Parses exactly one JSON value. Refuses: not UTF-8 or a byte order mark, trailing bytes, depth over the limit, a
// key twice in one object (also when one is spelled with escapes), numbers that overflow a double or whose exponent
// overflows 32 bits, NaN and Infinity. Numbers are read exactly (nearest double). Throws JsonError: where, byte offset,
// reason.
json::value parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});

// Reads a whole regular file; kMissing when absent, unreadable or no regular file (a folder, a pipe, a device: never
// waits), kMalformed when over `max_bytes`, kIo when it became shorter meanwhile.
std::string read_text_file(const std::string& path, size_t max_bytes = size_t{256} << 20);

// Reads `in` to its end; kMalformed when it holds more than `max_bytes` (no more than that is kept in memory), kIo when
// reading fails. `where` begins the sentence, as in "standard input".
std::string read_stream(std::istream& in, size_t max_bytes, const std::string& where);

// True when the folder has an entry of this name. A link to nowhere or to itself counts: reading it then says what is
// wrong, where ignoring an optional file that somebody provided would not. False for a name that no file can have.
bool file_exists(const std::string& path);

// A view of one object with its place in the file, for typed access: JsonObject(root, "config.json").
class JsonObject {
 public:
  // `value` must outlive this view. Throws when it is not an object.
  JsonObject(const json::value& value, std::string where);

  bool has(std::string_view key) const;  // present and not null
  // Numbers with an exact integer value count as integers however they are written (1.0, 1e3); 1.5 does not.
  int64_t integer(std::string_view key, int64_t low, int64_t high) const;
  int64_t integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  double number(std::string_view key, double low, double high) const;
  double number_or(std::string_view key, double fallback, double low, double high) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string string(std::string_view key) const;
  std::string string_or(std::string_view key, std::string fallback) const;
  JsonObject object(std::string_view key) const;
  const json::array& array(std::string_view key) const;
  const json::value& value(std::string_view key) const;
  const json::object& raw() const { return *object_; }
  const std::string& where() const { return where_; }

  [[noreturn]] void fail(std::string_view key, const std::string& what) const;  // `where: key "x": what`

 private:
  const json::object* object_;
  std::string where_;
};

// Text that serialises `value` with two-space indentation, keys in insertion order, a final newline.
std::string pretty(const json::value& value);

}  // namespace carpool
