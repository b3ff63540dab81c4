// Files of routing tables, and policies with what is in them.
//
// A file is safetensors, so that numpy and torch read it as well. Tensor "carpool_routing_tables" holds JSON: format,
// version, the model (router_hash), its layers, experts and experts per token, a checksum of all other tensors, and who
// made it. "layers" [M] int32 are the numbers of the M layers with tables; all others have these as rows: "similarity",
// "fold_scale", "fold_loss" [M, E, E], "norm", "contribution" [M, E], "rank_range" [M] float32, "resident" [M, E] uint8
// and "k0" [M] int32. A table may be absent, an unknown tensor is refused. Read next: routing/tables.h.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "model/model.h"
#include "routing/tables.h"

namespace carpool {

struct RoutingTablesFile {
  std::string model;    // router_hash of the model that the tables are of
  std::string made_by;  // for people
  RoutingTables tables;
};

// 16 hexadecimal digits that name a model by its routers: their weights and biases as float32, and where they are. A
// copy of the model in another number format that leaves routers alone has the same name. "" without routed experts.
std::string router_hash(const Model& model);

// Error{kMissing} when the file is absent, kMalformed naming what is wrong when it is no such file, of a later version,
// damaged, or holds what RoutingTables::check refuses.
RoutingTablesFile read_routing_tables(const std::string& path);

// Writes the file whole or not at all. An existing file is replaced if it is one of routing tables;
// Error{kCannotCreate} for any other, kIo. `file.tables` must pass its check.
void write_routing_tables(const std::string& path, const RoutingTablesFile& file);
// Throws as write_routing_tables would for what is at `path` now.
void check_routing_tables_output(const std::string& path);

// Gives a policy the tables that its spec names, if it names any, which must be of the model with these routers
// (router_hash), and of all of `moe_layers`: Error{kConfig} otherwise, as in read_routing_tables.
void give_tables(Policy& policy, const std::string& routers, std::span<const int> moe_layers);

// make_policy (routing/policy.h) with the tables that the spec names, which must be of this model and its MoE layers,
// as must a list of values by layer: Error{kConfig} otherwise. Does not check the other arguments against the model:
// Policy::check does.
std::unique_ptr<Policy> make_policy(std::string_view spec, const Model& model);

// Whether the spec fits a model with routed experts, as far as can be told before it is loaded: as Policy::check, but a
// policy that needs tables is only parsed.
void check_spec(std::string_view spec, const ModelConfig& config);

}  // namespace carpool
