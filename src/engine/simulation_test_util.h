// The engine under everything at once, and every step checked: requests of several tenants that share beginnings, come
// in bursts, are cancelled in every state and twice, in a key-value pool far too small for them, while prefixes are
// reused and evicted and policies are switched. The model is the canary, whose next token is wrong as soon as two
// requests are mixed up anywhere; the clock is counted, not read. What happens is chosen by a source of numbers: a
// seeded generator in the test, the bytes of an input in the fuzz target.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "model/canary.h"

namespace carpool::test {

// A model around the canary: steps take counted time, and, for the negative control, rows may be given a wrong block.
class SimulatedModel final : public LanguageModel {
 public:
  const ModelConfig& config() const override { return canary_.config(); }
  KvFormat kv_format() const override { return canary_.kv_format(); }
  uint64_t step_bytes(int rows, int logit_rows) const override { return canary_.step_bytes(rows, logit_rows); }
  void reserve(int rows, int logit_rows) override { canary_.reserve(rows, logit_rows); }
  Matrix forward(const Rows& rows, KvCache& kv, const Policy& policy, const StepRecord& record) override {
    seconds += 0.001 + 0.0001 * rows.size();
    if (!corrupt) return canary_.forward(rows, kv, policy, record);
    // The first row that has a full block behind it finds another one in its place.
    Rows wrong = rows;
    std::vector<int> table;
    for (size_t r = 0; r < rows.tokens.size() && table.empty(); ++r) {
      if (rows.positions[r] < KvCache::kBlockTokens) continue;
      table.assign(rows.block_tables[r], rows.block_tables[r] + rows.positions[r] / KvCache::kBlockTokens + 1);
      table[0] = (table[0] + 1) % kv.total_blocks();
      wrong.block_tables[r] = table.data();
      ++corrupted;
    }
    return canary_.forward(wrong, kv, policy, record);
  }

  double seconds = 0;
  bool corrupt = false;
  int corrupted = 0;

 private:
  CanaryModel canary_;
};

struct SimulatedClient {
  Request request;
  std::vector<int> expected;
  size_t received = 0;
  bool cancelled = false, ended = false;
};

class Simulation {
 public:
  Simulation(SimulatedModel& model, std::function<unsigned()> source) : model_(model), random_(std::move(source)) {
    const auto base = [&](int n) {
      std::vector<int> out;
      for (int i = 0; i < n; ++i) out.push_back('a' + below(26));
      return out;
    };
    for (int i = 0; i < 3; ++i) beginnings_.push_back(base(64));
    options_.max_batch = 1 + below(6);
    options_.chunk = 1 + below(40);
    blocks_ = 3 + below(10);
    options_.kv_tokens = int64_t{blocks_} * KvCache::kBlockTokens;
    options_.prefix_cache = below(4) != 0;
    options_.preempt = below(4) != 0;
    options_.step_target_ms = below(2) * 3;
    options_.clock = [this] { return model_.seconds; };
    std::vector<std::unique_ptr<Policy>> policies;
    policies.push_back(make_policy("topk"));
    policies.push_back(make_policy("oea:k0=3"));
    engine_ = std::make_unique<Engine>(model_, nullptr, std::move(policies), options_);
  }

  // Random operations and steps, then only steps until all have ended. What was wrong first; "" = nothing.
  std::string run(int steps) {
    for (int i = 0; i < steps && wrong_.empty(); ++i) {
      for (int n = below(3); n > 0; --n) operate();
      step();
    }
    for (int i = 0; wrong_.empty() && engine_->running() + engine_->waiting() > 0; ++i) {
      step();
      if (i > 20000) fail("requests that never end");
    }
    if (!wrong_.empty()) return wrong_;
    if (engine_->step()) collect();  // what was cancelled last
    for (const auto& [id, client] : clients_) {
      if (!client.ended) fail(fmt::format("request {} never ended", id));
    }
    if (engine_->free_kv_blocks() + engine_->cached_kv_blocks() != blocks_) fail("blocks are missing at rest");
    if (!engine_->flush_prefix_cache()) fail("no flush at rest");
    if (engine_->free_kv_blocks() != blocks_) fail("blocks are missing after a flush");
    return wrong_;
  }

  int64_t preemptions() const { return engine_->preemptions(); }
  int64_t hits() const { return engine_->prefix_hits(); }
  int64_t tokens() const { return tokens_; }
  int cancels() const { return cancels_; }

 private:
  static constexpr int kQueue = 24;

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  void operate() {
    switch (below(12)) {
      case 0:
        return cancel();
      case 1:
        if (engine_->cancel(1000000 + below(10))) fail("cancelled what never was");
        return;
      case 2:
        if (engine_->flush_prefix_cache() != (engine_->running() + engine_->waiting() == 0)) fail("flush while busy");
        return;
      case 3:
        return engine_->set_policy(make_policy(below(2) == 0 ? "topk" : "oea:k0=2,guard=off"));
      default:
        return submit();
    }
  }

  void submit() {
    Request r;
    r.prompt = beginnings_[static_cast<size_t>(below(3))];
    r.prompt.resize(static_cast<size_t>(below(static_cast<int>(r.prompt.size()) + 1)));
    for (int n = below(12) + (r.prompt.empty() ? 1 : 0); n > 0; --n) r.prompt.push_back('A' + below(26));
    r.prompt_logprobs = below(8) == 0;
    r.max_tokens = (r.prompt_logprobs && below(2) == 0) ? 0 : 1 + below(below(3) == 0 ? 100 : 20);
    r.logprobs = below(4) == 0 ? below(3) : -1;
    r.tenant = below(3);
    r.group = below(2);
    r.policy = below(2);
    r.isolated = below(4) == 0;
    r.cache_prefix = below(5) != 0;
    r.ignore_eos = true;
    const auto stored = static_cast<int64_t>(r.prompt.size()) + std::max(r.max_tokens - 1, 0);
    if (stored > options_.kv_tokens) {
      try {
        engine_->submit(r);
        fail("accepted what can never fit");
      } catch (const RequestError&) {
      }
      return;
    }
    for (int n = below(6) == 0 ? 3 : 1; n > 0 && engine_->waiting() < kQueue; --n) {
      SimulatedClient client;
      client.request = r;
      client.expected = CanaryModel::expected(r.prompt, r.max_tokens);
      clients_[engine_->submit(r)] = std::move(client);
    }
  }

  // Anybody, ended requests included.
  void cancel() {
    if (clients_.empty()) return;
    auto c = clients_.begin();
    std::advance(c, below(static_cast<int>(clients_.size())));
    // One that has a last event to come, of a prompt of one token, is the only one that lives and cannot be cancelled.
    const bool could = engine_->cancel(c->first);
    if (could && (c->second.ended || c->second.cancelled)) fail("cancelled twice");
    if (!could && !c->second.ended && !c->second.cancelled && c->second.request.max_tokens > 0)
      fail("cannot be cancelled");
    c->second.cancelled |= could;
    cancels_ += could;
    if (engine_->cancel(c->first)) fail("cancelled twice");
  }

  void step() {
    const auto& running = engine_->scheduler().sequences();
    const RequestId oldest = running.empty() ? 0 : running.front()->id;
    const int computed = running.empty() ? 0 : running.front()->computed;
    const bool any = engine_->running() + engine_->waiting() > 0;
    if (!engine_->step() && any) fail("nothing to do although requests wait");
    collect();
    if (oldest != 0 && !clients_[oldest].ended) {
      if (running.empty() || running.front()->id != oldest || running.front()->computed <= computed)
        fail(fmt::format("the oldest, {}, did not get on", oldest));
    }
    if (engine_->waiting() > kQueue + options_.max_batch) fail("more wait than may");
    for (const auto& [id, client] : clients_) {
      if (client.cancelled && !client.ended) fail(fmt::format("cancelled {} did not end within a step", id));
    }
    check_blocks();
  }

  void check_blocks() {
    std::set<int> own, shared;
    size_t owned = 0;
    for (const auto& s : engine_->scheduler().sequences()) {
      for (size_t b = 0; b < s->blocks.size(); ++b) {
        const bool held = static_cast<int>(b) < s->hold.blocks;
        (held ? shared : own).insert(s->blocks[b]);
        owned += !held;
      }
    }
    if (owned != own.size()) fail("a block in two tables that is not shared");
    for (const int b : own) {
      if (shared.contains(b)) fail("a block that is shared and written");
    }
    const int used = static_cast<int>(own.size() + shared.size());
    if (engine_->free_kv_blocks() + engine_->cached_kv_blocks() + used != blocks_) fail("blocks do not add up");
  }

  void collect() {
    for (const Event& e : engine_->last_step().events) {
      const auto found = clients_.find(e.id);
      if (found == clients_.end()) return fail("an event of nobody");
      SimulatedClient& c = found->second;
      if (c.ended) return fail(fmt::format("an event of {} after its last", e.id));
      if (e.token >= 0) take_token(c, e);
      if (e.finish == FinishReason::kNone) continue;
      c.ended = true;
      const auto reason = c.cancelled ? FinishReason::kCancelled : FinishReason::kLength;
      if (e.finish != reason) return fail(fmt::format("{} ended as {}", e.id, name(e.finish)));
      if (!c.cancelled && c.received != c.expected.size()) return fail("ended early");
      if (!e.stats || e.stats->completion_tokens != static_cast<int>(c.received)) return fail("miscounted");
    }
  }

  void take_token(SimulatedClient& c, const Event& e) {
    if (c.received >= c.expected.size() || e.token != c.expected[c.received])
      return fail(fmt::format("token {} of request {} is not its own", c.received, e.id));
    const bool scored = c.received == 0 && c.request.prompt_logprobs;
    if ((e.prompt_logprobs != nullptr) != scored) fail("scores of a prompt at the wrong time");
    if (scored && e.prompt_logprobs->size() != c.request.prompt.size()) fail("scores are missing");
    if ((e.logprobs != nullptr) != (c.request.logprobs >= 0))
      fail("log-probabilities that were not asked for, or not given");
    ++c.received;
    ++tokens_;
  }

  SimulatedModel& model_;
  std::function<unsigned()> random_;
  EngineOptions options_;
  int blocks_ = 0;
  std::vector<std::vector<int>> beginnings_;
  std::unique_ptr<Engine> engine_;
  std::map<RequestId, SimulatedClient> clients_;
  std::string wrong_;
  int64_t tokens_ = 0;
  int cancels_ = 0;
};

}  // namespace carpool::test
