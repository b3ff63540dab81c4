// Tables that a policy may need beside the scores of a step: what calibration found out about each layer's experts.
//
// Owns RoutingTables, plain data by layer, and the checks that make it safe to route by. Files of them are
// model/routing_tables.h, the values measure/calibrate.h. Symbols: E experts of a layer, L layers of the model.
// Read next: sere.cc, exfold.cc, cache_prior.cc, which use them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace carpool {

enum class TableKind : uint8_t {
  kNone,
  kSimilarity,  // sere
  kFold,        // exfold: fold_scale, fold_loss, norm and contribution
  kResident,    // cache_prior: resident and rank_range
  kK0,          // oea with k0=table
};
// "similarity", "fold", "resident", "k0"; "" of kNone.
std::string_view table_name(TableKind kind);

// What is known of one MoE layer. A table that is not there is empty (k0: 0).
struct LayerTables {
  std::vector<float> similarity;    // [E, E] of outputs, -1 to 1
  std::vector<float> fold_scale;    // [E, E] (s, t): expert s is about this times expert t; at least 0
  std::vector<float> fold_loss;     // [E, E] (s, t): the share of expert s that is lost by that; at least 0
  std::vector<float> norm;          // [E] mean norm of an expert's output, at least 0
  std::vector<float> contribution;  // [E] mean over tokens of weight times norm, at least 0
  std::vector<uint8_t> resident;    // [E] 1 where the expert lies in fast memory, else 0
  float rank_range = 0;             // mean over tokens of the largest less the smallest rank score, at least 0
  int k0 = 0;                       // experts that each row keeps, 1 to K

  bool empty() const;
  bool has(TableKind kind) const;
};

struct RoutingTables {
  static constexpr int kMaxExperts = 4096, kMaxLayers = 1024;

  int n_experts = 0;                // E
  int top_k = 0;                    // K
  std::vector<LayerTables> layers;  // by the model's numbers of layers; empty ones have no experts

  // Null where the layer has no tables.
  const LayerTables* layer(int l) const;
  // Whether every layer with tables has this one, and there is such a layer.
  bool has(TableKind kind) const;
  // Error{kMalformed} naming `where`, layer, table and entry: limits exceeded, a table of the wrong size, an entry that
  // is not finite or out of its range, or a table that some layers have and others lack.
  void check(const std::string& where) const;
};

}  // namespace carpool
