#include "measure/load_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <sstream>

#include "base/error.h"

namespace carpool {
namespace {

constexpr std::array kWords = {
    "river",    "stone",  "light",  "garden", "winter", "paper",  "music",   "window",  "bridge", "forest",
    "letter",   "market", "silver", "summer", "doctor", "engine", "island",  "kitchen", "ladder", "mirror",
    "number",   "orange", "pencil", "quiet",  "rabbit", "shadow", "table",   "valley",  "wagon",  "yellow",
    "apple",    "bread",  "cloud",  "dance",  "earth",  "field",  "glass",   "house",   "iron",   "journey",
    "king",     "lake",   "moon",   "night",  "ocean",  "page",   "queen",   "road",    "salt",   "train",
    "uncle",    "voice",  "water",  "young",  "above",  "below",  "carry",   "drive",   "every",  "found",
    "great",    "heard",  "into",   "just",   "know",   "little", "made",    "never",   "open",   "place",
    "question", "right",  "said",   "think",  "under",  "very",   "walk",    "year",    "the",    "and",
    "of",       "with",   "from",   "that",   "which",  "there",  "because", "while",   "would",  "could",
    "again",    "almost", "before", "child",  "during", "early",  "family",  "given",   "hand",   "idea"};

[[noreturn]] void malformed(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::kMalformed, fmt::format("{}: {}", where, what));
}

// A conversation, whichever of the two shapes it had.
struct Turn {
  std::string role, content;
};

// The text of a message: a string, or the text parts of a list.
std::string content_of(const JsonObject& turn, const char* key) {
  if (!turn.has(key)) return "";
  const json::array* parts = turn.value(key).if_array();
  if (!parts) return turn.string(key);
  std::string out;
  for (const json::value& part : *parts) out += JsonObject(part, turn.where()).string_or("text", "");
  return out;
}

std::vector<Turn> turns_of(const JsonObject& entry, const char* list, const char* role, const char* content) {
  std::vector<Turn> turns;
  for (const json::value& value : entry.array(list)) {
    const JsonObject turn(value, entry.where());
    turns.push_back({turn.string(role), content_of(turn, content)});
  }
  return turns;
}

void read_sharegpt(const JsonObject& entry, LoadPrompt& out) {
  const std::vector<Turn> turns = turns_of(entry, "conversations", "from", "value");
  for (size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].role != "human" && turns[i].role != "user") continue;
    out.text = turns[i].content;
    if (i + 1 < turns.size()) out.reply = turns[i + 1].content;
    break;
  }
  if (!out.text.empty()) out.messages = json::array{json::object{{"role", "user"}, {"content", out.text}}};
}

// Everything up to the last message of the user; what follows it is the reply.
void read_messages(const JsonObject& entry, LoadPrompt& out) {
  const std::vector<Turn> turns = turns_of(entry, "messages", "role", "content");
  size_t end = turns.size();
  while (end > 0 && turns[end - 1].role != "user") --end;
  if (end < turns.size() && end > 0) out.reply = turns[end].content;
  for (size_t i = 0; i < end; ++i) {
    out.messages.push_back(json::object{{"role", turns[i].role}, {"content", turns[i].content}});
    out.text += (i ? "\n" : "") + turns[i].content;
  }
}

// Nothing when the entry has no prompt in it.
std::optional<LoadPrompt> read_entry(const json::value& value, const std::string& where) {
  const JsonObject entry(value, where);
  LoadPrompt out;
  if (entry.has("prompt")) {
    out.text = entry.string("prompt");
  } else if (entry.has("conversations")) {
    read_sharegpt(entry, out);
  } else if (entry.has("messages")) {
    read_messages(entry, out);
  } else {
    malformed(where, "the entry has neither \"prompt\" nor \"conversations\" nor \"messages\"");
  }
  const int64_t given = entry.integer_or("output_len", entry.integer_or("max_tokens", 0, 0, 1 << 24), 0, 1 << 24);
  out.output_tokens = static_cast<int>(given);
  if (out.text.empty()) return std::nullopt;
  return out;
}

struct Entries {
  std::vector<LoadPrompt> prompts;
  size_t total = 0;
};

Entries read_entries(const std::string& text, const std::string& where) {
  Entries out;
  const auto add = [&](const json::value& value, const std::string& place) {
    ++out.total;
    if (auto prompt = read_entry(value, place)) out.prompts.push_back(std::move(*prompt));
  };
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[') {
    const json::value list = parse_json(text, where, {text.size(), 64});
    for (const json::value& value : list.get_array()) add(value, fmt::format("{} entry {}", where, out.total + 1));
    return out;
  }
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = fmt::format("{} line {}", where, number);
    add(parse_json(line, place), place);
  }
  return out;
}

int count_words(const std::string& text) {
  std::istringstream in(text);
  std::string word;
  int n = 0;
  while (in >> word) ++n;
  return n;
}

template <class T>
void shuffle_with(std::vector<T>& items, std::mt19937_64& random) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[draw_below(random, i)]);
}

}  // namespace

uint64_t draw_below(std::mt19937_64& random, uint64_t n) {
  CARPOOL_CHECK(n > 0);
  return random() % n;  // n is far below 2^64: the bias is too
}

double draw_unit(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

int draw_length(std::mt19937_64& random, int length, double ratio) {
  const int low = std::clamp(static_cast<int>(std::floor(length * ratio)), 1, std::max(length, 1));
  return low + static_cast<int>(draw_below(random, static_cast<uint64_t>(std::max(length, 1) - low) + 1));
}

RandomText::RandomText(const TokenCounter& counter) {
  for (const char* word : kWords) cost_.push_back(counter ? std::max(counter(std::string(" ") + word), 1) : 1);
  const int least = *std::min_element(cost_.begin(), cost_.end());
  for (size_t w = 0; w < cost_.size(); ++w) {
    if (cost_[w] == least) cheap_.push_back(w);
  }
}

std::string RandomText::draw(int tokens, std::mt19937_64& random) const {
  std::string out;
  int left = tokens;
  while (left > 0) {
    size_t word = draw_below(random, cost_.size());
    if (cost_[word] > left) word = cheap_[draw_below(random, cheap_.size())];
    out += (out.empty() ? "" : " ") + std::string(kWords[word]);
    left -= cost_[word];
  }
  return out;
}

std::vector<LoadPrompt> random_ids(int count, const LengthRule& rule, int vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<LoadPrompt> out;
  for (int i = 0; i < count; ++i) {
    LoadPrompt& prompt = out.emplace_back();
    prompt.input_tokens = draw_length(random, rule.input, rule.range_ratio);
    prompt.output_tokens = draw_length(random, rule.output, rule.range_ratio);
    const uint64_t offset = draw_below(random, static_cast<uint64_t>(vocab)) + static_cast<uint64_t>(i);
    for (int j = 0; j < prompt.input_tokens; ++j) {
      prompt.ids.push_back(static_cast<int>((offset + static_cast<uint64_t>(j)) % static_cast<uint64_t>(vocab)));
    }
  }
  return out;
}

std::vector<LoadPrompt> random_text(int count, const LengthRule& rule, const RandomText& words, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<LoadPrompt> out;
  for (int i = 0; i < count; ++i) {
    LoadPrompt& prompt = out.emplace_back();
    prompt.input_tokens = draw_length(random, rule.input, rule.range_ratio);
    prompt.output_tokens = draw_length(random, rule.output, rule.range_ratio);
    prompt.text = words.draw(prompt.input_tokens, random);
  }
  return out;
}

std::vector<LoadPrompt> shared_prefix(const SharedPrefixRule& rule, const RandomText& words, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<LoadPrompt> out;
  for (int g = 0; g < rule.groups; ++g) {
    const std::string system = words.draw(rule.system_tokens, random);
    for (int p = 0; p < rule.prompts_per_group; ++p) {
      const int question = draw_length(random, rule.question_tokens, rule.range_ratio);
      LoadPrompt& prompt = out.emplace_back();
      prompt.text = system + "\n\n" + words.draw(question, random);
      prompt.input_tokens = rule.system_tokens + question;
      prompt.output_tokens = draw_length(random, rule.output_tokens, rule.range_ratio);
    }
  }
  shuffle_with(out, random);
  return out;
}

LoadDataset custom_prompts(const std::string& text, const std::string& where, int count, int output_tokens,
                           const TokenCounter& counter, uint64_t seed) {
  Entries entries = read_entries(text, where);
  if (entries.prompts.empty()) malformed(where, "there is no prompt in it");
  LoadDataset out;
  if (entries.prompts.size() < entries.total) {
    out.notes.push_back(fmt::format("{}: {} of {} entries have no prompt and were left out", where,
                                    entries.total - entries.prompts.size(), entries.total));
  }
  std::mt19937_64 random(seed);
  shuffle_with(entries.prompts, random);
  const size_t distinct = entries.prompts.size();
  if (distinct < static_cast<size_t>(count)) {
    out.notes.push_back(
        fmt::format("{}: {} requests repeat {} prompts, so a prefix cache helps", where, count, distinct));
  }
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (i < distinct) {
      LoadPrompt& p = entries.prompts[i];
      if (p.output_tokens == 0 && !p.reply.empty()) p.output_tokens = counter ? counter(p.reply) : count_words(p.reply);
      if (p.output_tokens == 0) p.output_tokens = output_tokens;
    }
    out.prompts.push_back(entries.prompts[i % distinct]);
  }
  return out;
}

}  // namespace carpool
