// States in key-value blocks and the tokens that follow from them. See canary.h.
#include "model/canary.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

#include "text/dummy_tokenizer.h"

namespace carpool {
namespace {

constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ";
constexpr int kBlock = KvCache::kBlockTokens;
constexpr float kBest = 40;  // the others have 0: at temperature 1 one draw in 10^15 takes one of them

// SplitMix64's finaliser (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The state of `position`; state_of(p) gives that of an earlier one.
template <class StateOf>
uint64_t next_state(int token, int position, StateOf&& state_of) {
  const auto p = static_cast<uint64_t>(position);
  uint64_t state = mix((p << 32) + static_cast<uint64_t>(token));
  if (position > 0) state = mix(state ^ state_of(position - 1));
  for (int block = 0; block < position / kBlock; ++block) {
    const int slot = static_cast<int>(mix(p * 0x10001 + static_cast<uint64_t>(block)) % kBlock);
    state = mix(state + state_of(block * kBlock + slot));
  }
  return state;
}

int token_of(uint64_t state) { return kCharacters[state % kCharacters.size()]; }

// A state is four numbers of 16 bits, two in the key and two in the value: float32 holds them exactly.
void store(KvLayer layer, const int* table, int position, uint64_t state) {
  float parts[4];
  for (int i = 0; i < 4; ++i) parts[i] = static_cast<float>((state >> (16 * i)) & 0xffff);
  layer.block.store(layer.at(table[position / kBlock], 0), position % kBlock, parts, parts + 2);
}

uint64_t load(KvLayer layer, const int* table, int position) {
  float parts[4];
  layer.block.load(layer.at(table[position / kBlock], 0), position % kBlock, parts, parts + 2);
  uint64_t state = 0;
  for (int i = 0; i < 4; ++i) {
    const float part = parts[i] >= 0 && parts[i] <= 65535 ? parts[i] : 65535;
    state |= static_cast<uint64_t>(part) << (16 * i);
  }
  return state;
}

}  // namespace

CanaryModel::CanaryModel(const CanaryOptions& options) : step_us_(options.step_us) {
  config_.family = "canary";
  config_.vocab = kDummyEndToken + 1;
  config_.width = 64;
  config_.layers = config_.heads = config_.kv_heads = 1;
  config_.head_dim = config_.value_dim = 2;
  config_.context = options.context;
  config_.moe_layer = {true};
  config_.expert_width = 64;
  config_.n_experts = 64;
  config_.top_k = 8;
  config_.eos_ids = {kDummyEndToken};
}

uint64_t CanaryModel::step_bytes(int rows, int logit_rows) const {
  const uint64_t per_row = sizeof(uint64_t) + sizeof(float) * static_cast<uint64_t>(config_.n_experts);
  const uint64_t per_logit_row = sizeof(float) * static_cast<uint64_t>(config_.vocab);
  return static_cast<uint64_t>(rows) * per_row + static_cast<uint64_t>(logit_rows) * per_logit_row;
}

void CanaryModel::reserve(int rows, int logit_rows) {
  const auto grow = [](auto& buffer, int n, int cols) {
    const size_t size = static_cast<size_t>(n) * static_cast<size_t>(cols);
    if (buffer.size() < size) buffer.resize(size);
  };
  grow(states_, rows, 1);
  grow(scores_, rows, config_.n_experts);
  grow(logits_, logit_rows, config_.vocab);
}

// Scores between 0 and 1 that depend on the row's state alone, serving as ranks and as weights.
void CanaryModel::route(const Rows& rows, const Policy& policy, const StepRecord& record) {
  const int E = config_.n_experts;
  for (int t = 0; t < rows.size(); ++t) {
    for (int e = 0; e < E; ++e) {
      const uint64_t bits = mix(states_[static_cast<size_t>(t)] + static_cast<uint64_t>(e));
      scores_[static_cast<size_t>(t) * E + e] = static_cast<float>(bits >> 40) * 0x1p-24f;
    }
  }
  const auto scores = std::span<const float>(scores_).first(static_cast<size_t>(rows.size()) * E);
  const RouterInput in{scores, scores, rows.info, E, config_.top_k, 0};
  policy.select(in, scratch_, chosen_);
  record.add_layer(0, in, chosen_, plain_, scratch_);
}

Matrix CanaryModel::forward(const Rows& rows, KvCache& kv, const Policy& policy, const StepRecord& record) {
  const int wanted = static_cast<int>(rows.logit_rows.size());
  reserve(rows.size(), wanted);
  record.start(rows.size(), config_);
  const KvLayer layer = kv.layer(0);
  for (size_t t = 0; t < rows.tokens.size(); ++t) {
    states_[t] = 0;
    if (rows.positions[t] < 0) continue;
    const int* table = rows.block_tables[t];
    const auto state_of = [&](int position) { return load(layer, table, position); };
    states_[t] = next_state(rows.tokens[t], rows.positions[t], state_of);
    store(layer, table, rows.positions[t], states_[t]);
  }
  route(rows, policy, record);
  const Matrix logits{logits_.data(), wanted, config_.vocab, config_.vocab};
  for (int i = 0; i < wanted; ++i) {
    std::fill_n(logits.row(i), config_.vocab, 0.0f);
    logits.row(i)[token_of(states_[static_cast<size_t>(rows.logit_rows[static_cast<size_t>(i)])])] = kBest;
  }
  if (step_us_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(step_us_));
  return logits;
}

std::vector<int> CanaryModel::expected(std::span<const int> prompt, int n) {
  std::vector<uint64_t> states;
  const auto append = [&](int token) {
    const auto state_of = [&](int position) { return states[static_cast<size_t>(position)]; };
    states.push_back(next_state(token, static_cast<int>(states.size()), state_of));
  };
  for (const int token : prompt) append(token);
  std::vector<int> out;
  for (int i = 0; i < n; ++i) {
    out.push_back(token_of(states.back()));
    append(out.back());
  }
  return out;
}

}  // namespace carpool
