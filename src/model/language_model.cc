// Rows of a step, and what every model does alike with the record of one. See language_model.h.
#include "model/language_model.h"

namespace carpool {

void Rows::clear() {
  tokens.clear();
  positions.clear();
  block_tables.clear();
  info.clear();
  logit_rows.clear();
}

void Rows::push(int token, int position, const int* block_table, TokenInfo row_info, bool wants_logits) {
  if (wants_logits) logit_rows.push_back(size());
  tokens.push_back(token);
  positions.push_back(position);
  block_tables.push_back(block_table);
  info.push_back(row_info);
}

void StepRecord::start(int n_rows, const ModelConfig& config) const {
  if (rows) rows->assign(static_cast<size_t>(n_rows), RowRouting{});
  const auto n_layers = static_cast<size_t>(config.moe_layers()), E = static_cast<size_t>(config.n_experts);
  if (layers) layers->assign(n_layers, LayerExperts{});
  if (!expert_counts) return;
  expert_counts->resize(n_layers);
  for (auto& layer : *expert_counts) layer.resize(E);
}

void StepRecord::add_layer(int m, const RouterInput& in, const Selection& chosen, Selection& plain,
                           Scratch& scratch) const {
  if (expert_counts) {
    std::vector<int64_t>& counts = (*expert_counts)[static_cast<size_t>(m)];
    for (const int expert : chosen.experts()) ++counts[static_cast<size_t>(expert)];
  }
  if (!routing && !rows && !layers) return;
  // What plain routing would have loaded: of rows that no policy decided, what they have (routing/scope.h, push_plain).
  bool applied = false;
  for (int t = 0; t < chosen.rows(); ++t) applied = applied || chosen.reason(t) == PlainReason::kApplied;
  if (applied) select_plain(in, scratch, plain);
  RoutingCounters layer;
  count(in, applied ? plain : chosen, chosen, scratch, layer, rows ? std::span(*rows) : std::span<RowRouting>());
  if (routing) routing->add(layer);
  if (layers) (*layers)[static_cast<size_t>(m)] = {layer.distinct_experts, layer.distinct_plain};
}

}  // namespace carpool
