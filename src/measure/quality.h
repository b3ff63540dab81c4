// What a policy costs in quality: teacher-forced on fixed text, batched as decode.
//
// Owns the document set and the lockstep run. The t-th tokens of B documents form the batch of step t, all rows in
// decode phase from the first token on, no prefill, as in OEA's paper (arXiv 2511.02237); plain routing runs beside
// every policy on the same tokens. Never uses generated text.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "measure/result.h"
#include "model/model.h"
#include "routing/policy.h"
#include "text/tokenizer.h"

namespace carpool {

// Token ids of independent documents, all of the same length.
using Documents = std::vector<std::vector<int>>;

struct TextOptions {
  int documents = 64;
  int tokens = 256;  // per document
};

// A text in its documents. Lines of "---" alone (LF or CRLF) separate them, wherever they stand; the line end before a
// separator belongs to it, and empty documents are left out.
struct SplitText {
  bool list = false;  // there was a separator
  std::vector<std::string_view> documents;
};
SplitText split_documents(std::string_view text);

// Cuts documents from text files: of a list (SplitText) each document's beginning, any other text into stretches.
// Documents shorter than `tokens` are left out. Error{kUsage} naming both numbers when too few remain.
Documents read_documents(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const TextOptions& options);

// The first `tokens` tokens of up to `count` documents, `stretch` tokens apart in a text that is no list.
Documents read_starts(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const TextOptions& options,
                      int stretch);

// log of the softmax's denominator, in double.
double log_sum_exp(std::span<const float> logits);

// Error{kUsage} when documents of `tokens` tokens have more positions than the model.
void check_fits(int tokens, const ModelConfig& config);

struct QualityRun {
  std::vector<Quality> quality;          // per policy
  std::vector<RoutingCounters> routing;  // per policy, all steps
};

// Documents are taken in order, `batch` at a time. Error{kUsage} when they do not fill the last batch, so that all
// batch sizes score the same text, or do not fit the context; kMalformed when logits are not finite. `progress` gets
// the share done.
QualityRun teacher_forced(Model& model, const std::vector<const Policy*>& policies, const Documents& documents,
                          int batch, const std::function<void(double)>& progress = {});

}  // namespace carpool
