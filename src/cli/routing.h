// carpool routing: the routing core alone, for inspection and for checking other implementations against it.
//
// Owns the verbs `routing list` (every policy with its arguments and promises) and `routing score` (logits in, chosen
// experts and weights out, both JSON), and the two functions behind them. No model is loaded.
// Read next: routing/policy.h, routing/scoring.h; python/reference/routing.py answers the same JSON.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/json.h"

namespace carpool {

// Adds the subcommand `routing`. Answers go to standard output (or the --json file); bad input throws Error.
void add_routing(CLI::App& app);

// {"policies": [{"name", "summary", "properties": {..}, "arguments": [{"name", "meaning", "default"}]}]}
json::value list_policies();

// The answer to one scoring request, an object with
//   logits [T][E]; bias [E]; scoring "softmax" | "softmax_topk" | "sigmoid"; top_k (required); renormalize; n_group;
//   topk_group; group_score "max" | "top2"; routed_scaling_factor; policy (default "topk");
//   rows [T] of {phase "decode" | "prefill" | "pad", isolated, group} (default: all decode, group 0); layer (default
//   0); tables {similarity [E][E], fold_scale [E][E], fold_loss [E][E], norm [E], contribution [E], resident [E] of 0
//   and 1, rank_range, k0}, those that the policy needs, in place of the file it names (default: that file's of the
//   layer)
// which is {experts [T][], weights [T][], active [], active_plain [], plain_reason [T]}: experts best first, weights
// exact float32, active sorted ids over all rows that are not padding, plain_reason null where the policy decided.
// Numbers that are not finite are the strings "nan", "inf" and "-inf" in both directions.
// Throws Error{kMalformed} naming `where` and the key, Error{kConfig} for a policy that does not exist or fit.
json::value score_request(const std::string& text, const std::string& where);

}  // namespace carpool
