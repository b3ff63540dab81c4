// The A/B: the same requests at the same concurrency under several policies, in alternating order, and what each
// costs in quality.
//
// Owns the timing loop and the arithmetic of the memory floor. A repeat runs every policy once, A B A B; a policy's
// step time in a repeat is the median over its decode-only steps at full batch; what is reported is the median
// over repeats. The read bandwidth is probed before every repeat. Read next: quality.h, result.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "measure/quality.h"
#include "measure/result.h"
#include "model/model.h"

namespace carpool {

struct AbOptions {
  std::vector<std::string> policies;  // specs; the first is A, the one speedups refer to
  std::vector<int> concurrency = {16};
  int new_tokens = 64;  // per request
  int repeats = 5;
  int chunk = 256;
  TextOptions text;  // for the quality pass
  std::function<void(const std::string& stage, double share)> progress;
};

// A prompt and where it comes from, for messages: "prompts.txt line 3".
struct AbPrompt {
  std::vector<int> tokens;
  std::string origin;
};

// Drops prompts whose tokens came before, then appends starts of documents that are not there yet until there are
// `needed`, or no more.
std::vector<AbPrompt> distinct_prompts(std::vector<AbPrompt> prompts, const Documents& starts, int needed);

// What can be refused before a model is loaded. Error{kUsage} for options out of range, documents that do not fit the
// context or do not fill the batches; kConfig for a model without routed experts and for policies that do not fit it.
void check_ab(const ModelConfig& config, const AbOptions& options);

// Request i of a concurrency gets prompt i. check_ab, and Error{kUsage} for prompts that are too few, alike, or too
// long for the context, before anything is timed; kMalformed when the model's logits are not finite.
std::vector<ResultRow> run_ab(Model& model, const std::vector<AbPrompt>& prompts, const Documents& documents,
                              const AbOptions& options);

// Bytes of the last-level cache; 64 MiB where the processor does not say.
size_t last_level_cache();

// Every batch size must score the same documents, so all of them must be divisors: Error{kUsage} with the next number
// that would do.
void check_document_count(int64_t documents, const std::vector<int>& batches);

// The fewest documents, at least 64, that fill the batches of every concurrency.
int default_documents(const std::vector<int>& concurrency);

// Copies of the expert weights that together make four times the last-level cache; 0 for models at least as large, and
// for models without routed experts.
int default_cold_copies(const Model& model);

// Read bandwidth of this machine, measured now: the best of three passes over a buffer of at least four times the
// last-level cache. GB = 10^9 bytes.
class ReadProbe {
 public:
  explicit ReadProbe(Ops& ops);
  double gbps();

 private:
  Ops& ops_;
  std::vector<std::byte> buffer_;
};

}  // namespace carpool
