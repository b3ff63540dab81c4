// What a policy file hands to the registry, and the parsed arguments that the registry hands to a policy.
//
// Owns PolicyDescription (summary, arguments, example specs, maker), Arguments (the text after the colon, read by
// name; an argument that nobody reads is an error) and PolicyBase. A policy file defines describe_<name>(), and
// policies.def lists it with its properties. Read next: prune.cc, a whole policy on one page.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "routing/budget.h"
#include "routing/policy.h"

namespace carpool {

inline constexpr int kMaxArgument = 1 << 20;  // no layer has as many experts, no step as many rows

// The arguments of one spec. Readers check syntax and range, and collect the canonical spec as they go: arguments that
// differ from their default, in the order in which the policy reads them. All throw Error{kConfig}.
class Arguments {
 public:
  // Splits "key=value,key=value" (empty: no arguments); refuses unknown and repeated keys and items without "=".
  Arguments(std::string policy, const std::vector<ArgumentInfo>& known, std::string_view text);

  int required_integer(std::string_view key, int low, int high);
  // An integer, or nullopt for one of `words`, which `*word` then is.
  std::optional<int> required_integer_or(std::string_view key, const std::vector<std::string>& words, int low, int high,
                                         std::string* word);
  // "5/3/0": a number for each layer of the model; empty, and nothing noted, when the value has no slash.
  std::vector<int> layer_list(std::string_view key, int low, int high);
  int integer(std::string_view key, int fallback, int low, int high);
  // An integer whose default depends on the model (K, E): nullopt when not given.
  std::optional<int> optional_integer(std::string_view key, int low, int high);
  double number_above(std::string_view key, double fallback, double low);  // finite and > low
  double required_number_above(std::string_view key, double low);
  double required_number(std::string_view key, double low, double high);  // low to high
  double number(std::string_view key, double fallback, double low, double high);
  Budget budget(std::string_view key);  // required
  std::optional<Budget> optional_budget(std::string_view key);
  // A file's name: 1 to 4096 bytes, no quotes, backslashes or control characters, since specs go into headers and
  // reports. "" when not given.
  std::string file(std::string_view key);
  std::string required_file(std::string_view key);
  [[noreturn]] void fail(const std::string& what) const;  // "<policy>: <what>; its arguments are ..."
  Divisor divisor(std::string_view key);                  // model, final, topk, none or a number
  KeptExperts kept_experts(std::string_view key);         // none, or EXPERT and LAYER.EXPERT with "+"
  // Index of the value among `choices`; the first is the default.
  int choice(std::string_view key, const std::vector<std::string>& choices);

  void check_all_read() const;
  const std::string& spec() const { return spec_; }

 private:
  struct Item {
    std::string key;
    std::string value;
    bool read = false;
  };
  const std::string* take(std::string_view key);
  int parse_integer(std::string_view key, const std::string& value, int low, int high) const;
  double parse_number(std::string_view key, const std::string& value) const;  // finite
  const std::string& required(std::string_view key);
  void note(std::string_view key, const std::string& value);

  std::string policy_;
  std::vector<std::string> known_;
  std::vector<Item> items_;
  std::string spec_;
};

// The description of the argument that Arguments::divisor reads as "norm".
inline const ArgumentInfo kNormArgument = {
    "norm",
    "what a row's weights are divided by: model (its own rule), final (their sum), topk (that of the K best), none, or "
    "a number of best experts",
    "model"};

struct PolicyDescription {
  std::string summary;
  std::vector<ArgumentInfo> arguments;
  std::vector<std::string> examples;  // specs that together use every argument, for the contract test
  std::unique_ptr<Policy> (*make)(Arguments& arguments, const PolicyProperties& declared);
};

// The description of the argument that names a file of tables.
inline ArgumentInfo table_argument(const std::string& what, const std::string& fallback = "required") {
  return {"table", "file of `carpool calibrate` with " + what, fallback};
}

// Keeps what every policy carries: its canonical spec, its properties (the declared ones, less those that its arguments
// give up), and the tables of those that need them.
class PolicyBase : public Policy {
 public:
  // To be called after the arguments are read. `table`: what the spec said for it, `need` what must be in that file.
  PolicyBase(std::string spec, const PolicyProperties& properties, std::string table = "", TableKind need = {})
      : spec_(std::move(spec)), properties_(properties), table_(std::move(table)), need_(need) {}

  const PolicyProperties& properties() const final { return properties_; }
  std::string spec() const final { return spec_; }
  std::string tables_file() const final { return table_; }
  void use_tables(std::shared_ptr<const RoutingTables> tables) final { tables_ = std::move(tables); }

 protected:
  // The tables of a layer, or null where there are none.
  const LayerTables* tables_of(int layer) const { return tables_ ? tables_->layer(layer) : nullptr; }
  const RoutingTables* tables() const { return tables_.get(); }
  // Error{kConfig} when the policy needs tables and those it has are not of such layers. For check().
  void check_tables(int n_experts) const;

 private:
  std::string spec_;
  PolicyProperties properties_;
  std::string table_;
  TableKind need_;
  std::shared_ptr<const RoutingTables> tables_;
};

// Throws Error{kConfig} "<spec>: <what>".
[[noreturn]] void refuse(const Policy& policy, const std::string& what);

}  // namespace carpool
