// Read first: cases.h.
#include "soak/cases.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "model/canary.h"

namespace carpool::soak {
namespace {

constexpr int kStems = 8, kStemTokens = 512;
// Tokens that the canary server's chat template puts around one message by the user (cli/serve.cc).
constexpr std::string_view kChatBegin = "user: ", kChatEnd = "\nassistant: ";
constexpr std::string_view kWords[] = {"the",  "river",  "under", "seven", "bridges", "carried", "letters", "home",
                                       "and",  "nobody", "asked", "why",   "winter",  "came",    "so",      "early",
                                       "that", "year",   "when",  "we",    "sold",    "horses",  "again",   "."};

int prompt_tokens(Random& random, int context) {
  const double share = random.share();
  const int full = share < 0.6 ? 64 : share < 0.9 ? 256 : 1024;
  return std::max(32, std::min(full, context - 272) - random.between(0, 15));
}

std::string words(Random& random, size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    if (!text.empty()) text += ' ';
    text += kWords[static_cast<size_t>(random.between(0, static_cast<int>(std::size(kWords)) - 1))];
  }
  text.resize(bytes, '.');
  return text;
}

// The dummy tokenizer gives one token per byte.
std::vector<int> bytes_of(std::string_view text) {
  std::vector<int> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

json::array to_json(const std::vector<int>& ids) { return json::array(ids.begin(), ids.end()); }

void add_chat(const std::string& content, json::object& body) {
  json::object message;
  message["role"] = "user";
  message["content"] = content;
  body["messages"].emplace_array().push_back(std::move(message));
}

// Temperature 0, or up to 1 with a seed: the canary says the same.
void add_sampling(Random& random, bool greedy, json::object& body) {
  const bool hot = !greedy && random.chance(0.3);
  body["temperature"] = hot ? 0.25 * random.between(1, 4) : 0.0;
  if (hot) body["seed"] = static_cast<int64_t>(random.number() >> 33);
}

}  // namespace

const char* path(Api api) {
  switch (api) {
    case Api::kCompletions:
      return "/v1/completions";
    case Api::kChat:
      return "/v1/chat/completions";
    case Api::kGenerate:
      return "/generate";
    case Api::kMessages:
      break;
  }
  return "/v1/messages";
}

Cases::Cases(const ModelFacts& facts, uint64_t seed) : facts_(facts) {
  Random random(seed, 0xca5e5);
  for (int i = 0; i < kStems; ++i) {
    std::vector<int> ids;
    for (int k = 0; k < kStemTokens; ++k) ids.push_back(random.between(4, std::min(255, facts.vocab - 1)));
    id_stems_.push_back(std::move(ids));
    text_stems_.push_back(words(random, kStemTokens));
  }
}

std::vector<int> Cases::prompt_ids(Random& random, int n) const {
  std::vector<int> ids;
  if (random.chance(0.33)) {
    const std::vector<int>& stem = id_stems_[static_cast<size_t>(random.between(0, kStems - 1))];
    ids.assign(stem.begin(), stem.begin() + std::min(n / 2, kStemTokens));
  }
  // The canary's ids from 257 on are never generated; as prompts all bytes will do.
  const int top = facts_.canary ? 255 : facts_.vocab - 1;
  while (static_cast<int>(ids.size()) < n) ids.push_back(random.between(4, top));
  return ids;
}

std::string Cases::prompt_text(Random& random, int n) const {
  const auto bytes = static_cast<size_t>(n);
  std::string text;
  if (random.chance(0.33)) text = text_stems_[static_cast<size_t>(random.between(0, kStems - 1))].substr(0, bytes / 2);
  if (random.chance(0.05) && text.size() + 16 < bytes) text += "<|end|>";  // text, never a control token
  return text + words(random, bytes - text.size());
}

Case Cases::make(Random& random, bool known_answer) const {
  Case c;
  c.api = static_cast<Api>(random.between(0, kApis - 1));
  c.tokens = random.between(32, 256);
  const bool chat = c.api == Api::kChat || c.api == Api::kMessages;
  const int around = static_cast<int>(kChatBegin.size() + kChatEnd.size());
  const int n = prompt_tokens(random, facts_.context) - (chat ? around : 0);
  std::vector<int> ids;
  json::object& body = c.body;
  if (chat) {
    const std::string content = prompt_text(random, n);
    add_chat(content, body);
    ids = bytes_of(std::string(kChatBegin) + content + std::string(kChatEnd));
  } else if (random.chance(0.5)) {
    ids = prompt_ids(random, n);
    body[c.api == Api::kGenerate ? "input_ids" : "prompt"] = to_json(ids);
  } else {
    const std::string text = prompt_text(random, n);
    body[c.api == Api::kGenerate ? "text" : "prompt"] = text;
    ids = bytes_of(text);
  }
  json::object& sampling = c.api == Api::kGenerate ? body["sampling_params"].emplace_object() : body;
  add_sampling(random, !known_answer, sampling);
  if (c.api != Api::kMessages) sampling["ignore_eos"] = true;
  sampling[c.api == Api::kGenerate ? "max_new_tokens" : "max_tokens"] = c.tokens;
  if (!known_answer || random.chance(0.25)) {
    body["routing"] = "isolated";
  } else if (random.chance(0.25)) {
    body["routing"] = "topk";
  }
  if (!known_answer) return c;
  c.ids = CanaryModel::expected(ids, c.tokens);
  for (const int id : c.ids) c.text += static_cast<char>(id);
  c.prompt_tokens = static_cast<int>(ids.size());
  c.finish = c.api == Api::kMessages ? "max_tokens" : "length";
  return c;
}

Case Cases::canary(Random& random) const { return make(random, true); }

Case Cases::plain(Random& random) const { return make(random, false); }

Case Cases::over_long(Random& random) const {
  Case c;
  const bool long_prompt = random.chance(0.5);
  const int n = long_prompt ? facts_.context + random.between(0, 64) : 64;
  c.body["prompt"] = to_json(prompt_ids(random, n));
  c.body["max_tokens"] = long_prompt ? 16 : facts_.context - random.between(0, 63);
  return c;
}

}  // namespace carpool::soak
