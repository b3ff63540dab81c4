// What a template computes with: Python-like values whose text remembers, byte by byte, where it came from.
//
// Owns Value, the budget that bounds a rendering, and conversion from JSON and to Python's and JSON's notation.
// Containers are immutable and at most kMaxDepth deep, so no template can build a cycle or overflow the stack by
// printing or destroying a value; only namespaces change. Operators and filters are in interpreter.cc and filters.cc.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"

namespace carpool::jinja {

struct Statement;

inline constexpr int kMaxDepth = 128;

// Thrown inside this folder; the interpreter adds the line and turns it into an Error.
struct Failure {
  std::string what;
  ErrorKind kind = ErrorKind::kMalformed;
};

// Text and, for each byte, whether the template's author wrote it ('t') or a request did ('u').
struct Text {
  std::string bytes;
  std::string marks;  // same length

  Text() = default;
  Text(std::string_view text, bool trusted) : bytes(text), marks(text.size(), trusted ? 't' : 'u') {}
  void append(const Text& other) { bytes += other.bytes, marks += other.marks; }
  void append(const Text& other, size_t pos, size_t n) {
    bytes.append(other.bytes, pos, n), marks.append(other.marks, pos, n);
  }
  void append(std::string_view text) { bytes += text, marks.append(text.size(), 't'); }
  Text sub(size_t pos, size_t n = std::string::npos) const {
    Text out;
    out.append(*this, pos, n);
    return out;
  }
};

class Value;
// Containers are shared, so the work of visiting one can be far above the memory it takes; `weight` is that work:
// 1 for each value plus the bytes of each text, saturating.
struct List {
  std::vector<Value> items;
  int depth;
  uint64_t weight;
  bool is_tuple;  // printed with round brackets, as pairs of a dict are
};
struct Dict {
  std::vector<std::pair<Text, Value>> items;  // in insertion order, keys distinct
  int depth;
  uint64_t weight;
  const Value* find(std::string_view key) const;
};
struct Namespace;

class Value {
 public:
  struct Undefined {};
  struct None {};
  Value() = default;  // undefined
  Value(None) : v_(None{}) {}
  Value(bool b) : v_(b) {}
  Value(int64_t i) : v_(i) {}
  Value(double d) : v_(d) {}
  Value(Text text) : v_(std::make_shared<const Text>(std::move(text))) {}
  Value(const Statement* macro) : v_(macro) {}
  template <class T>
  Value(T*) = delete;  // would become a boolean
  Value(std::shared_ptr<Namespace> ns) : v_(std::move(ns)) {}
  // Throw Failure when deeper than kMaxDepth or holding a namespace.
  static Value list(std::vector<Value> items, bool is_tuple = false);
  static Value dict(std::vector<std::pair<Text, Value>> items);  // of equal keys the last value counts
  // `trusted`: whether the text in it may hold control tokens.
  static Value from_json(const json::value& value, bool trusted);

  bool is_undefined() const { return std::holds_alternative<Undefined>(v_); }
  bool is_none() const { return std::holds_alternative<None>(v_); }
  const bool* boolean() const { return std::get_if<bool>(&v_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&v_); }
  const double* real() const { return std::get_if<double>(&v_); }
  const Text* text() const { return pointer<const Text>(); }
  const List* list() const { return pointer<const List>(); }
  const Dict* dict() const { return pointer<const Dict>(); }
  Namespace* space() const { return pointer<Namespace>(); }
  const Statement* macro() const {
    const auto* m = std::get_if<const Statement*>(&v_);
    return m ? *m : nullptr;
  }
  bool is_number() const { return boolean() || integer() || real(); }
  double as_double() const;             // of a number
  bool as_integer(int64_t& out) const;  // true for booleans and integers
  bool truthy() const;
  int depth() const;
  uint64_t weight() const;
  const char* type_name() const;  // "a string", for messages

 private:
  template <class T>
  T* pointer() const {
    const auto* p = std::get_if<std::shared_ptr<T>>(&v_);
    return p ? p->get() : nullptr;
  }
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, const Statement*>
      v_;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
};

// Python's == and <. less() throws Failure for values that have no order.
bool equal(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);

struct JsonStyle {
  int indent = -1;  // below 0: one line
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false, ascii = false;
};
// str(), repr() and json.dumps(). Marks travel with the text. Throw Failure for values without a notation.
Text to_text(const Value& value);
Text to_repr(const Value& value);
Text to_json(const Value& value, const JsonStyle& style);

// The limits of one rendering. All throw Failure.
class Budget {
 public:
  static constexpr uint64_t kMaxSteps = 10'000'000;
  static constexpr size_t kMaxTextBytes = size_t{16} << 20;      // of the output and of any text on the way
  static constexpr uint64_t kMaxTotalBytes = uint64_t{1} << 28;  // of everything made on the way
  static constexpr size_t kMaxListItems = 1'000'000;

  explicit Budget(std::chrono::milliseconds max_time)
      : max_time_(max_time), deadline_(std::chrono::steady_clock::now() + max_time) {}

  void step(uint64_t n = 1) {
    steps_ += n, until_clock_ += n;
    if (steps_ > kMaxSteps || until_clock_ > 4096) check();
  }
  void text(size_t bytes);   // a text of this size is about to exist
  void items(size_t count);  // a list or dict of this size is about to exist

 private:
  void check();
  uint64_t steps_ = 0, until_clock_ = 0, total_bytes_ = 0;
  std::chrono::milliseconds max_time_;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace carpool::jinja
