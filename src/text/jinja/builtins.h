// What templates may call: functions, filters, tests and methods, by name.
//
// The is_*() questions are the parser's, so that an unknown name is refused when the template is read; the apply_*()
// functions do the work. Everything behaves as in Jinja2 with the filters that transformers replaces (tojson).
// Differences: upper and lower case use single-character mappings (no "SS" for a sharp s), and a dict without a key
// "items" has no d['items'] (Jinja2 would give the method of that name).
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace carpool::jinja {

bool is_function(std::string_view name);  // range, namespace, dict, raise_exception, strftime_now
bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool test_takes_argument(std::string_view name);
bool is_method(std::string_view name);

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Refuses arguments nobody reads: more positional ones than `names`, or a name not among them.
  void check(std::string_view callee, std::initializer_list<std::string_view> names) const;
  // The argument at `index` or called `name`; null when absent.
  const Value* get(size_t index, std::string_view name) const;
};

// All throw Failure for wrong types or arguments.
Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments, Budget& budget);
bool apply_test(std::string_view name, const Value& input, const Value* argument, Budget& budget);
Value apply_method(std::string_view name, const Value& object, const Arguments& arguments, Budget& budget);

// value.name and value[key]. Absent ones are undefined; asking an undefined value is a Failure.
Value get_attribute(const Value& value, std::string_view name);
Value get_item(const Value& value, const Value& key, Budget& budget);
// What a for loop visits: items, keys, or characters.
std::vector<Value> iterate(const Value& value, Budget& budget);
bool contains(const Value& container, const Value& item, Budget& budget);
bool compare_equal(const Value& a, const Value& b, Budget& budget);

// value[begin:end:step]; undefined stands for an omitted part.
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget);

}  // namespace carpool::jinja
