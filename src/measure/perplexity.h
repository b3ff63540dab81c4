// Perplexity of a text in windows, as llama.cpp's llama-perplexity defines it, so that the two can be compared.
//
// The tokens of the text are cut into windows of `context` tokens that do not overlap; what is left over at the end is
// not used. Where the tokenizer begins texts with a token, that token takes the place of each window's first one. Each
// window is a sequence of its own, and the tokens after its first half are scored, each from all tokens before it in
// the window. The perplexity is exp of the mean over all scored tokens. Read next: quality.h, for documents.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "measure/result.h"
#include "model/model.h"
#include "routing/policy.h"
#include "text/tokenizer.h"

namespace carpool {

struct PerplexityOptions {
  int context = 512;  // tokens of a window, at least 4
  int windows = 0;    // the first ones only; 0 = all
  int batch = 0;  // rows of a step that are routed together, of as many windows; 0 = plain routing, window by window
};

struct Perplexity {
  int64_t windows = 0, tokens = 0;  // tokens: scored
  Estimate cross_entropy;           // nats per token; interval by bootstrap over windows
  RoutingCounters routing;          // of the steps, `batch` > 0
  double value() const;             // exp(cross_entropy)
};

// The token that `tokenizer` begins texts with, if it has one.
std::optional<int> begin_token(const Tokenizer& tokenizer);

// The windows of a text. Error{kUsage} when it has not one, not as many as asked for, or with `batch` not whole batches
// of them.
std::vector<std::vector<int>> perplexity_windows(const Tokenizer& tokenizer, std::string_view text,
                                                 const PerplexityOptions& options);

// Without a batch the rows of a window are a prompt, which is always routed plainly, and `policy` must be plain. With a
// batch the t-th tokens of that many windows form step t, all in decode phase. Error{kUsage} for windows beyond the
// model's context, kMalformed when logits are not finite. `progress` gets the share done.
Perplexity measure_perplexity(Model& model, const Policy& policy, const std::vector<std::vector<int>>& windows,
                              int batch, const std::function<void(double)>& progress = {});

}  // namespace carpool
