// One step after the other. See engine.h.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "base/time.h"

namespace carpool {
namespace {

constexpr int64_t kDefaultPoolTokens = 64 << 10;
constexpr int kFirstTokens = 256;  // room for generated tokens that a sequence starts with

int64_t pool_tokens(const EngineOptions& options, const ModelConfig& config) {
  if (options.max_batch < 1 || options.max_batch > 4096) {
    throw Error(ErrorKind::kUsage, fmt::format("max_batch must be 1 to 4096, got {}", options.max_batch));
  }
  if (options.chunk < 1 || options.chunk > 65536) {
    throw Error(ErrorKind::kUsage, fmt::format("the prefill chunk must be 1 to 65536 tokens, got {}", options.chunk));
  }
  if (!(options.step_target_ms >= 0 && options.step_target_ms <= 1e6)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the target of a step must be 0 (none) to 1000000 ms, got {}", options.step_target_ms));
  }
  if (options.kv_tokens < 0)
    throw Error(ErrorKind::kUsage, fmt::format("kv_tokens must not be negative, got {}", options.kv_tokens));
  if (options.kv_tokens > 0) return options.kv_tokens;
  return std::min<int64_t>(int64_t{options.max_batch} * config.context,
                           std::max<int64_t>(kDefaultPoolTokens, config.context));
}

SchedulerOptions scheduler_options(const EngineOptions& options) {
  SchedulerOptions out;
  out.max_batch = options.max_batch;
  out.chunk = options.chunk;
  out.step_target_s = options.step_target_ms / 1e3;
  out.prefix_cache = options.prefix_cache;
  out.preempt = options.preempt;
  return out;
}

void check_fits(const Policy& policy, const ModelConfig& config) {
  check_layers(policy, config.layers);
  if (config.moe_layers() > 0) return policy.check(config.n_experts, config.top_k);
  if (policy.spec() == "topk") return;
  throw Error(ErrorKind::kConfig,
              fmt::format("the model has no routed experts: {} has nothing to decide", escape(policy.spec())));
}

std::vector<std::unique_ptr<Policy>> list_of(std::unique_ptr<Policy> policy) {
  std::vector<std::unique_ptr<Policy>> out;
  out.push_back(std::move(policy));
  return out;
}

bool listed(const std::vector<int>& ids, int token) { return std::find(ids.begin(), ids.end(), token) != ids.end(); }

}  // namespace

Engine::Engine(LanguageModel& model, const Tokenizer* tokenizer, std::unique_ptr<Policy> policy,
               const EngineOptions& options)
    : Engine(model, tokenizer, list_of(std::move(policy)), options) {}

Engine::Engine(LanguageModel& model, const Tokenizer* tokenizer, std::vector<std::unique_ptr<Policy>> policies,
               const EngineOptions& options)
    : model_(model),
      tokenizer_(tokenizer),
      policies_(std::move(policies)),
      kv_(model.config(), pool_tokens(options, model.config()), model.kv_format()),
      limits_{model.config().vocab, model.config().context, int64_t{kv_.total_blocks()} * KvCache::kBlockTokens},
      scheduler_(kv_, scheduler_options(options)),
      clock_(options.clock ? options.clock : now_seconds) {
  CARPOOL_CHECK(!policies_.empty());
  for (const auto& policy : policies_) check_fits(*policy, model.config());
  unite_policies();
  const int rows = options.max_batch + options.chunk, logit_rows = options.max_batch + SchedulerOptions().score_rows;
  require_memory(model.step_bytes(rows, logit_rows), fmt::format("a step of {} rows", rows));
  model_.reserve(rows, logit_rows);
}

void Engine::unite_policies() {
  if (policies_.size() == 1) return;
  std::vector<const Policy*> all;
  for (const auto& policy : policies_) all.push_back(policy.get());
  set_.emplace(std::move(all));
}

const Policy& Engine::active() const { return set_ ? static_cast<const Policy&>(*set_) : *policies_[0]; }

void Engine::set_policy(std::unique_ptr<Policy> policy) {
  check_fits(*policy, model_.config());
  policies_[0] = std::move(policy);
  unite_policies();
}

bool Engine::flush_prefix_cache() {
  if (running() + waiting() > 0) return false;
  scheduler_.prefix_cache().flush();
  return true;
}

void Engine::record_experts(std::vector<std::vector<int64_t>>* counts) { expert_counts_ = counts; }

RequestId Engine::submit(Request request) {
  check(request, limits_);
  if (request.policy < 0 || static_cast<size_t>(request.policy) >= policies_.size()) {
    throw RequestError("routing", "invalid_value",
                       fmt::format("policy {} of {} was asked for", request.policy, policies_.size()));
  }
  auto sequence = std::make_unique<Sequence>();
  Sequence& s = *sequence;
  s.id = next_id_++;
  s.text =
      TextStream(tokenizer_, request.stop_strings, request.include_stop, request.skip_special, request.show_special);
  s.tokens.reserve(request.prompt.size() + static_cast<size_t>(std::min(request.max_tokens, kFirstTokens)));
  s.tokens = request.prompt;
  if (request.constraint) s.cursor.emplace(request.constraint);
  s.request = std::move(request);
  if (s.request.prompt_logprobs) {
    s.prompt_scores = std::make_shared<std::vector<TokenLogprobs>>();
    s.prompt_scores->push_back({{s.tokens[0], 0}, {}});
  }
  const RequestId id = s.id;
  if (s.wanted() > 0) {
    scheduler_.add(std::move(sequence));
  } else {  // a prompt of one token that is only scored
    pending_.push_back(last_event(s, FinishReason::kLength));
  }
  return id;
}

bool Engine::cancel(RequestId id) {
  std::unique_ptr<Sequence> sequence = scheduler_.remove(id);
  if (!sequence) return false;
  pending_.push_back(last_event(*sequence, FinishReason::kCancelled));
  return true;
}

bool Engine::step() {
  report_.events.clear();
  report_.events.swap(pending_);
  report_.routing = {};
  report_.seconds = 0;
  const int64_t preempted = preemptions();
  const bool work = scheduler_.next(batch_);
  report_.admitted.swap(batch_.admitted);
  report_.preempted = static_cast<int>(preemptions() - preempted);
  report_.decode_rows = batch_.decode_rows;
  report_.prefill_rows = batch_.prefill_rows;
  if (!work) return !report_.events.empty();
  const double start = clock_();
  const Matrix logits = model_.forward(batch_.rows, kv_, active(),
                                       {&report_.routing, &row_routing_, expert_counts_, &report_.layers, observer_});
  report_.seconds = clock_() - start;
  scheduler_.computed(batch_, row_routing_, report_.seconds);
  total_.add(report_.routing);
  if (batch_.prefill_rows == 0) decode_.add(report_.routing);
  account_decodes();
  if (observer_) show_rows(logits);
  take(logits);
  return true;
}

void Engine::show_rows(const Matrix& logits) {
  size_t next = 0;  // of the rows with logits
  for (const BatchPart& part : batch_.parts) {
    for (int r = part.first_row; r < part.first_row + part.rows; ++r) {
      const auto at = static_cast<size_t>(r);
      const bool wanted = next < batch_.rows.logit_rows.size() && batch_.rows.logit_rows[next] == r;
      std::span<const float> row;
      if (wanted) row = {logits.row(static_cast<int>(next++)), static_cast<size_t>(logits.cols)};
      observer_->row(r, static_cast<uint64_t>(part.sequence->id), batch_.rows.positions[at], batch_.rows.tokens[at],
                     row);
    }
  }
}

// What routing did to the decode rows of each request.
void Engine::account_decodes() {
  for (const BatchPart& part : batch_.parts) {
    if (part.phase != Phase::kDecode) continue;
    const RowRouting& row = row_routing_[static_cast<size_t>(part.first_row)];
    RequestStats& stats = part.sequence->stats;
    stats.rerouted += row.rerouted;
    stats.underfilled += row.underfilled;
    for (size_t i = 0; i < stats.rows.size(); ++i) stats.rows[i] += row.reasons[i];
  }
}

void Engine::take(const Matrix& logits) {
  for (size_t i = 0; i < batch_.owners.size(); ++i) {
    Sequence& s = *batch_.owners[i];
    const std::span<float> row(logits.row(static_cast<int>(i)), static_cast<size_t>(logits.cols));
    const int next = batch_.rows.positions[static_cast<size_t>(batch_.rows.logit_rows[i])] + 1;
    if (s.failed) {
      // Its other rows say nothing any more.
    } else if (next < s.size()) {
      score_prompt(s, next, row);
    } else {
      emit(s, row);
      continue;
    }
    const bool last = i + 1 == batch_.owners.size() || batch_.owners[i + 1] != &s;
    if (!last) continue;
    if (s.failed) {
      finish(s, last_event(s, FinishReason::kNumericalError));
    } else if (s.request.max_tokens == 0 && !s.scoring()) {
      finish(s, last_event(s, FinishReason::kLength));
    }
  }
}

void Engine::score_prompt(Sequence& s, int position, std::span<const float> logits) {
  const int token = s.tokens[static_cast<size_t>(position)];
  TokenLogprobs scores = score(logits, token, std::max(s.request.logprobs, 0));
  s.failed = scores.chosen.token < 0;
  if (!s.failed) s.prompt_scores->push_back(std::move(scores));
}

// Appends the next token to the sequence and reports it, or ends the sequence.
void Engine::emit(Sequence& s, std::span<float> logits) {
  const std::vector<int>& end_ids = model_.config().eos_ids;
  const bool ends = !s.request.ignore_eos;
  const std::shared_ptr<const TokenMask> mask = s.cursor ? s.cursor->mask() : nullptr;
  if (s.cursor && !mask) return finish(s, last_event(s, FinishReason::kConstraintError));
  Draw draw =
      sampler_.sample(logits, s.request, s.tokens, ends ? std::span(end_ids) : std::span<const int>(), mask.get());
  if (draw.token < 0 && mask && !Sampler::broken(logits)) {
    return finish(s, last_event(s, FinishReason::kConstraintError));
  }
  if (draw.token < 0) {
    s.failed = true;
    return finish(s, last_event(s, FinishReason::kNumericalError));
  }
  s.tokens.push_back(draw.token);
  Event event = event_of(s);
  event.token = draw.token;
  event.logprobs = std::move(draw.logprobs);
  if (listed(s.request.stop_ids, draw.token) || (ends && listed(end_ids, draw.token))) {
    event.finish = FinishReason::kStop;
    event.matched_token = draw.token;
    event.text = s.text.finish();
  } else {
    event.text = s.text.push(draw.token);
    if (s.cursor && !s.cursor->accept(draw.token)) return finish(s, last_event(s, FinishReason::kConstraintError));
    if (!s.text.stopped() && s.cursor && s.cursor->complete()) {
      event.finish = FinishReason::kStop;
      event.text += s.text.finish();
    } else if (!s.text.stopped() && s.generated() >= s.request.max_tokens) {
      event.finish = FinishReason::kLength;
      event.text += s.text.finish();
    }
    if (s.text.stopped()) {
      event.finish = FinishReason::kStop;
      event.matched = s.text.matched();
    }
  }
  if (event.finish != FinishReason::kNone) return finish(s, std::move(event));
  report_.events.push_back(std::move(event));
}

// With what goes out once, beside the first token.
Event Engine::event_of(Sequence& s) {
  Event event;
  event.id = s.id;
  if (s.prompt_scores && !s.scoring()) event.prompt_logprobs = std::move(s.prompt_scores);
  return event;
}

Event Engine::last_event(Sequence& s, FinishReason reason) {
  Event event = event_of(s);
  event.finish = reason;
  event.text = s.text.finish();
  event.stats = stats_of(s);
  return event;
}

std::shared_ptr<const RequestStats> Engine::stats_of(Sequence& s) {
  s.stats.prompt_tokens = s.prompt_size();
  s.stats.completion_tokens = s.generated();
  return std::make_shared<RequestStats>(s.stats);
}

void Engine::finish(Sequence& s, Event event) {
  event.stats = stats_of(s);
  scheduler_.remove(s.id, /*keep_prefix=*/!s.failed);
  report_.events.push_back(std::move(event));
}

}  // namespace carpool
