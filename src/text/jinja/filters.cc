// Filters and tests; see builtins.h.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>

#include "text/jinja/builtins.h"
#include "text/jinja/text_ops.h"

namespace carpool::jinja {
namespace {

using Filter = Value (*)(const Value& input, const Arguments& arguments, Budget& budget);

const Text& need_text(const Value& value, std::string_view who) {
  if (!value.text()) throw Failure{fmt::format("{}: needs a string, got {}", who, value.type_name())};
  return *value.text();
}

bool flag(const Arguments& arguments, size_t index, std::string_view name) {
  const Value* value = arguments.get(index, name);
  return value && value->truthy();
}

Value make(Text text, Budget& budget) {
  budget.text(text.bytes.size());
  return text;
}

// Filters whose input is taken as text and that have no arguments.
template <Text (*kFunction)(const Text&)>
Value text_filter(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("the filter", {});
  return make(kFunction(to_text(input)), budget);
}
Text title_filter(const Text& text) { return title(text, true); }

Value trim(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("trim", {"chars"});
  const Value* chars = arguments.get(0, "chars");
  const auto set =
      chars && !chars->is_none() ? std::optional<std::string_view>(need_text(*chars, "trim").bytes) : std::nullopt;
  return make(strip(to_text(input), Side::kBoth, set), budget);
}

Value to_json_filter(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = flag(arguments, 0, "ensure_ascii");
  if (const Value* indent = arguments.get(1, "indent"); indent && !indent->is_none()) {
    int64_t n = 0;
    if (!indent->as_integer(n) || n < 0 || n > 32) throw Failure{"tojson: indent must be 0 to 32"};
    style.indent = static_cast<int>(n);
    style.item_separator.assign(1, ',');
  }
  if (const Value* separators = arguments.get(2, "separators"); separators && !separators->is_none()) {
    const List* pair = separators->list();
    if (!pair || pair->items.size() != 2) throw Failure{"tojson: separators must be two strings"};
    style.item_separator = need_text(pair->items[0], "tojson").bytes.substr(0, 16);
    style.key_separator = need_text(pair->items[1], "tojson").bytes.substr(0, 16);
  }
  style.sort_keys = flag(arguments, 3, "sort_keys");
  return make(to_json(input, style), budget);
}

Value length(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("length", {});
  budget.step(1 + (input.text() ? input.text()->bytes.size() / 256 : 0));
  if (input.is_undefined()) return int64_t{0};
  if (input.text()) return static_cast<int64_t>(character_count(*input.text()));
  if (input.list()) return static_cast<int64_t>(input.list()->items.size());
  if (input.dict()) return static_cast<int64_t>(input.dict()->items.size());
  throw Failure{fmt::format("length: {} has no length", input.type_name())};
}

Value first(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("first", {});
  const std::vector<Value> items = iterate(input, budget);
  return items.empty() ? Value() : items.front();
}

Value last(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("last", {});
  const std::vector<Value> items = iterate(input, budget);
  return items.empty() ? Value() : items.back();
}

// "a.b" or a plain name; also a number, for items of lists.
Value get_path(Value value, const Value& path, Budget& budget) {
  if (!path.text()) return get_item(value, path, budget);
  for (const Text& part : split(*path.text(), ".", -1, budget)) {
    int64_t index = 0;
    const auto parsed = std::from_chars(part.bytes.data(), part.bytes.data() + part.bytes.size(), index);
    const bool number = parsed.ec == std::errc() && parsed.ptr == part.bytes.data() + part.bytes.size();
    value = number ? get_item(value, Value(index), budget) : get_item(value, Value(part), budget);
  }
  return value;
}

Value join(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("join", {"d", "attribute"});
  const Value* separator = arguments.get(0, "d");
  const Value* attribute = arguments.get(1, "attribute");
  Text out;
  bool is_first = true;
  for (const Value& item : iterate(input, budget)) {
    if (!std::exchange(is_first, false) && separator) out.append(to_text(*separator));
    out.append(to_text(attribute ? get_path(item, *attribute, budget) : item));
    if (out.bytes.size() > Budget::kMaxTextBytes) break;
    budget.step();
  }
  return make(std::move(out), budget);
}

Value or_default(const Value& input, const Arguments& arguments, Budget&) {
  arguments.check("default", {"default_value", "boolean"});
  if (!input.is_undefined() && (input.truthy() || !flag(arguments, 1, "boolean"))) return input;
  const Value* value = arguments.get(0, "default_value");
  return value ? *value : Value(Text());
}

Value replace_filter(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("replace", {"old", "new", "count"});
  const Value *old = arguments.get(0, "old"), *with = arguments.get(1, "new"), *count = arguments.get(2, "count");
  int64_t max = -1;
  if (!old || !with || (count && !count->is_none() && !count->as_integer(max)))
    throw Failure{"replace: needs the old and the new text"};
  return replace(to_text(input), to_text(*old).bytes, to_text(*with), max, budget);
}

Value to_list(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("list", {});
  return Value::list(iterate(input, budget));
}

std::vector<Value> pairs_of(const Value& input, std::string_view who, Budget& budget) {
  if (!input.dict()) throw Failure{fmt::format("{}: needs a dict, got {}", who, input.type_name())};
  budget.items(2 * input.dict()->items.size());
  std::vector<Value> pairs;
  for (const auto& [key, value] : input.dict()->items) pairs.push_back(Value::list({make(key, budget), value}, true));
  return pairs;
}

Value items(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("items", {});
  return Value::list(input.is_undefined() ? std::vector<Value>() : pairs_of(input, "items", budget));
}

// Sorts by key(item); text compares without regard to case unless asked for.
void sort_items(std::vector<Value>& list, const std::function<Value(const Value&)>& key, bool cased, bool reverse,
                Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : list) {
    Value k = key(item);
    if (k.text() && !cased) k = make(lower(*k.text()), budget);
    keyed.emplace_back(std::move(k), std::move(item));
  }
  budget.items(keyed.size());
  const auto before = [&](const auto& a, const auto& b) {
    budget.step(1 + std::min(a.first.weight(), b.first.weight()) / 256);
    return less(a.first, b.first);
  };
  if (reverse) {
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) { return before(b, a); });
  } else {
    std::stable_sort(keyed.begin(), keyed.end(), before);
  }
  for (size_t i = 0; i < list.size(); ++i) list[i] = std::move(keyed[i].second);
}

Value dictsort(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("dictsort", {"case_sensitive", "by", "reverse"});
  const Value* by = arguments.get(1, "by");
  const int64_t which = by && need_text(*by, "dictsort").bytes == "value" ? 1 : 0;
  std::vector<Value> pairs = pairs_of(input, "dictsort", budget);
  const auto key = [&](const Value& pair) { return pair.list()->items[static_cast<size_t>(which)]; };
  sort_items(pairs, key, flag(arguments, 0, "case_sensitive"), flag(arguments, 2, "reverse"), budget);
  return Value::list(std::move(pairs));
}

Value sort(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("sort", {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> list = iterate(input, budget);
  const Value* attribute = arguments.get(2, "attribute");
  const auto key = [&](const Value& item) { return attribute ? get_path(item, *attribute, budget) : item; };
  sort_items(list, key, flag(arguments, 1, "case_sensitive"), flag(arguments, 0, "reverse"), budget);
  return Value::list(std::move(list));
}

Value reverse(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("reverse", {});
  std::vector<Value> list = iterate(input, budget);
  std::reverse(list.begin(), list.end());
  if (!input.text()) return Value::list(std::move(list));
  return join(Value::list(std::move(list)), {}, budget);
}

// The arguments behind the first, for the filter or test that it names.
Arguments rest_of(const Arguments& arguments, size_t skip) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<ptrdiff_t>(std::min(skip, rest.positional.size())));
  return rest;
}

Value map(const Value& input, const Arguments& arguments, Budget& budget) {
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    arguments.check("map", {"attribute", "default"});
    const Value* attribute = arguments.get(0, "attribute");
    if (!attribute) throw Failure{"map: needs a filter or an attribute"};
    for (const Value& item : iterate(input, budget)) {
      Value value = get_path(item, *attribute, budget);
      const Value* fallback = arguments.get(1, "default");
      out.push_back(value.is_undefined() && fallback ? *fallback : value);
    }
    return Value::list(std::move(out));
  }
  const std::string name = need_text(arguments.positional[0], "map").bytes;
  const Arguments rest = rest_of(arguments, 1);
  if (!is_filter(name) || name == "map")
    throw Failure{fmt::format("map: the filter \"{}\" is not supported", escape(name))};
  for (const Value& item : iterate(input, budget)) out.push_back(apply_filter(name, item, rest, budget));
  return Value::list(std::move(out));
}

// select, reject, selectattr, rejectattr.
template <bool kWanted, bool kByAttribute>
Value select(const Value& input, const Arguments& arguments, Budget& budget) {
  constexpr size_t kTest = kByAttribute ? 1 : 0;
  if (!arguments.named.empty() || arguments.positional.size() < kTest || arguments.positional.size() > kTest + 2) {
    throw Failure{"select: wrong number of arguments"};
  }
  const bool has_test = arguments.positional.size() > kTest;
  const std::string test = has_test ? need_text(arguments.positional[kTest], "select").bytes : "";
  const Value* argument = arguments.positional.size() > kTest + 1 ? &arguments.positional[kTest + 1] : nullptr;
  if (has_test && (!is_test(test) || test_takes_argument(test) != (argument != nullptr))) {
    throw Failure{
        fmt::format("select: the test \"{}\" is not supported or has a wrong number of arguments", escape(test))};
  }
  std::vector<Value> out;
  for (const Value& item : iterate(input, budget)) {
    const Value subject = kByAttribute ? get_path(item, arguments.positional[0], budget) : item;
    if ((has_test ? apply_test(test, subject, argument, budget) : subject.truthy()) == kWanted) out.push_back(item);
  }
  return Value::list(std::move(out));
}

Value to_string(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("string", {});
  return make(to_text(input), budget);
}

Value safe(const Value& input, const Arguments& arguments, Budget&) {
  arguments.check("safe", {});
  return input;  // there is no HTML escaping to switch off
}

// A number, or the number that a text spells; nothing when it spells none.
std::optional<double> parse_number(const Value& input, Budget& budget) {
  if (input.is_number()) return input.as_double();
  if (!input.text()) return std::nullopt;
  budget.text(input.text()->bytes.size());
  const std::string text = strip(*input.text(), Side::kBoth, std::nullopt).bytes;
  const size_t sign = text.starts_with('+') ? 1 : 0;
  double value = 0;
  const auto parsed = std::from_chars(text.data() + sign, text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

Value to_integer(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("int", {"default"});
  int64_t exact = 0;
  if (input.as_integer(exact)) return exact;
  if (input.text()) {
    const std::string text = strip(*input.text(), Side::kBoth, std::nullopt).bytes;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), exact);
    if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) return exact;
  }
  const std::optional<double> value = parse_number(input, budget);
  if (value && std::fabs(*value) < 9e18) return static_cast<int64_t>(*value);
  const Value* fallback = arguments.get(0, "default");
  return fallback ? *fallback : Value(int64_t{0});
}

Value to_float(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("float", {"default"});
  if (const auto value = parse_number(input, budget)) return *value;
  const Value* fallback = arguments.get(0, "default");
  return fallback ? *fallback : Value(0.0);
}

Value absolute(const Value& input, const Arguments& arguments, Budget&) {
  arguments.check("abs", {});
  int64_t i = 0;
  if (input.as_integer(i) && i != INT64_MIN) return i < 0 ? -i : i;
  if (!input.is_number()) throw Failure{"abs: needs a number"};
  return std::fabs(input.as_double());
}

Value indent_filter(const Value& input, const Arguments& arguments, Budget& budget) {
  arguments.check("indent", {"width", "first", "blank"});
  const Value* width = arguments.get(0, "width");
  int64_t n = 4;
  std::string by;
  if (width && width->text()) {
    by = width->text()->bytes;
  } else if (width && (!width->as_integer(n) || n < 0 || n > 1000)) {
    throw Failure{"indent: the width must be 0 to 1000"};
  }
  if (!width || !width->text()) by.assign(static_cast<size_t>(n), ' ');
  return indent(to_text(input), by, flag(arguments, 1, "first"), flag(arguments, 2, "blank"), budget);
}

const std::map<std::string_view, Filter>& filters() {
  static const std::map<std::string_view, Filter> kFilters = {{"abs", absolute},
                                                              {"capitalize", text_filter<capitalize>},
                                                              {"count", length},
                                                              {"d", or_default},
                                                              {"default", or_default},
                                                              {"dictsort", dictsort},
                                                              {"first", first},
                                                              {"float", to_float},
                                                              {"indent", indent_filter},
                                                              {"int", to_integer},
                                                              {"items", items},
                                                              {"join", join},
                                                              {"last", last},
                                                              {"length", length},
                                                              {"list", to_list},
                                                              {"lower", text_filter<lower>},
                                                              {"map", map},
                                                              {"reject", select<false, false>},
                                                              {"rejectattr", select<false, true>},
                                                              {"replace", replace_filter},
                                                              {"reverse", reverse},
                                                              {"safe", safe},
                                                              {"select", select<true, false>},
                                                              {"selectattr", select<true, true>},
                                                              {"sort", sort},
                                                              {"string", to_string},
                                                              {"title", text_filter<title_filter>},
                                                              {"tojson", to_json_filter},
                                                              {"trim", trim},
                                                              {"upper", text_filter<upper>}};
  return kFilters;
}

using Test = bool (*)(const Value& input, const Value& argument, Budget& budget);

int64_t integer_of(const Value& value) {
  int64_t i = 0;
  if (!value.as_integer(i)) throw Failure{fmt::format("the test needs an integer, got {}", value.type_name())};
  return i;
}

bool divides(const Value& input, const Value& by) {
  const int64_t d = integer_of(by);
  if (d == 0) throw Failure{"divisibleby: division by zero"};
  return d == -1 || integer_of(input) % d == 0;
}

struct TestRow {
  bool argument;
  Test test;
};

const std::map<std::string_view, TestRow>& tests() {
  using V = const Value&;
  using B = Budget&;
  static const Test kEqual = [](V v, V a, B b) { return compare_equal(v, a, b); };
  static const Test kLess = [](V v, V a, B) { return less(v, a); };
  static const Test kMore = [](V v, V a, B) { return less(a, v); };
  static const std::map<std::string_view, TestRow> kTests = {
      {"defined", {false, [](V v, V, B) { return !v.is_undefined(); }}},
      {"undefined", {false, [](V v, V, B) { return v.is_undefined(); }}},
      {"none", {false, [](V v, V, B) { return v.is_none(); }}},
      {"string", {false, [](V v, V, B) { return v.text() != nullptr; }}},
      {"mapping", {false, [](V v, V, B) { return v.dict() != nullptr; }}},
      {"sequence", {false, [](V v, V, B) { return v.text() || v.list() || v.dict() || v.is_undefined(); }}},
      {"iterable", {false, [](V v, V, B) { return v.text() || v.list() || v.dict() || v.is_undefined(); }}},
      {"number", {false, [](V v, V, B) { return v.is_number(); }}},
      {"integer", {false, [](V v, V, B) { return v.integer() != nullptr; }}},
      {"float", {false, [](V v, V, B) { return v.real() != nullptr; }}},
      {"boolean", {false, [](V v, V, B) { return v.boolean() != nullptr; }}},
      {"true", {false, [](V v, V, B) { return v.boolean() && *v.boolean(); }}},
      {"false", {false, [](V v, V, B) { return v.boolean() && !*v.boolean(); }}},
      {"odd", {false, [](V v, V, B) { return integer_of(v) % 2 != 0; }}},
      {"even", {false, [](V v, V, B) { return integer_of(v) % 2 == 0; }}},
      {"divisibleby", {true, [](V v, V a, B) { return divides(v, a); }}},
      {"equalto", {true, kEqual}},
      {"eq", {true, kEqual}},
      {"==", {true, kEqual}},
      {"ne", {true, [](V v, V a, B b) { return !compare_equal(v, a, b); }}},
      {"lt", {true, kLess}},
      {"lessthan", {true, kLess}},
      {"gt", {true, kMore}},
      {"greaterthan", {true, kMore}},
      {"le", {true, [](V v, V a, B) { return !less(a, v); }}},
      {"ge", {true, [](V v, V a, B) { return !less(v, a); }}},
      {"in", {true, [](V v, V a, B b) { return contains(a, v, b); }}},
  };
  return kTests;
}

}  // namespace

bool is_filter(std::string_view name) { return filters().contains(name); }
bool is_test(std::string_view name) { return tests().contains(name); }
bool test_takes_argument(std::string_view name) { return tests().at(name).argument; }

Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments, Budget& budget) {
  budget.step();
  return filters().at(name)(input, arguments, budget);
}

bool apply_test(std::string_view name, const Value& input, const Value* argument, Budget& budget) {
  budget.step();
  return tests().at(name).test(input, argument ? *argument : Value(), budget);
}

}  // namespace carpool::jinja
