// The SAX handler behind parse_json, and the typed accessors.
#include "base/json.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <boost/json/basic_parser_impl.hpp>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <istream>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace carpool {
namespace {

// Finds duplicate keys while parsing: Boost.JSON keeps the last of two equal keys, so a duplicate would otherwise
// vanish. Implements the SAX interface of boost::json::basic_parser and hands every event to a value_stack.
class Handler {
 public:
  static constexpr size_t max_object_size = size_t(-1);
  static constexpr size_t max_array_size = size_t(-1);
  static constexpr size_t max_key_size = size_t{1} << 20;
  static constexpr size_t max_string_size = size_t{64} << 20;

  bool on_document_begin(json::error_code&) {
    stack_.reset();
    return true;
  }
  bool on_document_end(json::error_code&) { return true; }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t n, json::error_code&) {
    stack_.push_array(n);
    return true;
  }
  bool on_object_begin(json::error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(size_t n, json::error_code&) {
    keys_.pop_back();
    stack_.push_object(n);
    return true;
  }
  bool on_string_part(json::string_view s, size_t, json::error_code&) {
    stack_.push_chars(s);
    return true;
  }
  bool on_string(json::string_view s, size_t, json::error_code&) {
    stack_.push_string(s);
    return true;
  }
  bool on_key_part(json::string_view s, size_t, json::error_code&) {
    key_.append(s.data(), s.size());
    stack_.push_chars(s);
    return true;
  }
  bool on_key(json::string_view s, size_t, json::error_code& ec) {
    key_.append(s.data(), s.size());
    if (!keys_.back().insert(key_).second) {
      duplicate = key_;
      ec = json::make_error_code(json::error::syntax);
      return false;
    }
    key_.clear();
    stack_.push_key(s);
    return true;
  }
  bool on_number_part(json::string_view s, json::error_code&) {
    number_.append(s.data(), s.size());
    return true;
  }
  bool on_int64(int64_t i, json::string_view, json::error_code&) {
    number_.clear();
    stack_.push_int64(i);
    return true;
  }
  bool on_uint64(uint64_t u, json::string_view, json::error_code&) {
    number_.clear();
    stack_.push_uint64(u);
    return true;
  }
  // Boost.JSON 1.81 computes doubles that can be off in the last place, so the text is read again exactly.
  bool on_double(double rough, json::string_view s, json::error_code& ec) {
    number_.append(s.data(), s.size());
    double exact = 0;
    const auto [end, error] = std::from_chars(number_.data(), number_.data() + number_.size(), exact);
    // Out of range is both too large and too close to zero; the rough value tells which.
    const bool tiny = error == std::errc::result_out_of_range && std::abs(rough) < 1;
    if (tiny) exact = rough;
    if ((error != std::errc() && !tiny) || !std::isfinite(exact)) {
      overflow = true;
      ec = json::make_error_code(json::error::exponent_overflow);
      return false;
    }
    number_.clear();
    stack_.push_double(exact);
    return true;
  }
  bool on_bool(bool b, json::error_code&) {
    stack_.push_bool(b);
    return true;
  }
  bool on_null(json::error_code&) {
    stack_.push_null();
    return true;
  }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

  json::value release() { return stack_.release(); }

  std::optional<std::string> duplicate;
  bool overflow = false;

 private:
  json::value_stack stack_;
  std::vector<std::set<std::string>> keys_;  // ordered: a hash set could be made slow by chosen keys
  std::string key_;
  std::string number_;
};

std::string type_name(const json::value& v) {
  switch (v.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return fmt::format("the integer {}", json::serialize(v));
    case json::kind::double_:
      return fmt::format("the number {}", json::serialize(v));
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "?";
}

// Whether the escape before `pos` (or before the backslash there) is the first half of a surrogate pair. Boost.JSON
// calls it a syntax error when no second half follows.
bool follows_leading_surrogate(std::string_view text, size_t pos) {
  for (const size_t end : {pos, pos - 1}) {
    if (end < 6 || end > text.size() || text.substr(end - 6, 2) != "\\u") continue;
    const std::string_view digits = text.substr(end - 4, 2);
    if ((digits[0] == 'd' || digits[0] == 'D') && std::string_view("89abAB").find(digits[1]) != std::string_view::npos)
      return true;
  }
  return false;
}

void print(const json::value& v, int indent, std::string& out) {
  const std::string pad(static_cast<size_t>(indent) + 2, ' ');
  if (const auto* object = v.if_object(); object && !object->empty()) {
    out += "{\n";
    size_t i = 0;
    for (const auto& [key, item] : *object) {
      out += pad + json::serialize(json::value(key)) + ": ";
      print(item, indent + 2, out);
      out += ++i < object->size() ? ",\n" : "\n";
    }
    out += std::string(static_cast<size_t>(indent), ' ') + "}";
  } else if (const auto* array = v.if_array();
             array && !array->empty() && ((*array)[0].is_object() || (*array)[0].is_array())) {
    out += "[\n";
    for (size_t i = 0; i < array->size(); ++i) {
      out += pad;
      print((*array)[i], indent + 2, out);
      out += i + 1 < array->size() ? ",\n" : "\n";
    }
    out += std::string(static_cast<size_t>(indent), ' ') + "]";
  } else {
    out += json::serialize(v);
  }
}

}  // namespace

json::value parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  using Reason = JsonError::Reason;
  const auto fail = [&](Reason reason, size_t offset, const std::string& what) {
    throw JsonError(reason, offset, fmt::format("{}: byte {}: {}", where, offset, what));
  };
  if (text.size() > limits.max_bytes) {
    fail(Reason::kTooLarge, 0, fmt::format("{} bytes of JSON, the limit is {}", text.size(), limits.max_bytes));
  }
  json::parse_options options;
  options.max_depth = limits.max_depth;
  json::basic_parser<Handler> parser(options);
  json::error_code ec;
  size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (ec) {
    if (parser.handler().duplicate) {
      fail(Reason::kDuplicateKey, used, fmt::format("duplicate key \"{}\"", escape(*parser.handler().duplicate)));
    }
    if (parser.handler().overflow) fail(Reason::kOverflow, used, "a number is too large for a double");
    if (ec == json::error::exponent_overflow) fail(Reason::kOverflow, used, "a number's exponent is too large");
    if (ec == json::error::too_deep)
      fail(Reason::kTooDeep, used, fmt::format("nested deeper than {} levels", limits.max_depth));
    if (ec == json::error::incomplete) fail(Reason::kSyntax, text.size(), "the JSON text ends early");
    const bool unicode = ec == json::error::illegal_leading_surrogate ||
                         ec == json::error::illegal_trailing_surrogate || ec == json::error::expected_utf16_escape ||
                         follows_leading_surrogate(text, used);
    fail(unicode ? Reason::kUnicode : Reason::kSyntax, used, fmt::format("not valid JSON ({})", ec.message()));
  }
  if (const size_t rest = text.find_first_not_of(" \t\r\n", used); rest != std::string_view::npos) {
    fail(Reason::kSyntax, rest, "text after the end of the JSON value");
  }
  return parser.handler().release();
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  // A name with a zero byte inside would be cut short by the system call and read another file.
  if (path.find('\0') != std::string::npos) {
    throw Error(ErrorKind::kMissing, fmt::format("{}: not a file name", escape(path, 400)));
  }
  struct stat st{};
  if (::stat(path.c_str(), &st) != 0) {
    const bool absent = errno == ENOENT || errno == ENOTDIR;
    throw Error(ErrorKind::kMissing,
                fmt::format("{}: {}", escape(path, 400), absent ? "no such file" : std::strerror(errno)));
  }
  if (!S_ISREG(st.st_mode)) throw Error(ErrorKind::kMissing, fmt::format("{}: not a regular file", escape(path, 400)));
  if (static_cast<uint64_t>(st.st_size) > max_bytes) {
    throw Error(ErrorKind::kMalformed,
                fmt::format("{}: {} bytes, the limit is {}", escape(path, 400), st.st_size, max_bytes));
  }
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) throw Error(ErrorKind::kMissing, fmt::format("{}: cannot be read", escape(path, 400)));
  std::string text(static_cast<size_t>(st.st_size), '\0');
  if (std::fread(text.data(), 1, text.size(), file.get()) != text.size()) {
    throw Error(ErrorKind::kIo, fmt::format("{}: reading stopped before its {} bytes", escape(path, 400), text.size()));
  }
  return text;
}

std::string read_stream(std::istream& in, size_t max_bytes, const std::string& where) {
  std::string text;
  std::vector<char> block(size_t{1} << 16);
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0) {
    const auto n = static_cast<size_t>(in.gcount());
    if (n > max_bytes - text.size()) {
      throw Error(ErrorKind::kMalformed, fmt::format("{}: more than {} bytes, which is the limit", where, max_bytes));
    }
    text.append(block.data(), n);
  }
  if (in.bad()) throw Error(ErrorKind::kIo, fmt::format("{}: reading failed", where));
  return text;
}

bool file_exists(const std::string& path) {
  struct stat st{};
  return path.find('\0') == std::string::npos && ::lstat(path.c_str(), &st) == 0;
}

JsonObject::JsonObject(const json::value& value, std::string where) : where_(std::move(where)) {
  object_ = value.if_object();
  if (!object_) {
    throw Error(ErrorKind::kMalformed, fmt::format("{}: expected an object, found {}", where_, type_name(value)));
  }
}

void JsonObject::fail(std::string_view key, const std::string& what) const {
  throw Error(ErrorKind::kMalformed, fmt::format("{}: \"{}\": {}", where_, escape(key), what));
}

bool JsonObject::has(std::string_view key) const {
  const json::value* v = object_->if_contains(key);
  return v && !v->is_null();
}

const json::value& JsonObject::value(std::string_view key) const {
  const json::value* v = object_->if_contains(key);
  if (!v) fail(key, "missing");
  return *v;
}

int64_t JsonObject::integer(std::string_view key, int64_t low, int64_t high) const {
  const json::value& v = value(key);
  json::error_code ec;
  const auto i = v.to_number<int64_t>(ec);
  if (!v.is_number() || ec) fail(key, fmt::format("expected an integer, found {}", type_name(v)));
  if (i < low || i > high) fail(key, fmt::format("must be {} to {}, got {}", low, high, i));
  return i;
}

int64_t JsonObject::integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double JsonObject::number(std::string_view key, double low, double high) const {
  const json::value& v = value(key);
  if (!v.is_number()) fail(key, fmt::format("expected a number, found {}", type_name(v)));
  const double d = v.to_number<double>();
  if (!(d >= low && d <= high)) fail(key, fmt::format("must be {} to {}, got {}", low, high, d));
  return d;
}

double JsonObject::number_or(std::string_view key, double fallback, double low, double high) const {
  return has(key) ? number(key, low, high) : fallback;
}

bool JsonObject::boolean_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!value(key).is_bool()) fail(key, fmt::format("expected true or false, found {}", type_name(value(key))));
  return value(key).as_bool();
}

std::string JsonObject::string(std::string_view key) const {
  const json::value& v = value(key);
  if (!v.is_string()) fail(key, fmt::format("expected a string, found {}", type_name(v)));
  return std::string(v.as_string());
}

std::string JsonObject::string_or(std::string_view key, std::string fallback) const {
  return has(key) ? string(key) : std::move(fallback);
}

JsonObject JsonObject::object(std::string_view key) const {
  return JsonObject(value(key), fmt::format("{}: \"{}\"", where_, escape(key)));
}

const json::array& JsonObject::array(std::string_view key) const {
  const json::value& v = value(key);
  if (!v.is_array()) fail(key, fmt::format("expected an array, found {}", type_name(v)));
  return v.as_array();
}

std::string pretty(const json::value& value) {
  std::string out;
  print(value, 0, out);
  return out + "\n";
}

}  // namespace carpool
