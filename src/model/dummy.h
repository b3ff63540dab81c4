// Models that exist only as a shape: random weights of published sizes, for benches.
//
// Owns the list of shapes (shapes.def) and the spelling "dummy:SHAPE[,layers=8][,format=q4_0][,head=q6_k][,seed=1]".
// Such a model has no quality and no tokenizer; what it has is the memory traffic and the arithmetic of the real one.
// Does not make weights: Model::load does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "routing/scoring.h"
#include "tensor/format.h"

namespace carpool {

// One row of shapes.def: the MoE layers of a model and, with heads > 0, its attention and vocabulary.
struct ModelShape {
  std::string_view name;
  int width = 0;         // D
  int expert_width = 0;  // F
  int n_experts = 0;     // E
  int top_k = 0;         // K
  int moe_layers = 0;    // layers with routed experts

  Scoring::Kind kind = Scoring::Kind::kSoftmax;
  bool renormalize = true;
  bool selection_bias = false;
  int n_group = 1, topk_group = 1;
  float routed_scaling_factor = 1.0f;

  int heads = 0, kv_heads = 0, head_dim = 0;  // grouped-query attention with q/k norm; 0 = another kind
  int vocab = 0;
  int context = 0;
  double rope_theta = 0;
  float norm_eps = 0;
};

// All shapes, in the order of shapes.def.
const std::vector<ModelShape>& model_shapes();

// Error{kConfig} listing the shapes when `name` is none of them.
const ModelShape& find_shape(std::string_view name);

// The rule of the shape's MoE layers; the selection bias, where it has one, is drawn from `seed`: near 7 and as narrow
// as those of published checkpoints.
Scoring shape_scoring(const ModelShape& shape, uint64_t seed);

// Error{kConfig} naming the numbers when rows of `cols` columns cannot be stored in `format`.
void check_columns(Format format, int64_t cols, std::string_view what);

struct DummySpec {
  std::string shape;
  int layers = 0;  // default: all MoE layers of the shape
  Format format = Format::kQ4_0;
  Format head_format = Format::kQ6_K;  // of the output matrix; default: q6_k beside a 4-bit format, else `format`
  uint64_t seed = 1;
};

// True for what parse_dummy should be asked about: text that begins with "dummy:".
bool is_dummy(std::string_view model);

// Error{kConfig}: no such shape, a shape that has no whole model, an unknown or repeated key, a value out of range
// (layers 1..1024), a format whose blocks do not fit the shape's widths. Lists what there is to choose from.
DummySpec parse_dummy(std::string_view model);

// The features and sizes of the model that `spec` describes. No eos ids: random logits mean no end.
ModelConfig dummy_config(const DummySpec& spec);

}  // namespace carpool
