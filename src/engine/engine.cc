#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/memory.h"
#include "base/time.h"

namespace carpool {
namespace {

constexpr size_t kMaxStopStrings = 4, kMaxStopBytes = 256, kMaxStopIds = 128;
constexpr int64_t kDefaultPoolTokens = 64 << 10;

int64_t pool_tokens(const EngineOptions& options, const ModelConfig& config) {
  if (options.max_batch < 1 || options.max_batch > 4096) {
    throw Error(ErrorKind::kUsage, fmt::format("max_batch must be 1 to 4096, got {}", options.max_batch));
  }
  if (options.chunk < 1 || options.chunk > 65536) {
    throw Error(ErrorKind::kUsage, fmt::format("the prefill chunk must be 1 to 65536 tokens, got {}", options.chunk));
  }
  if (options.kv_tokens < 0)
    throw Error(ErrorKind::kUsage, fmt::format("kv_tokens must not be negative, got {}", options.kv_tokens));
  if (options.kv_tokens > 0) return options.kv_tokens;
  return std::min<int64_t>(int64_t{options.max_batch} * config.context,
                           std::max<int64_t>(kDefaultPoolTokens, config.context));
}

}  // namespace

Engine::Engine(Model& model, const Tokenizer* tokenizer, std::unique_ptr<Policy> policy, const EngineOptions& options)
    : model_(model),
      tokenizer_(tokenizer),
      policy_(std::move(policy)),
      kv_(model.config(), pool_tokens(options, model.config()), model.kv_format()),
      scheduler_(kv_, options.max_batch, options.chunk) {
  if (model.config().moe_layers() > 0) policy_->check(model.config().n_experts, model.config().top_k);
  const int rows = options.max_batch + options.chunk;
  require_memory(model_.step_bytes(rows, options.max_batch), fmt::format("a step of {} rows", rows));
  model_.reserve(rows, options.max_batch);
}

RequestId Engine::submit(Request request) {
  const auto refuse = [](const std::string& sentence) { throw Error(ErrorKind::kUsage, sentence); };
  const ModelConfig& c = model_.config();
  if (request.prompt.empty()) refuse("the prompt is empty");
  for (const auto* ids : {&request.prompt, &request.stop_ids}) {
    for (const int id : *ids) {
      if (id < 0 || id >= c.vocab)
        refuse(fmt::format("token id {} is outside the model's vocabulary of {}", id, c.vocab));
    }
  }
  if (request.max_tokens < 1) refuse(fmt::format("max_tokens must be at least 1, got {}", request.max_tokens));
  const int64_t positions = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  if (positions > c.context) {
    refuse(fmt::format("{} prompt tokens and {} new ones need {} positions, the model's context is {}",
                       request.prompt.size(), request.max_tokens, positions, c.context));
  }
  if (KvCache::blocks_for(positions - 1) > kv_.total_blocks()) {
    refuse(fmt::format("{} prompt tokens and {} new ones need {} KV blocks, the pool has {}", request.prompt.size(),
                       request.max_tokens, KvCache::blocks_for(positions - 1), kv_.total_blocks()));
  }
  check(request.sampling);
  if (request.stop_ids.size() > kMaxStopIds)
    refuse(fmt::format("at most {} stop ids, got {}", kMaxStopIds, request.stop_ids.size()));
  if (request.stop_strings.size() > kMaxStopStrings) {
    refuse(fmt::format("at most {} stop strings, got {}", kMaxStopStrings, request.stop_strings.size()));
  }
  for (const std::string& s : request.stop_strings) {
    if (s.empty() || s.size() > kMaxStopBytes)
      refuse(fmt::format("a stop string must have 1 to {} bytes, got {}", kMaxStopBytes, s.size()));
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->text = TextStream(tokenizer_, request.stop_strings);
  sequence->tokens.reserve(static_cast<size_t>(positions));
  sequence->tokens = request.prompt;
  sequence->request = std::move(request);
  const RequestId id = sequence->id;
  scheduler_.add(std::move(sequence));
  return id;
}

bool Engine::cancel(RequestId id) {
  std::unique_ptr<Sequence> sequence = scheduler_.remove(id);
  if (!sequence) return false;
  cancelled_.push_back({id, -1, sequence->text.finish(), FinishReason::kCancelled});
  return true;
}

bool Engine::step() {
  report_.events.clear();
  report_.events.swap(cancelled_);
  report_.routing = {};
  report_.seconds = 0;
  const bool work = scheduler_.next(batch_);
  report_.decode_rows = batch_.decode_rows;
  report_.prefill_rows = batch_.prefill_rows;
  if (!work) return !report_.events.empty();
  const double start = now_seconds();
  const Matrix logits = model_.forward(batch_.rows, kv_, *policy_, report_.routing);
  report_.seconds = now_seconds() - start;
  total_.add(report_.routing);
  if (batch_.prefill_rows == 0) decode_.add(report_.routing);
  for (size_t i = 0; i < batch_.owners.size(); ++i) {
    Sequence& s = *batch_.owners[i];
    const std::span<const float> row(logits.row(static_cast<int>(i)), static_cast<size_t>(logits.cols));
    emit(s, sampler_.sample(row, s.request.sampling, s.generated()));
  }
  return true;
}

// Appends `token` to the sequence and reports it, or ends the sequence.
void Engine::emit(Sequence& s, int token) {
  if (token < 0) return finish(s.id, {s.id, -1, s.text.finish(), FinishReason::kNumericalError});
  const auto listed = [token](const std::vector<int>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  s.tokens.push_back(token);
  if (listed(s.request.stop_ids) || (!s.request.ignore_eos && listed(model_.config().eos_ids))) {
    return finish(s.id, {s.id, token, s.text.finish(), FinishReason::kStop});
  }
  Event event{s.id, token, s.text.push(token), FinishReason::kNone};
  if (s.text.stopped()) {
    event.finish = FinishReason::kStop;
  } else if (s.generated() >= s.request.max_tokens) {
    event.text += s.text.finish();
    event.finish = s.text.stopped() ? FinishReason::kStop : FinishReason::kLength;
  }
  if (event.finish != FinishReason::kNone) return finish(s.id, std::move(event));
  report_.events.push_back(std::move(event));
}

void Engine::finish(RequestId id, Event event) {
  scheduler_.remove(id);
  report_.events.push_back(std::move(event));
}

}  // namespace carpool
