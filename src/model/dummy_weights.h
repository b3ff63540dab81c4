// The random weights of a dummy model; see dummy.h.
#pragma once

#include "model/dummy.h"
#include "model/panel_plan.h"
#include "model/weights.h"

namespace carpool {

// Plans every matrix of the model and fills `weights` with views of them. Norm weights are +1 or -1 at random: without
// the signs a small mean in the weights would pull all hidden states, and so the routing, in one direction.
void plan_dummy_weights(const DummySpec& spec, const ModelConfig& config, PanelPlan& plan, Weights& weights);

// The embedding, one byte per value; values of magnitude 1 to 2 with random signs.
void make_dummy_embedding(const DummySpec& spec, const ModelConfig& config, Weights& weights);

}  // namespace carpool
