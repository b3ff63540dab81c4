// Methods of strings and dicts, access to members, and the other pieces of builtins.h that are not filters.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "text/jinja/builtins.h"
#include "text/jinja/text_ops.h"

namespace carpool::jinja {
namespace {

constexpr std::string_view kDictMethods[] = {"get", "items", "keys", "values"};
constexpr std::string_view kTextMethods[] = {"capitalize", "count",        "endswith",     "find",    "join",   "lower",
                                             "lstrip",     "removeprefix", "removesuffix", "replace", "rstrip", "split",
                                             "startswith", "strip",        "title",        "upper"};
// Known so that a template which has them on a path it rarely takes still loads.
constexpr std::string_view kChangingMethods[] = {"append", "clear", "extend", "insert", "pop", "remove", "update"};

template <size_t N>
bool one_of(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

const Text& text_argument(std::string_view method, const Arguments& arguments, size_t index) {
  if (index >= arguments.positional.size() || !arguments.positional[index].text()) {
    throw Failure{fmt::format("{}: argument {} must be a string", method, index + 1)};
  }
  return *arguments.positional[index].text();
}

// startswith and endswith take a string or a list of strings.
template <class Matches>
bool any_matches(std::string_view method, const Arguments& arguments, const Matches& matches) {
  if (arguments.positional.size() == 1 && arguments.positional[0].list()) {
    const auto& list = arguments.positional[0].list()->items;
    return std::any_of(list.begin(), list.end(), [&](const Value& v) { return v.text() && matches(v.text()->bytes); });
  }
  return matches(text_argument(method, arguments, 0).bytes);
}

int64_t integer_argument(std::string_view method, const Arguments& arguments, size_t index, std::string_view name,
                         int64_t fallback) {
  const Value* value = arguments.get(index, name);
  if (value && !value->as_integer(fallback)) throw Failure{fmt::format("{}: {} must be an integer", method, name)};
  return fallback;
}

Value to_list(std::vector<Text> parts) {
  std::vector<Value> items;
  for (Text& part : parts) items.emplace_back(std::move(part));
  return Value::list(std::move(items));
}

Value dict_method(std::string_view name, const Dict& dict, const Arguments& arguments, Budget& budget) {
  if (name == "get") {
    arguments.check(name, {"key", "default"});
    if (arguments.positional.empty()) throw Failure{"get: needs a key"};
    budget.step(1 + dict.items.size() / 16);
    const Text* key = arguments.positional[0].text();
    const Value* found = key ? dict.find(key->bytes) : nullptr;
    const Value* fallback = arguments.get(1, "default");
    return found ? *found : fallback ? *fallback : Value(Value::None{});
  }
  arguments.check(name, {});
  budget.items(dict.items.size() * 2);
  std::vector<Value> out;
  for (const auto& [key, value] : dict.items) {
    budget.text(key.bytes.size());
    out.push_back(name == "keys" ? Value(key) : name == "values" ? value : Value::list({Value(key), value}, true));
  }
  return Value::list(std::move(out));
}

Value strip_method(std::string_view name, const Text& text, const Arguments& arguments) {
  arguments.check(name, {"chars"});
  const Side side = name == "lstrip" ? Side::kLeft : name == "rstrip" ? Side::kRight : Side::kBoth;
  const bool has_set = !arguments.positional.empty() && !arguments.positional[0].is_none();
  return strip(text, side,
               has_set ? std::optional<std::string_view>(text_argument(name, arguments, 0).bytes) : std::nullopt);
}

Value split_method(const Text& text, const Arguments& arguments, Budget& budget) {
  arguments.check("split", {"sep", "maxsplit"});
  const Value* separator = arguments.get(0, "sep");
  const int64_t max = integer_argument("split", arguments, 1, "maxsplit", -1);
  if (!separator || separator->is_none()) return to_list(split(text, std::nullopt, max, budget));
  if (!separator->text()) throw Failure{"split: the separator must be a string"};
  return to_list(split(text, separator->text()->bytes, max, budget));
}

Value text_method(std::string_view name, const Text& text, const Arguments& arguments, Budget& budget) {
  budget.text(text.bytes.size());
  const std::string& bytes = text.bytes;
  if (name.ends_with("strip")) return strip_method(name, text, arguments);
  if (name == "split") return split_method(text, arguments, budget);
  if (name == "replace") {
    arguments.check(name, {"old", "new", "count"});
    const int64_t max = integer_argument(name, arguments, 2, "count", -1);
    return replace(text, text_argument(name, arguments, 0).bytes, text_argument(name, arguments, 1), max, budget);
  }
  if (name == "join") {
    arguments.check(name, {"iterable"});
    if (arguments.positional.empty()) throw Failure{"join: needs a list"};
    return apply_filter("join", arguments.positional[0], Arguments{{Value(text)}, {}}, budget);
  }
  if (name == "startswith" || name == "endswith") {
    arguments.check(name, {"prefix"});
    return any_matches(name, arguments, [&](std::string_view part) {
      return name[0] == 's' ? bytes.starts_with(part) : bytes.ends_with(part);
    });
  }
  if (name == "removeprefix" || name == "removesuffix") {
    arguments.check(name, {"part"});
    const std::string& part = text_argument(name, arguments, 0).bytes;
    if (name == "removeprefix") return bytes.starts_with(part) ? text.sub(part.size()) : text;
    return bytes.ends_with(part) ? text.sub(0, bytes.size() - part.size()) : text;
  }
  if (name == "find") {
    arguments.check(name, {"part"});
    const size_t at = find(bytes, text_argument(name, arguments, 0).bytes);
    return at == std::string::npos ? int64_t{-1} : static_cast<int64_t>(character_count(text.sub(0, at)));
  }
  if (name == "count") {
    arguments.check(name, {"part"});
    return static_cast<int64_t>(split(text, text_argument(name, arguments, 0).bytes, -1, budget).size()) - 1;
  }
  arguments.check(name, {});
  return name == "upper"   ? upper(text)
         : name == "lower" ? lower(text)
         : name == "title" ? title(text, false)
                           : capitalize(text);
}

}  // namespace

bool is_function(std::string_view name) {
  static constexpr std::string_view kFunctions[] = {"dict", "namespace", "raise_exception", "range", "strftime_now"};
  return one_of(name, kFunctions);
}

bool is_method(std::string_view name) {
  return one_of(name, kDictMethods) || one_of(name, kTextMethods) || one_of(name, kChangingMethods);
}

void Arguments::check(std::string_view callee, std::initializer_list<std::string_view> names) const {
  if (positional.size() > names.size())
    throw Failure{fmt::format("{}: takes at most {} arguments", callee, names.size())};
  for (const auto& [name, value] : named) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw Failure{fmt::format("{}: no argument is called \"{}\"", callee, name)};
  }
}

const Value* Arguments::get(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value apply_method(std::string_view name, const Value& object, const Arguments& arguments, Budget& budget) {
  budget.step();
  if (object.dict() && one_of(name, kDictMethods)) return dict_method(name, *object.dict(), arguments, budget);
  if (object.text() && one_of(name, kTextMethods)) return text_method(name, *object.text(), arguments, budget);
  if ((object.list() || object.dict()) && one_of(name, kChangingMethods)) {
    throw Failure{fmt::format("\"{}\" would change {}, which templates may not do", name, object.type_name())};
  }
  throw Failure{fmt::format("{} has no method \"{}\"", object.type_name(), name)};
}

Value get_attribute(const Value& value, std::string_view name) {
  if (value.is_undefined()) throw Failure{fmt::format("an undefined value has no attribute \"{}\"", escape(name))};
  if (const Dict* dict = value.dict()) {
    if (one_of(name, kDictMethods))
      throw Failure{fmt::format("\".{}\" is a method; for a key write ['{}']", name, name)};
    const Value* found = dict->find(name);
    return found ? *found : Value();
  }
  if (const Namespace* space = value.space()) {
    for (const auto& [key, item] : space->items) {
      if (key == name) return item;
    }
  }
  return Value();
}

Value get_item(const Value& value, const Value& key, Budget& budget) {
  if (value.is_undefined()) throw Failure{"an undefined value has no items"};
  if (key.text()) {
    if (!value.dict()) return get_attribute(value, key.text()->bytes);
    const Value* found = value.dict()->find(key.text()->bytes);
    return found ? *found : Value();
  }
  int64_t index = 0;
  if (!key.as_integer(index)) return Value();
  if (value.list()) {
    const auto size = static_cast<int64_t>(value.list()->items.size());
    if (index < 0) index += size;
    return index >= 0 && index < size ? value.list()->items[static_cast<size_t>(index)] : Value();
  }
  if (value.text() && index != INT64_MAX) {
    const Value one = slice(value, Value(index), index == -1 ? Value() : Value(index + 1), Value(), budget);
    return one.text()->bytes.empty() ? Value() : one;
  }
  return Value();
}

std::vector<Value> iterate(const Value& value, Budget& budget) {
  if (value.is_undefined()) return {};
  if (const List* list = value.list()) {
    budget.items(list->items.size());
    return list->items;
  }
  std::vector<Value> out;
  if (const Dict* dict = value.dict()) {
    budget.items(dict->items.size());
    for (const auto& [key, item] : dict->items) {
      budget.text(key.bytes.size());
      out.emplace_back(key);
    }
    return out;
  }
  if (!value.text()) throw Failure{fmt::format("{} cannot be looped over", value.type_name())};
  for (Text& c : characters(*value.text(), budget)) out.emplace_back(std::move(c));
  return out;
}

bool compare_equal(const Value& a, const Value& b, Budget& budget) {
  budget.step(1 + std::min(a.weight(), b.weight()) / 16);
  return equal(a, b);
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_undefined()) return false;
  if (const Text* text = container.text()) {
    if (!item.text()) throw Failure{fmt::format("{} cannot be searched for in a string", item.type_name())};
    budget.step(1 + text->bytes.size() / 256);
    return find(text->bytes, item.text()->bytes) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) {
    budget.step(1 + dict->items.size() / 16);
    return item.text() && dict->find(item.text()->bytes);
  }
  if (!container.list()) throw Failure{fmt::format("\"in\" does not work on {}", container.type_name())};
  return std::any_of(container.list()->items.begin(), container.list()->items.end(),
                     [&](const Value& v) { return compare_equal(v, item, budget); });
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  const auto part = [&](const Value& v, int64_t fallback) {
    int64_t i = fallback;
    if (!v.is_undefined() && !v.is_none() && !v.as_integer(i)) throw Failure{"the parts of a slice must be integers"};
    return i;
  };
  if (!value.list() && !value.text()) throw Failure{fmt::format("{} cannot be sliced", value.type_name())};
  std::vector<size_t> starts;  // of the characters of a text, and its end
  if (const Text* text = value.text()) {
    budget.text(text->bytes.size());
    for (size_t i = 0; i <= text->bytes.size(); ++i) {
      if (i == text->bytes.size() || (static_cast<unsigned char>(text->bytes[i]) & 0xC0) != 0x80) starts.push_back(i);
    }
  }
  const auto size = static_cast<int64_t>(value.list() ? value.list()->items.size() : starts.size() - 1);
  const int64_t by = part(step, 1);
  if (by == 0 || by == INT64_MIN) throw Failure{"the step of a slice is zero"};
  // Python's rule: negative positions count from the end, then clip to what a walk in this direction can visit.
  const auto clip = [&](int64_t i) {
    if (i < 0) i = i < -size ? -1 : i + size;
    return by > 0 ? std::clamp<int64_t>(i, 0, size) : std::clamp<int64_t>(i, -1, size - 1);
  };
  const bool has_end = !end.is_undefined() && !end.is_none();
  const int64_t from = clip(part(begin, by > 0 ? 0 : std::max<int64_t>(size - 1, 0)));
  const int64_t to = has_end ? clip(part(end, 0)) : by > 0 ? size : -1;
  std::vector<Value> items;
  Text text;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    const auto at = static_cast<size_t>(i);
    if (value.list()) {
      items.push_back(value.list()->items[at]);
    } else {
      text.append(*value.text(), starts[at], starts[at + 1] - starts[at]);
    }
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  budget.items(items.size());
  return value.list() ? Value::list(std::move(items), value.list()->is_tuple) : Value(std::move(text));
}

}  // namespace carpool::jinja
