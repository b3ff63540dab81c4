// A routing policy: given the scores of all rows of a step, which experts does each row use?
//
// Owns the Policy interface, its declared properties, and the text form of policies ("oea:k0=5,min_batch=2").
// Policies choose sets; weights are finished afterwards by the model's Scoring (scoring.h). To add one: a file
// <name>.cc with its test, one line in policies.def, a reference function in python/reference/routing.py.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "routing/tables.h"
#include "routing/types.h"

namespace carpool {

// What a policy promises; policies.def declares them and contract_test.cc checks what follows from each. By convention
// an argument named k0 is the number of best experts an applied row is sure of, p the mass that may end them sooner,
// k_max the most experts of an applied row (default K) and max_p the last rank it may take (default E).
struct PolicyProperties {
  bool union_exact = false;    // the experts used by applied rows are exactly the union of their base sets, per group
  bool keeps_top_k0 = false;   // every applied row keeps its base set: its own best k0 experts (fewer where p says so)
  bool fills_union = false;    // an applied row is its k_max best of all experts that applied rows of its group use
  bool batch_free = false;     // a row's choice depends on that row alone
  bool may_repeat = false;     // an expert may occur twice in a row
  bool ids_decide = false;     // experts of equal standing in the group, not only in a row, are told apart by their ids
  bool by_rank = false;        // choices depend on the order of a row's scores alone, not on weights
  bool at_most_plain = false;  // never more distinct experts than plain routing of the same rows
  bool uses_tables = false;  // choices depend on tables of the model's layers (tables.h): which expert is which counts
  bool reweighs = false;     // a slot may stand for other experts and weigh what they would (Selection::push)
};

class Policy {
 public:
  virtual ~Policy() = default;

  // Chooses experts for every row of `in` into `out`.
  // Post: a non-pad row with a finite score has 1..k_max distinct experts, best first; pads have none. Rank order is
  // score descending, then expert id ascending; NaN last (as -inf), and experts scored -inf or NaN are never chosen.
  // Deterministic; no allocation after warm-up; thread-compatible (const, all state in scratch).
  virtual void select(const RouterInput& in, Scratch& scratch, Selection& out) const = 0;

  virtual const PolicyProperties& properties() const = 0;
  // The canonical spec: name and every argument that differs from its default, "oea:k0=5".
  virtual std::string spec() const = 0;
  // True when select() is plain top-k for every input of a model with `top_k` experts per token.
  virtual bool is_plain(int top_k) const = 0;
  // Throws Error{kConfig} when an argument does not fit a layer of E experts, K per token (k0 > K, k_max > E ...), or
  // when the policy needs tables and has none, or none of such a layer.
  virtual void check(int n_experts, int top_k) const = 0;

  // The file that the spec names for tables; "" for a policy that needs none. Nothing here reads it: whoever has the
  // model does (model/routing_tables.h) and hands over what is in it. In layers without tables the policy is plain.
  virtual std::string tables_file() const { return ""; }
  virtual void use_tables(std::shared_ptr<const RoutingTables>) {}

  // The layers of the model that the spec gives a value each, by the model's numbers; 0 when it fits any number of
  // them.
  virtual int layers() const { return 0; }
};

// Error{kConfig} when the spec gives values to another number of layers than the model's.
void check_layers(const Policy& policy, int layers);

// What `carpool routing list` shows.
struct ArgumentInfo {
  std::string name;      // "k0"
  std::string meaning;   // one line
  std::string fallback;  // "required" or the default as text, e.g. "K"
};
struct PolicyInfo {
  std::string name;
  std::string summary;
  PolicyProperties properties;
  std::vector<ArgumentInfo> arguments;
  std::vector<std::string> examples;  // specs that together use every argument; the contract test runs them
};
const std::vector<PolicyInfo>& policy_list();

// Makes the policy that `spec` describes: NAME or NAME:key=value,key=value, or bands (bands.h). Error{kConfig} when the
// name is unknown (lists the known ones), an argument is unknown, repeated, not a number, or out of range by itself.
std::unique_ptr<Policy> make_policy(std::string_view spec);

// Plain routing of every non-pad row: its K best experts. The same code path that `topk` is.
void select_plain(const RouterInput& in, Scratch& scratch, Selection& out);

}  // namespace carpool
