// The part of `carpool run` that is worth a test of its own: how large a key-value pool its prompts need.
//
// The verb itself is add_run of commands.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace carpool {

// Positions of the smallest pool in which any `max_batch` of the prompts (lengths in tokens) can run at once with
// `max_tokens` new tokens each: the largest needs, each in whole blocks and at most the model's context. 0 when there
// is nothing to run.
int64_t needed_kv_tokens(std::span<const size_t> prompt_tokens, int max_tokens, int max_batch, int context);

}  // namespace carpool
