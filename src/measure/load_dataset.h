// The prompts of a load test, made by rule from a seed or read from a file; nothing is downloaded.
//
// Owns LoadPrompt and the four data sets: random token ids, random words, prompts of a JSONL file, groups that share a
// long beginning. Lengths are tokens where a counter is given and words otherwise. The same seed gives the same prompts
// on every machine. Does not send anything; load_backend.h makes requests from these.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"

namespace carpool {

struct LoadPrompt {
  std::string text;
  std::vector<int> ids;    // when not empty, instead of the text
  json::array messages;    // when not empty, the conversation behind the text, for chat
  int input_tokens = 0;    // 0 = not known before the server says so
  int output_tokens = 1;   // to generate
  std::string reply = {};  // of the data set, where it has one
};

struct LoadDataset {
  std::vector<LoadPrompt> prompts;
  std::vector<std::string> notes;  // sentences: what was left out, what repeats
};

// Tokens of a text, as the server counts them.
using TokenCounter = std::function<int(const std::string&)>;

// Uniform integers of [max(floor(L * ratio), 1), L].
struct LengthRule {
  int input = 1024, output = 1024;
  double range_ratio = 0;
};

struct SharedPrefixRule {
  int groups = 64, prompts_per_group = 16;
  int system_tokens = 2048, question_tokens = 128, output_tokens = 256;
  double range_ratio = 1;  // lengths of questions and outputs, as in LengthRule
};

// Texts of a wanted length from a list of a hundred plain words.
class RandomText {
 public:
  // Asks `counter` for every word once; without a counter a word is one token.
  explicit RandomText(const TokenCounter& counter);
  // A text of `tokens` tokens, give or take what the beginning and the end of a text change.
  std::string draw(int tokens, std::mt19937_64& random) const;

 private:
  std::vector<int> cost_;      // of each word with the space before it
  std::vector<size_t> cheap_;  // words of the least cost
};

// Token j of prompt i is (offset_i + i + j) mod vocab, as in SGLang's random-ids. vocab >= 1.
std::vector<LoadPrompt> random_ids(int count, const LengthRule& rule, int vocab, uint64_t seed);
std::vector<LoadPrompt> random_text(int count, const LengthRule& rule, const RandomText& words, uint64_t seed);
// groups * prompts_per_group prompts in random order.
std::vector<LoadPrompt> shared_prefix(const SharedPrefixRule& rule, const RandomText& words, uint64_t seed);

// Prompts of a JSONL text (or one JSON array), in an order drawn from the seed, repeated when `count` is more than
// there are. An entry is {"prompt": "..."}, {"conversations": [{"from": "human", "value": ...}, ...]} (ShareGPT) or
// {"messages": [{"role", "content"}, ...]} (OpenAI); output_tokens is its "output_len" or "max_tokens", else the length
// of its reply by `counter`, else `output_tokens`. Error{kMalformed} with the line.
LoadDataset custom_prompts(const std::string& text, const std::string& where, int count, int output_tokens,
                           const TokenCounter& counter, uint64_t seed);

// An integer below `n` (> 0), and a number of [0, 1): the same on every machine, unlike the standard's distributions.
uint64_t draw_below(std::mt19937_64& random, uint64_t n);
double draw_unit(std::mt19937_64& random);
// In [max(floor(length * ratio), 1), length].
int draw_length(std::mt19937_64& random, int length, double ratio);

}  // namespace carpool
