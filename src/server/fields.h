// Reading a request's JSON: strictly parsed, every value of the type and range that its field promises.
//
// Owns read_body (what HTTP bodies may be) and Fields, a view of one object whose accessors throw ApiError 400 with the
// field's path ("messages[2].content"). null counts as absent, as it does for the APIs we speak. Texts of errors hold
// numbers and names of fields, never what a prompt says. What fields mean: parameters.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/api_error.h"

namespace carpool {

// The most that a server can be told to take (--max-body-bytes).
inline constexpr size_t kMaxBodyBytes = size_t{64} << 20;

// The body as an object. ApiError 400: invalid_json (with the byte), invalid_unicode, json_too_deep, invalid_value for
// a number that no double can hold.
json::object read_body(std::string_view body);

// Numbers between `low` and `high`; the text says how that reads to people ("above 0 and at most 1").
struct Range {
  double low, high;
  const char* text;
  bool open_low = false, open_high = false;
};

class Fields {
 public:
  // `object` must outlive this view; `path` is put before the names, "" for the whole body.
  explicit Fields(const json::object& object, std::string path = "") : object_(&object), path_(std::move(path)) {}
  // The same of a value that must be an object, at `path`.
  static Fields of(const json::value& value, const std::string& path);

  bool has(std::string_view name) const { return find(name) != nullptr; }
  const json::value* find(std::string_view name) const;  // null when absent or null
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high) const;
  std::optional<float> number(std::string_view name, const Range& range) const;
  std::optional<bool> boolean(std::string_view name) const;
  bool boolean_or(std::string_view name, bool fallback) const { return boolean(name).value_or(fallback); }
  std::optional<std::string> string(std::string_view name) const;
  // A list of at most `most` values, else too_many_items; null when absent.
  const json::array* array(std::string_view name, size_t most) const;
  std::optional<Fields> object(std::string_view name) const;
  // ApiError missing_field when absent.
  const json::value& required(std::string_view name) const;

  std::string path(std::string_view name) const;
  const json::object& raw() const { return *object_; }

 private:
  const json::object* object_;
  std::string path_;
};

// Token ids of a model with `vocab` rows.
std::vector<int> read_token_ids(const json::array& array, const std::string& path, int vocab);
ApiError too_many_items(std::string param, size_t count, size_t most);

}  // namespace carpool
