// See value.h.
#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/utf8.h"

namespace carpool::jinja {
namespace {

// Adds a member's depth and weight to those of the container being made.
void count_member(const Value& value, int& depth, uint64_t& weight) {
  if (value.space()) throw Failure{"a namespace cannot be put into a list, a dict or another namespace"};
  if (value.depth() + 1 > kMaxDepth) throw Failure{fmt::format("a value is nested deeper than {} levels", kMaxDepth)};
  depth = std::max(depth, value.depth() + 1);
  if (__builtin_add_overflow(weight, value.weight(), &weight)) weight = ~uint64_t{0};
}

void check_size(const Text& out) {
  if (out.bytes.size() > Budget::kMaxTextBytes) {
    throw Failure{fmt::format("a text grows over {} MiB", Budget::kMaxTextBytes >> 20)};
  }
}

// Python's repr of a float: the shortest digits that read back, with ".0" or an exponent of two digits at least.
std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::fabs(d);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, d, fixed ? std::chars_format::fixed : std::chars_format::scientific)
          .ptr;
  std::string out(buffer, end);
  if (fixed && out.find('.') == std::string::npos) out += ".0";
  return out;
}

void append_quoted(const Text& text, Text& out) {
  const bool use_double = text.bytes.find('\'') != std::string::npos && text.bytes.find('"') == std::string::npos;
  const char quote = use_double ? '"' : '\'';
  out.append(std::string_view(&quote, 1));
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    const char c = text.bytes[i];
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') out.append("\\");
    if (c == '\n') {
      out.append("\\n");
    } else if (c == '\r') {
      out.append("\\r");
    } else if (c == '\t') {
      out.append("\\t");
    } else if (byte < 32 || byte == 127) {
      out.append(fmt::format("\\x{:02x}", byte));
    } else {
      out.append(text, i, 1);
    }
  }
  out.append(std::string_view(&quote, 1));
}

void append_json_string(const Text& text, bool ascii, Text& out) {
  out.append("\"");
  for (size_t i = 0; i < text.bytes.size();) {
    const auto byte = static_cast<unsigned char>(text.bytes[i]);
    size_t next = i;
    const char32_t c = read_code_point(text.bytes, next);
    const std::string_view named = byte == '"'    ? "\\\""
                                   : byte == '\\' ? "\\\\"
                                   : byte == '\n' ? "\\n"
                                   : byte == '\r' ? "\\r"
                                   : byte == '\t' ? "\\t"
                                   : byte == '\b' ? "\\b"
                                   : byte == '\f' ? "\\f"
                                                  : "";
    if (!named.empty()) {
      out.append(named);
    } else if (byte < 32 || (ascii && c > 126 && c < 0x10000)) {
      out.append(fmt::format("\\u{:04x}", static_cast<uint32_t>(c)));
    } else if (ascii && c >= 0x10000) {
      const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
      out.append(fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF)));
    } else {
      out.append(text, i, next - i);
    }
    i = next;
  }
  out.append("\"");
}

// Depth is bounded by kMaxDepth, which every container was checked against when it was made.
void append_json(const Value& value, const JsonStyle& style, int level, Text& out) {
  const auto line = [&](int at) {
    if (style.indent < 0) return;
    out.append("\n");
    out.append(std::string(static_cast<size_t>(at * style.indent), ' '));
  };
  if (value.is_none()) return out.append("null");
  if (const bool* b = value.boolean()) return out.append(*b ? "true" : "false");
  if (const int64_t* i = value.integer()) return out.append(std::to_string(*i));
  if (const double* d = value.real()) {
    return out.append(std::isnan(*d) ? "NaN" : std::isinf(*d) ? (*d < 0 ? "-Infinity" : "Infinity") : float_repr(*d));
  }
  if (const Text* text = value.text()) return append_json_string(*text, style.ascii, out);
  if (const List* list = value.list()) {
    out.append("[");
    for (size_t i = 0; i < list->items.size(); ++i) {
      check_size(out);
      if (i) out.append(style.item_separator);
      line(level + 1);
      append_json(list->items[i], style, level + 1, out);
    }
    if (!list->items.empty()) line(level);
    return out.append("]");
  }
  const Dict* dict = value.dict();
  if (!dict) throw Failure{fmt::format("tojson: {} cannot be written as JSON", value.type_name())};
  auto items = dict->items;
  if (style.sort_keys) {
    std::stable_sort(items.begin(), items.end(),
                     [](const auto& a, const auto& b) { return a.first.bytes < b.first.bytes; });
  }
  out.append("{");
  for (size_t i = 0; i < items.size(); ++i) {
    check_size(out);
    if (i) out.append(style.item_separator);
    line(level + 1);
    append_json_string(items[i].first, style.ascii, out);
    out.append(style.key_separator);
    append_json(items[i].second, style, level + 1, out);
  }
  if (!items.empty()) line(level);
  out.append("}");
}

void append_repr(const Value& value, Text& out) {
  if (const Text* text = value.text()) return append_quoted(*text, out);
  if (const List* list = value.list()) {
    out.append(list->is_tuple ? "(" : "[");
    for (size_t i = 0; i < list->items.size(); ++i) {
      check_size(out);
      if (i) out.append(", ");
      append_repr(list->items[i], out);
    }
    if (list->is_tuple && list->items.size() == 1) out.append(",");
    return out.append(list->is_tuple ? ")" : "]");
  }
  if (const Dict* dict = value.dict()) {
    out.append("{");
    for (size_t i = 0; i < dict->items.size(); ++i) {
      check_size(out);
      if (i) out.append(", ");
      append_quoted(dict->items[i].first, out);
      out.append(": ");
      append_repr(dict->items[i].second, out);
    }
    return out.append("}");
  }
  if (value.space() || value.macro()) throw Failure{fmt::format("{} cannot be printed", value.type_name())};
  if (value.is_undefined()) return out.append("Undefined");
  out.append(to_text(value));
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    if (name.bytes == key) return &value;
  }
  return nullptr;
}

Value Value::list(std::vector<Value> items, bool is_tuple) {
  int depth = 1;
  uint64_t weight = 1;
  for (const Value& item : items) count_member(item, depth, weight);
  Value out;
  out.v_ = std::make_shared<const List>(List{std::move(items), depth, weight, is_tuple});
  return out;
}

Value Value::dict(std::vector<std::pair<Text, Value>> items) {
  int depth = 1;
  uint64_t weight = 1;
  for (const auto& [key, item] : items) count_member(item, depth, weight += key.bytes.size());
  Value out;
  out.v_ = std::make_shared<const Dict>(Dict{std::move(items), depth, weight});
  return out;
}

Value Value::from_json(const json::value& value, bool trusted) {
  switch (value.kind()) {
    case json::kind::null:
      return None{};
    case json::kind::bool_:
      return value.get_bool();
    case json::kind::int64:
      return value.get_int64();
    case json::kind::uint64:
      return static_cast<double>(value.get_uint64());
    case json::kind::double_:
      return value.get_double();
    case json::kind::string:
      return Text(sanitize_utf8(value.get_string()), trusted);
    case json::kind::array: {
      std::vector<Value> items;
      items.reserve(value.get_array().size());
      for (const json::value& item : value.get_array()) items.push_back(from_json(item, trusted));
      return list(std::move(items));
    }
    case json::kind::object:
      break;
  }
  std::vector<std::pair<Text, Value>> items;
  items.reserve(value.get_object().size());
  for (const auto& [key, item] : value.get_object()) {
    items.emplace_back(Text(sanitize_utf8(key), trusted), from_json(item, trusted));
  }
  return dict(std::move(items));
}

double Value::as_double() const {
  if (const double* d = real()) return *d;
  int64_t i = 0;
  as_integer(i);
  return static_cast<double>(i);
}

bool Value::as_integer(int64_t& out) const {
  if (const bool* b = boolean()) return out = *b, true;
  if (const int64_t* i = integer()) return out = *i, true;
  return false;
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return as_double() != 0;
  if (const Text* t = text()) return !t->bytes.empty();
  if (const List* l = list()) return !l->items.empty();
  if (const Dict* d = dict()) return !d->items.empty();
  return true;
}

int Value::depth() const { return list() ? list()->depth : dict() ? dict()->depth : 0; }

uint64_t Value::weight() const {
  return list() ? list()->weight : dict() ? dict()->weight : text() ? 1 + text()->bytes.size() : 1;
}

const char* Value::type_name() const {
  static constexpr const char* kNames[] = {"an undefined value", "none",   "a boolean", "an integer",  "a float",
                                           "a string",           "a list", "a dict",    "a namespace", "a macro"};
  return kNames[v_.index()];
}

bool equal(const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (a.as_integer(i) && b.as_integer(j)) return i == j;
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.text() && b.text()) return a.text()->bytes == b.text()->bytes;
  if (a.list() && b.list()) {
    return a.list()->is_tuple == b.list()->is_tuple &&
           std::equal(a.list()->items.begin(), a.list()->items.end(), b.list()->items.begin(), b.list()->items.end(),
                      equal);
  }
  if (const Dict *x = a.dict(), *y = b.dict(); x && y) {
    return x->items.size() == y->items.size() && std::all_of(x->items.begin(), x->items.end(), [&](const auto& item) {
             const Value* other = y->find(item.first.bytes);
             return other && equal(item.second, *other);
           });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  int64_t i = 0, j = 0;
  if (a.as_integer(i) && b.as_integer(j)) return i < j;
  if (a.is_number() && b.is_number()) return a.as_double() < b.as_double();
  if (a.text() && b.text()) return a.text()->bytes < b.text()->bytes;
  throw Failure{fmt::format("cannot order {} and {}", a.type_name(), b.type_name())};
}

Text to_text(const Value& value) {
  if (const Text* text = value.text()) return *text;
  Text out;
  if (value.is_undefined()) return out;
  if (value.is_none()) {
    out.append("None");
  } else if (const bool* b = value.boolean()) {
    out.append(*b ? "True" : "False");
  } else if (const int64_t* i = value.integer()) {
    out.append(std::to_string(*i));
  } else if (const double* d = value.real()) {
    out.append(float_repr(*d));
  } else {
    append_repr(value, out);
  }
  return out;
}

Text to_repr(const Value& value) {
  Text out;
  append_repr(value, out);
  return out;
}

Text to_json(const Value& value, const JsonStyle& style) {
  Text out;
  append_json(value, style, 0, out);
  return out;
}

void Budget::text(size_t bytes) {
  if (bytes > kMaxTextBytes) throw Failure{fmt::format("a text grows over {} MiB", kMaxTextBytes >> 20)};
  total_bytes_ += bytes;
  if (total_bytes_ > kMaxTotalBytes) throw Failure{"the template makes too much text on the way"};
  step(1 + bytes / 256);
}

void Budget::items(size_t count) {
  if (count > kMaxListItems) throw Failure{fmt::format("a list grows over {} items", kMaxListItems)};
  total_bytes_ += count * sizeof(Value);
  if (total_bytes_ > kMaxTotalBytes) throw Failure{"the template makes too much text on the way"};
  step(1 + count / 16);
}

void Budget::check() {
  if (steps_ > kMaxSteps) throw Failure{fmt::format("the template takes over {} steps", kMaxSteps)};
  until_clock_ = 0;
  if (std::chrono::steady_clock::now() >= deadline_) {
    throw Failure{fmt::format("the template takes over {} ms", max_time_.count())};
  }
}

}  // namespace carpool::jinja
