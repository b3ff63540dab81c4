// What is asked and what the right answer is.
//
// Owns Case, and the two kinds of server that the soak knows answers of: the canary, whose text follows from the prompt
// (model/canary.h), and any other model, which is asked a fixed set of isolated requests one by one before the load.
// Knows no sockets. Read next: answer.h, which reads what came back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "soak/random.h"

namespace carpool::soak {

enum class Api { kCompletions, kChat, kGenerate, kMessages };
inline constexpr int kApis = 4;
const char* path(Api api);

struct Case {
  Api api = Api::kCompletions;
  json::object body;      // without stream and the request's name
  std::string text;       // the right answer
  std::vector<int> ids;   // the same in tokens; empty = not known
  std::string finish;     // why it ends
  int prompt_tokens = 0;  // 0 = not known
  int tokens = 0;         // of the answer
};

// What the server says about its model.
struct ModelFacts {
  bool canary = false;
  int context = 0, vocab = 0;
};

// Prompts of 64, 256 and 1,024 tokens (60, 30, 10 %) or a few less, answers of 32 to 256 tokens, over all APIs; every
// third prompt begins as others do, so that the prefix cache has work.
class Cases {
 public:
  Cases(const ModelFacts& facts, uint64_t seed);

  // For the canary: a new one every time, with its answer.
  Case canary(Random& random) const;
  // For other models: without its answer. Greedy and isolated.
  Case plain(Random& random) const;
  // A request that cannot fit the context.
  Case over_long(Random& random) const;

 private:
  Case make(Random& random, bool known_answer) const;
  std::vector<int> prompt_ids(Random& random, int n) const;
  std::string prompt_text(Random& random, int n) const;

  ModelFacts facts_;
  std::vector<std::vector<int>> id_stems_;
  std::vector<std::string> text_stems_;
};

}  // namespace carpool::soak
