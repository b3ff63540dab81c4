// What a policy costs in quality: teacher-forced on fixed text, batched as decode.
//
// Owns the document set and the lockstep run. The t-th tokens of B documents form the batch of step t, all rows in
// decode phase from the first token on, no prefill, as in OEA's paper (arXiv 2511.02237); plain routing runs beside
// every policy on the same tokens. Never uses generated text.
#pragma once

#include <functional>
#include <string>
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

// Cuts documents from text files. A file with lines of "---" alone is a list of documents; any other is cut into
// stretches. Documents shorter than `tokens` are left out. Error{kUsage} naming both numbers when too few remain.
Documents read_documents(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const TextOptions& options);

struct QualityRun {
  std::vector<Quality> quality;          // per policy
  std::vector<RoutingCounters> routing;  // per policy, all steps
};

// Documents are taken in order, `batch` at a time; a last group that is not full is left out (Error{kUsage} when
// there is none). `progress` gets the share done.
QualityRun teacher_forced(Model& model, const std::vector<const Policy*>& policies, const Documents& documents,
                          int batch, const std::function<void(double)>& progress = {});

}  // namespace carpool
