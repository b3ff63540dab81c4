#include "measure/trace_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/checksum.h"

namespace carpool {
namespace {

std::vector<int> moe_layers_of(const ModelConfig& config) {
  std::vector<int> layers;
  for (int l = 0; l < config.layers; ++l) {
    if (config.moe_layer[static_cast<size_t>(l)]) layers.push_back(l);
  }
  return layers;
}

uint64_t checksum_of(std::span<const float> logits) {
  const uint64_t sum = checksum64(std::as_bytes(logits));
  return sum == 0 ? 1 : sum;  // 0 says that there is none
}

// Chooses and weighs as a trace says, for the rows of one sequence from `position` on.
class Forced final : public Policy, public StepObserver {
 public:
  explicit Forced(const Trace& trace) : trace_(trace) {}

  void at(const TraceSequence& sequence, int position) {
    sequence_ = &sequence;
    position_ = position;
  }

  void select(const RouterInput& in, Scratch&, Selection& out) const override {
    const auto found = std::find(trace_.layers.begin(), trace_.layers.end(), in.layer);
    CARPOOL_CHECK(found != trace_.layers.end());
    const auto l = static_cast<size_t>(found - trace_.layers.begin());
    out.start(in.rows(), trace_.top_k);
    for (int t = 0; t < in.rows(); ++t) {
      for (const int16_t expert : trace_.experts(*sequence_, position_ + t, l)) {
        if (expert >= 0) out.push(expert);
      }
      out.end_row(PlainReason::kApplied);
    }
  }

  void routed(const RoutedLayer& layer) override {
    const Selection& chosen = layer.chosen;
    for (int t = 0; t < chosen.rows(); ++t) {
      const size_t at = static_cast<size_t>(position_ + t) * trace_.slots() +
                        static_cast<size_t>(layer.m) * static_cast<size_t>(trace_.top_k);
      for (int i = chosen.begin(t); i < chosen.end(t); ++i)
        layer.weights[static_cast<size_t>(i)] = sequence_->weights[at + static_cast<size_t>(i - chosen.begin(t))];
    }
  }

  const PolicyProperties& properties() const override { return properties_; }
  std::string spec() const override { return "forced"; }
  bool is_plain(int) const override { return false; }
  void check(int, int) const override {}

 private:
  const Trace& trace_;
  const TraceSequence* sequence_ = nullptr;
  int position_ = 0;
  PolicyProperties properties_{.batch_free = true};
};

void check_trace(const Trace& trace, const std::string& hash, const ModelConfig& config) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kConfig, fmt::format("{}: {}", escape(trace.source, 400), what));
  };
  if (trace.model_hash.empty())
    refuse("the trace does not name the model it was recorded from, so it cannot be forced");
  if (trace.model_hash != hash) {
    refuse(fmt::format("the trace was recorded from {} ({}), this model is {}", escape(trace.model, 200),
                       escape(trace.model_hash, 40), hash));
  }
  if (trace.layers != moe_layers_of(config) || trace.n_experts != config.n_experts || trace.top_k != config.top_k)
    refuse("the trace has other layers or experts than the model");
  for (const TraceSequence& s : trace.sequences) {
    if (s.tokens.empty() || s.weights.empty())
      refuse(fmt::format("sequence {} has no token ids or no weights", escape(s.name, 60)));
    if (s.positions > config.context)
      refuse(fmt::format("sequence {} has {} tokens, the model's context is {}", escape(s.name, 60), s.positions,
                         config.context));
    for (const int token : s.tokens) {
      if (token < config.vocab) continue;
      throw Error(ErrorKind::kMalformed, fmt::format("{}: token {} is not one of the model's {}",
                                                     escape(trace.source, 400), token, config.vocab));
    }
  }
}

}  // namespace

TraceRecorder::TraceRecorder(const std::string& path, Writing writing, const ModelConfig& config,
                             const TraceFacts& facts, bool scores)
    : path_(path), scores_(scores) {
  if (config.moe_layers() == 0)
    throw Error(ErrorKind::kConfig, "the model has no routed experts: there is nothing to record");
  shape_.model = facts.model;
  shape_.model_hash = facts.model_hash;
  shape_.policy = facts.policy;
  shape_.routers = facts.routers;
  shape_.n_experts = config.n_experts;
  shape_.top_k = config.top_k;
  shape_.layers = moe_layers_of(config);
  layers_.resize(shape_.layers.size());
  if (writing == Writing::kWhole) {
    file_ = std::make_unique<OutputFile>(path, true, 0);
  } else {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (fd_ < 0)
      throw Error(ErrorKind::kCannotCreate,
                  fmt::format("{}: cannot be created: {}", escape(path, 400), std::strerror(errno)));
  }
  write(trace_header(shape_) + "\n");
}

TraceRecorder::~TraceRecorder() {
  if (fd_ < 0) return;
  write(pending_);  // of a server, the last step
  ::close(fd_);
}

// Never throws: a full disk must not end a server. The first failure stays, and finish() tells it.
void TraceRecorder::write(const std::string& text) {
  if (failure_) return;
  if (file_) {
    try {
      file_->write(text);
    } catch (const Error& e) {
      failure_ = e;
    }
    return;
  }
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(fd_, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      failure_ = Error(ErrorKind::kIo, fmt::format("{}: cannot be written: {}", escape(path_, 400),
                                                   std::strerror(n < 0 ? errno : EIO)));
      return;
    }
    at += static_cast<size_t>(n);
  }
}

void TraceRecorder::routed(const RoutedLayer& now) {
  const Selection& chosen = now.chosen;
  if (now.m == 0 && !pending_.empty()) {
    write(pending_);
    pending_.clear();
  }
  Layer& layer = layers_.at(static_cast<size_t>(now.m));
  layer.offsets.clear();
  for (int t = 0; t < chosen.rows(); ++t) layer.offsets.push_back(chosen.begin(t));
  layer.offsets.push_back(chosen.size());
  layer.experts.assign(chosen.experts().begin(), chosen.experts().end());
  layer.weights.assign(now.weights.begin(), now.weights.end());
  if (!scores_) return;
  layer.rank.assign(now.in.rank_scores.begin(), now.in.rank_scores.end());
  layer.mix.assign(now.in.weight_scores.begin(), now.in.weight_scores.end());
}

void TraceRecorder::row(int row, uint64_t sequence, int position, int token, std::span<const float> logits) {
  if (failure_) return;
  TraceSequence s{fmt::format("{}", sequence), 1, {}, {}, {}, {}, {token}, {}};
  s.logits.push_back(logits.empty() ? 0 : checksum_of(logits));
  const auto K = static_cast<size_t>(shape_.top_k), E = static_cast<size_t>(shape_.n_experts);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    const auto r = static_cast<size_t>(row);
    if (r + 1 >= layer.offsets.size()) {
      failure_ = Error(ErrorKind::kConfig, fmt::format("{}: the model does not say how it routes", escape(path_, 400)));
      return;
    }
    const auto begin = static_cast<size_t>(layer.offsets.at(r)), end = static_cast<size_t>(layer.offsets.at(r + 1));
    if (end - begin > K) {
      failure_ = Error(ErrorKind::kConfig,
                       fmt::format("{}: {} ran {} experts in a row, a trace holds the model's {} per token",
                                   escape(path_, 400), escape(shape_.policy), end - begin, K));
      return;
    }
    for (size_t i = begin; i < end; ++i) {
      s.ids.push_back(static_cast<int16_t>(layer.experts[i]));
      s.weights.push_back(layer.weights[i]);
    }
    s.ids.resize((l + 1) * K, -1);
    s.weights.resize((l + 1) * K, 0);
    if (!scores_) continue;
    s.rank.insert(s.rank.end(), &layer.rank[r * E], &layer.rank[r * E] + E);
    s.mix.insert(s.mix.end(), &layer.mix[r * E], &layer.mix[r * E] + E);
  }
  pending_ += trace_line(shape_, s, 0, position) + "\n";
  ++tokens_;
}

void TraceRecorder::finish() {
  write(pending_);
  pending_.clear();
  if (failure_) throw Error(*failure_);
  if (file_) file_->commit();
  file_.reset();
}

ForcedReplay force_trace(Model& model, const std::string& hash, const Trace& trace, int chunk,
                         const std::function<void(double)>& progress) {
  CARPOOL_CHECK(chunk > 0);
  check_trace(trace, hash, model.config());
  ForcedReplay out;
  int longest = 1;
  for (const TraceSequence& s : trace.sequences) longest = std::max(longest, s.positions);
  KvCache kv(model.config(), KvCache::blocks_for(longest) * KvCache::kBlockTokens, model.kv_format());
  Forced forced(trace);
  Rows rows;
  for (const TraceSequence& s : trace.sequences) {
    std::vector<int> blocks;
    CARPOOL_CHECK(kv.take(KvCache::blocks_for(s.positions), blocks));
    for (int begin = 0; begin < s.positions; begin += chunk) {
      const int end = std::min(begin + chunk, s.positions);
      rows.clear();
      for (int p = begin; p < end; ++p) {
        const auto at = static_cast<size_t>(p);
        rows.push(s.tokens[at], p, blocks.data(), {Phase::kDecode, false, 0}, s.logits[at] != 0);
      }
      forced.at(s, begin);
      const Matrix logits = model.forward(rows, kv, forced, {.observer = &forced});
      for (size_t i = 0; i < rows.logit_rows.size(); ++i) {
        const int p = rows.positions[static_cast<size_t>(rows.logit_rows[i])];
        const std::span<const float> row(logits.row(static_cast<int>(i)), static_cast<size_t>(logits.cols));
        ++out.compared;
        if (checksum_of(row) == s.logits[static_cast<size_t>(p)]) {
          ++out.equal;
        } else if (out.first_difference.empty()) {
          out.first_difference = fmt::format("sequence {} position {}", escape(s.name, 60), p);
        }
      }
    }
    kv.give_back(blocks);
    out.tokens += s.positions;
    ++out.sequences;
    if (progress) progress(static_cast<double>(out.sequences) / static_cast<double>(trace.sequences.size()));
  }
  return out;
}

}  // namespace carpool
