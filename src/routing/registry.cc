// From a spec's text to a policy. See registry.h and policy.h; the list of policies is policies.def.
#include "routing/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "routing/bands.h"

namespace carpool {

#define CARPOOL_POLICY(name, ...) PolicyDescription describe_##name();
#include "routing/policies.def"
#undef CARPOOL_POLICY

namespace {

constexpr size_t kMaxFileName = 4096;

struct Entry {
  std::string name;
  PolicyProperties properties;
  PolicyDescription description;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> list = {
#define CARPOOL_POLICY(name, ...) {#name, PolicyProperties{__VA_ARGS__}, describe_##name()},
#include "routing/policies.def"
#undef CARPOOL_POLICY
  };
  return list;
}

const Entry& find_policy(std::string_view name) {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  throw Error(ErrorKind::kConfig,
              fmt::format("unknown policy \"{}\"; known policies: {}", escape(name), fmt::join(names, ", ")));
}

}  // namespace

Arguments::Arguments(std::string policy, const std::vector<ArgumentInfo>& known, std::string_view text)
    : policy_(std::move(policy)), spec_(policy_) {
  for (const ArgumentInfo& info : known) known_.push_back(info.name);
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    if (comma == text.size() - 1) fail("the arguments end with a comma");
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) fail(fmt::format("argument \"{}\" is not key=value", escape(item)));
    const std::string key(item.substr(0, equals));
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      fail(fmt::format("unknown argument \"{}\"", escape(key)));
    }
    if (std::any_of(items_.begin(), items_.end(), [&](const Item& i) { return i.key == key; })) {
      fail(fmt::format("argument \"{}\" is given twice", key));
    }
    items_.push_back({key, std::string(item.substr(equals + 1))});
  }
}

void Arguments::fail(const std::string& what) const {
  const std::string names =
      known_.empty() ? "it has no arguments" : fmt::format("its arguments are {}", fmt::join(known_, ", "));
  throw Error(ErrorKind::kConfig, fmt::format("policy {}: {}; {}", policy_, what, names));
}

const std::string* Arguments::take(std::string_view key) {
  for (Item& item : items_) {
    if (item.key != key) continue;
    item.read = true;
    return &item.value;
  }
  return nullptr;
}

void Arguments::note(std::string_view key, const std::string& value) {
  spec_ += fmt::format("{}{}={}", spec_ == policy_ ? ':' : ',', key, value);
}

int Arguments::parse_integer(std::string_view key, const std::string& value, int low, int high) const {
  int i = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, i);
  if (error == std::errc::result_out_of_range || (error == std::errc() && stop == end && (i < low || i > high))) {
    fail(fmt::format("argument \"{}\" must be {} to {}, got {}", key, low, high, escape(value)));
  }
  if (error != std::errc() || stop != end) {
    fail(fmt::format("argument \"{}\" must be an integer, got \"{}\"", key, escape(value)));
  }
  return i;
}

int Arguments::required_integer(std::string_view key, int low, int high) {
  const std::optional<int> i = optional_integer(key, low, high);
  if (!i) fail(fmt::format("argument \"{}\" is required", key));
  return *i;
}

std::optional<int> Arguments::required_integer_or(std::string_view key, const std::vector<std::string>& words, int low,
                                                  int high, std::string* word) {
  const std::string& value = required(key);
  if (std::find(words.begin(), words.end(), value) != words.end()) {
    note(key, value);
    *word = value;
    return std::nullopt;
  }
  const size_t sign = value.starts_with('-') ? 1 : 0;
  if (value.size() == sign || value.find_first_not_of("0123456789", sign) != std::string::npos) {
    fail(fmt::format("argument \"{}\" must be an integer or {}, got \"{}\"", key, fmt::join(words, " or "),
                     escape(value)));
  }
  return required_integer(key, low, high);
}

std::vector<int> Arguments::layer_list(std::string_view key, int low, int high) {
  std::vector<int> list;
  const std::string& value = required(key);
  if (value.find('/') == std::string::npos) return list;
  for (size_t at = 0; at <= value.size();) {
    const size_t slash = std::min(value.find('/', at), value.size());
    if (std::ssize(list) == RoutingTables::kMaxLayers)
      fail(fmt::format("argument \"{}\" has more than {} numbers", key, RoutingTables::kMaxLayers));
    list.push_back(parse_integer(key, value.substr(at, slash - at), low, high));
    at = slash + 1;
  }
  note(key, fmt::format("{}", fmt::join(list, "/")));
  return list;
}

std::string Arguments::file(std::string_view key) {
  const std::string* value = take(key);
  if (!value) return "";
  const auto odd = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '"' || c == '\\'; };
  if (value->empty() || value->size() > kMaxFileName || std::any_of(value->begin(), value->end(), odd)) {
    fail(
        fmt::format("argument \"{}\" must be the name of a file, 1 to {} bytes without quotes, backslashes or control "
                    "characters, got \"{}\"",
                    key, kMaxFileName, escape(*value)));
  }
  note(key, *value);
  return *value;
}

std::string Arguments::required_file(std::string_view key) {
  required(key);
  return file(key);
}

int Arguments::integer(std::string_view key, int fallback, int low, int high) {
  const std::string* value = take(key);
  const int i = value ? parse_integer(key, *value, low, high) : fallback;
  if (i != fallback) note(key, fmt::format("{}", i));
  return i;
}

std::optional<int> Arguments::optional_integer(std::string_view key, int low, int high) {
  const std::string* value = take(key);
  if (!value) return std::nullopt;
  const int i = parse_integer(key, *value, low, high);
  note(key, fmt::format("{}", i));
  return i;
}

double Arguments::parse_number(std::string_view key, const std::string& value) const {
  double d = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, d);
  if (error != std::errc() || stop != end || !std::isfinite(d)) {
    fail(fmt::format("argument \"{}\" must be a finite number, got \"{}\"", key, escape(value)));
  }
  return d;
}

double Arguments::number_above(std::string_view key, double fallback, double low) {
  const std::string* value = take(key);
  if (!value) return fallback;
  const double d = parse_number(key, *value);
  if (!(d > low)) fail(fmt::format("argument \"{}\" must be above {}, got {}", key, low, d));
  if (d != fallback) note(key, fmt::format("{}", d));
  return d;
}

const std::string& Arguments::required(std::string_view key) {
  const std::string* value = take(key);
  if (!value) fail(fmt::format("argument \"{}\" is required", key));
  return *value;
}

double Arguments::required_number_above(std::string_view key, double low) {
  const double d = parse_number(key, required(key));
  if (!(d > low)) fail(fmt::format("argument \"{}\" must be above {}, got {}", key, low, d));
  note(key, fmt::format("{}", d));
  return d;
}

double Arguments::required_number(std::string_view key, double low, double high) {
  const double d = parse_number(key, required(key));
  if (!(d >= low && d <= high)) fail(fmt::format("argument \"{}\" must be {} to {}, got {}", key, low, high, d));
  note(key, fmt::format("{}", d));
  return d;
}

double Arguments::number(std::string_view key, double fallback, double low, double high) {
  const std::string* value = take(key);
  if (!value) return fallback;
  const double d = parse_number(key, *value);
  if (!(d >= low && d <= high)) fail(fmt::format("argument \"{}\" must be {} to {}, got {}", key, low, high, d));
  if (d != fallback) note(key, fmt::format("{}", d));
  return d;
}

std::optional<Budget> Arguments::optional_budget(std::string_view key) {
  if (!take(key)) return std::nullopt;
  return budget(key);
}

Budget Arguments::budget(std::string_view key) {
  const std::string& value = required(key);
  Budget b;
  if (value.ends_with('%')) {
    const double percent = parse_number(key, value.substr(0, value.size() - 1));
    if (!(percent > 0 && percent <= 100)) {
      fail(fmt::format("argument \"{}\" must be above 0% and at most 100%, got {}", key, escape(value)));
    }
    b.share = percent / 100;
    note(key, fmt::format("{}%", percent));
  } else {
    b.experts = parse_integer(key, value, 1, kMaxArgument);
    note(key, fmt::format("{}", b.experts));
  }
  return b;
}

Divisor Arguments::divisor(std::string_view key) {
  using Kind = Divisor::Kind;
  const std::string* value = take(key);
  if (!value || *value == "model") return {};
  note(key, *value);
  if (*value == "final") return {Kind::kFinal, 0};
  if (*value == "topk") return {Kind::kTopK, 0};
  if (*value == "none") return {Kind::kNone, 0};
  if (value->empty() || !std::all_of(value->begin(), value->end(), [](char c) { return c >= '0' && c <= '9'; })) {
    fail(fmt::format("argument \"{}\" must be model, final, topk, none or a number, got \"{}\"", key, escape(*value)));
  }
  return {Kind::kBest, parse_integer(key, *value, 1, kMaxArgument)};
}

KeptExperts Arguments::kept_experts(std::string_view key) {
  KeptExperts kept;
  const std::string* value = take(key);
  if (!value || *value == "none") return kept;
  note(key, *value);
  for (size_t at = 0; at <= value->size();) {
    const size_t plus = std::min(value->find('+', at), value->size());
    const std::string item = value->substr(at, plus - at);
    const size_t dot = item.find('.');
    KeptExperts::One one;
    if (dot != std::string::npos) one.layer = parse_integer(key, item.substr(0, dot), 0, kMaxArgument);
    one.expert = parse_integer(key, dot == std::string::npos ? item : item.substr(dot + 1), 0, kMaxArgument);
    kept.list.push_back(one);
    at = plus + 1;
  }
  return kept;
}

int Arguments::choice(std::string_view key, const std::vector<std::string>& choices) {
  const std::string* value = take(key);
  if (!value) return 0;
  const auto found = std::find(choices.begin(), choices.end(), *value);
  if (found == choices.end()) {
    fail(fmt::format("argument \"{}\" must be {}, got \"{}\"", key, fmt::join(choices, " or "), escape(*value)));
  }
  if (found != choices.begin()) note(key, *value);
  return static_cast<int>(found - choices.begin());
}

void Arguments::check_all_read() const {
  for (const Item& item : items_) {
    if (!item.read) fail(fmt::format("nobody read argument \"{}\"", item.key));
  }
}

void PolicyBase::check_tables(int n_experts) const {
  if (table_.empty()) return;
  if (!tables_) {
    refuse(*this, "its tables have not been read: commands that load a model read them, when they begin");
  }
  if (tables_->n_experts != n_experts) {
    refuse(*this, fmt::format("its tables are of layers of {} experts, not of {}", tables_->n_experts, n_experts));
  }
  if (!tables_->has(need_)) {
    refuse(*this, fmt::format("{} has no table \"{}\"", escape(table_, 400), table_name(need_)));
  }
}

void refuse(const Policy& policy, const std::string& what) {
  throw Error(ErrorKind::kConfig, fmt::format("policy {}: {}", policy.spec(), what));
}

void check_layers(const Policy& policy, int layers) {
  if (policy.layers() == 0 || policy.layers() == layers) return;
  refuse(policy, fmt::format("it has values for {} layers, the model has {}, those without experts among them",
                             policy.layers(), layers));
}

const std::vector<PolicyInfo>& policy_list() {
  static const std::vector<PolicyInfo> list = [] {
    std::vector<PolicyInfo> infos;
    for (const Entry& e : entries()) {
      infos.push_back({e.name, e.description.summary, e.properties, e.description.arguments, e.description.examples});
    }
    return infos;
  }();
  return list;
}

std::unique_ptr<Policy> make_policy(std::string_view spec) {
  if (spec.starts_with(kBandsPrefix)) return make_bands(spec.substr(kBandsPrefix.size()));
  const size_t colon = spec.find(':');
  const Entry& entry = find_policy(spec.substr(0, colon));
  const bool has_arguments = colon != std::string_view::npos;
  Arguments arguments(entry.name, entry.description.arguments,
                      has_arguments ? spec.substr(colon + 1) : std::string_view());
  std::unique_ptr<Policy> policy = entry.description.make(arguments, entry.properties);
  arguments.check_all_read();
  return policy;
}

}  // namespace carpool
