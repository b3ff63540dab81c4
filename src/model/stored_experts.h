// One expert of tensors that hold all experts of a layer, as some checkpoints store them.
//
// Owns the conventions of names, by the name N that such checkpoints use, "...mlp.experts.gate_up_proj":
//   plain   N F32, BF16 or F16 [E, R, C]
//   FP8     N F8_E4M3 [E, R, C], N_scale_inv F32 [E, R/128, C/128] (rounded up)
//   MXFP4   N_blocks U8 [E, R, C/32, 16], N_scales U8 [E, R, C/32]                 (gpt-oss)
// What R and C stand for is the family's to know: gpt-oss stores its plain matrices transposed, its blocks not.
#pragma once

#include <string>

#include "model/stored_matrix.h"

namespace carpool {

struct StoredExperts {
  int64_t experts = 0, rows = 0, cols = 0;  // E, R, C
  bool blocks = false;                      // of MXFP4
  StoredMatrix matrix = {};                 // of the expert that was asked for: [R, C]
};

// True when `source` has experts of this name, in whatever form.
bool has_experts(const WeightSource& source, const std::string& name);

// Expert `e` of `name`, which must be there; of an `e` past the last the sizes alone. Throws Error{kMalformed} naming
// the tensor for what is not one of the forms above.
StoredExperts stored_expert(const WeightSource& source, const std::string& name, int64_t e);

}  // namespace carpool
