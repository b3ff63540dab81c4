// Where the routing of layer benches comes from: drawn logits, or experts and rows set by hand.
//
// Owns RoutingSource (the text after --routing), LogitSource and forced selections. Every step gets fresh routing;
// equal seeds give equal steps, so that policies are compared on the same tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "routing/types.h"

namespace carpool {

// U distinct experts, each with R rows.
struct ForcedRouting {
  int experts = 0, rows = 0;
};

struct RoutingSource {
  double skew = 0;                    // Zipf exponent of the experts' popularity; 0 = uniform
  std::vector<ForcedRouting> forced;  // not empty: no router, no policy
};

// "uniform", "skewed" (exponent 1), "skewed:S" (0 < S <= 10), "forced:UxR,UxR,..." Error{kConfig} saying what there is.
RoutingSource parse_routing(std::string_view text);

// Draws router logits whose K best experts are K drawn without replacement by popularity: log(popularity) plus Gumbel
// noise. Expert e's popularity is rank^-skew, the ranks a permutation drawn from `seed`.
class LogitSource {
 public:
  LogitSource(int n_experts, double skew, uint64_t seed);
  // Fills logits [T, E] from `step_seed`.
  void draw(uint64_t step_seed, std::span<float> logits) const;

 private:
  std::vector<float> log_popularity_;
};

// Tokens that forced routing is spread over: the fewest so that no token has more than K experts or one twice.
int forced_tokens(const ForcedRouting& forced, int top_k);

// U experts drawn from `seed` among E, each with R of the tokens in turn. Pre: U <= E.
void force_selection(const ForcedRouting& forced, int n_experts, int top_k, uint64_t seed, Selection& out);

}  // namespace carpool
