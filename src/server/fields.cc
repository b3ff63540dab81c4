#include "server/fields.h"

#include <fmt/format.h>

#include <cmath>

#include "text/utf8.h"

namespace carpool {
namespace {

constexpr JsonLimits kBodyLimits{.max_bytes = kMaxBodyBytes, .max_depth = 64};

// The byte where `text` stops being UTF-8.
size_t first_broken(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Unit unit = next_utf8(text.substr(pos));
    if (unit.kind != Utf8Kind::kValid) return pos;
    pos += unit.length;
  }
  return pos;
}

// Where a zero byte is in `text`, itself or as \u0000 in a string of valid JSON.
size_t find_zero(std::string_view text) {
  if (const size_t raw = text.find('\0'); raw != std::string_view::npos) return raw;
  for (size_t pos = text.find("\\u0000"); pos != std::string_view::npos; pos = text.find("\\u0000", pos + 1)) {
    size_t slashes = 0;
    while (slashes <= pos && text[pos - slashes] == '\\') ++slashes;
    if (slashes % 2 == 1) return pos;
  }
  return std::string_view::npos;
}

[[noreturn]] void refuse(const JsonError& error) {
  using Reason = JsonError::Reason;
  const size_t at = error.offset();
  switch (error.reason()) {
    case Reason::kUnicode:
      throw bad_request("invalid_unicode", fmt::format("half a surrogate pair at byte {} of the body", at));
    case Reason::kTooDeep:
      throw bad_request("json_too_deep",
                        fmt::format("the body is nested deeper than {} levels at byte {}", kBodyLimits.max_depth, at));
    case Reason::kDuplicateKey:
      throw bad_request("invalid_json", fmt::format("a key occurs twice in one object, at byte {} of the body", at));
    case Reason::kOverflow:
      throw bad_request("invalid_value",
                        fmt::format("the number at byte {} of the body, or its exponent, is too large", at));
    case Reason::kTooLarge:
    case Reason::kSyntax:
      break;
  }
  throw bad_request("invalid_json", fmt::format("the body is not one valid JSON value, see byte {}", at));
}

}  // namespace

json::object read_body(std::string_view body) {
  if (!is_valid_utf8(body)) {
    throw bad_request("invalid_unicode", fmt::format("byte {} of the body is not UTF-8", first_broken(body)));
  }
  if (const size_t zero = find_zero(body); zero != std::string_view::npos) {
    throw bad_request("invalid_unicode", fmt::format("the character U+0000 at byte {} of the body", zero));
  }
  json::value value;
  try {
    value = parse_json(body, "body", kBodyLimits);
  } catch (const JsonError& error) {
    refuse(error);
  }
  if (!value.is_object()) throw bad_request("invalid_json", "the body must be a JSON object");
  return std::move(value.as_object());
}

ApiError too_many_items(std::string param, size_t count, size_t most) {
  const std::string message = fmt::format("{} has {} items, the limit is {}", param, count, most);
  return bad_request("too_many_items", message, std::move(param));
}

Fields Fields::of(const json::value& value, const std::string& path) {
  if (!value.is_object()) throw invalid_value(path, fmt::format("{} must be an object", path));
  return Fields(value.get_object(), path);
}

std::string Fields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

const json::value* Fields::find(std::string_view name) const {
  const json::value* value = object_->if_contains(name);
  return value && !value->is_null() ? value : nullptr;
}

const json::value& Fields::required(std::string_view name) const {
  const json::value* value = find(name);
  if (!value) throw bad_request("missing_field", fmt::format("{} is missing", path(name)), path(name));
  return *value;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) const {
  const json::value* value = find(name);
  if (!value) return std::nullopt;
  json::error_code ec;
  const auto number = value->is_number() ? value->to_number<int64_t>(ec) : 0;
  if (!value->is_number()) throw invalid_value(path(name), fmt::format("{} must be an integer", path(name)));
  const std::string range = high == INT32_MAX || high == INT64_MAX ? fmt::format("an integer, at least {}", low)
                                                                   : fmt::format("an integer from {} to {}", low, high);
  if (ec || number < low || number > high) {
    const std::string got = ec ? "another number" : fmt::format("{}", number);
    throw invalid_value(path(name), fmt::format("{} must be {}, got {}", path(name), range, got));
  }
  return number;
}

std::optional<float> Fields::number(std::string_view name, const Range& range) const {
  const json::value* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_number()) throw invalid_value(path(name), fmt::format("{} must be a number", path(name)));
  const double number = value->to_number<double>();
  const bool inside = (range.open_low ? number > range.low : number >= range.low) &&
                      (range.open_high ? number < range.high : number <= range.high);
  // A value just inside may be rounded to the open end of the range.
  const auto single = static_cast<float>(number);
  const bool inside_rounded = (!range.open_low || single > range.low) && (!range.open_high || single < range.high);
  if (!inside || !inside_rounded) {
    throw invalid_value(path(name), fmt::format("{} must be {}, got {}", path(name), range.text, number));
  }
  return single;
}

std::optional<bool> Fields::boolean(std::string_view name) const {
  const json::value* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_bool()) throw invalid_value(path(name), fmt::format("{} must be true or false", path(name)));
  return value->get_bool();
}

std::optional<std::string> Fields::string(std::string_view name) const {
  const json::value* value = find(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) throw invalid_value(path(name), fmt::format("{} must be a string", path(name)));
  return std::string(value->get_string());
}

const json::array* Fields::array(std::string_view name, size_t most) const {
  const json::value* value = find(name);
  if (!value) return nullptr;
  if (!value->is_array()) throw invalid_value(path(name), fmt::format("{} must be a list", path(name)));
  if (value->get_array().size() > most) throw too_many_items(path(name), value->get_array().size(), most);
  return &value->get_array();
}

std::optional<Fields> Fields::object(std::string_view name) const {
  const json::value* value = find(name);
  if (!value) return std::nullopt;
  return of(*value, path(name));
}

std::vector<int> read_token_ids(const json::array& array, const std::string& path, int vocab) {
  std::vector<int> ids;
  ids.reserve(array.size());
  for (const json::value& value : array) {
    json::error_code ec;
    const auto id = value.is_number() ? value.to_number<int64_t>(ec) : -1;
    if (ec || id < 0 || id >= vocab) {
      const std::string item = fmt::format("{}[{}]", path, ids.size());
      throw invalid_value(item, fmt::format("{} must be a token id, an integer from 0 to {}", item, vocab - 1));
    }
    ids.push_back(static_cast<int>(id));
  }
  return ids;
}

}  // namespace carpool
