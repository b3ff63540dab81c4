// Loading a model and sizing its buffers; the layers are in forward.cc. See model.h.
#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/threads.h"
#include "base/time.h"
#include "model/dummy.h"
#include "model/dummy_weights.h"
#include "model/family.h"
#include "model/gguf_names.h"

namespace carpool {

namespace {

constexpr int kPanelLayout = 2;  // changes whenever tensor/panels.h changes what the bytes of a panel mean

// What a cached copy of the panels depends on.
std::string cache_key(const PanelPlan& plan, const WeightSource& source) {
  return fmt::format("{}layout {}\nmatrices {:016x}\n", source.identity(), kPanelLayout, checksum64(plan.layout()));
}

// Different for every place a model can lie in, and still to be recognised in the folder.
std::string cache_name(const std::string& model) {
  std::filesystem::path path = std::filesystem::absolute(model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // a slash at the end
  return fmt::format("{}-{:016x}", path.filename().string(), checksum64(path.string()));
}

// Allocates what `plan` needs and fills it, once it is certain to fit beside `besides` more bytes.
void fill_weights(const PanelPlan& plan, uint64_t besides, const std::string& what, const LoadOptions& options,
                  Ops& ops, Weights& weights) {
  require_memory(plan.bytes() + besides, what);
  weights.panels = LargeBuffer(plan.bytes(), options.huge_pages, "the weights");
  plan.fill(weights.panels.bytes().data(), ops, options.progress);
  weights.place(weights.panels.bytes().data());
}

// Maps the panels from the cache, or fills the buffer and leaves a cache behind for the next time. That the cache
// cannot be written is said and changes nothing else: the weights are there.
void take_panels(const PanelPlan& plan, uint64_t besides, const std::string& model, const WeightSource& source,
                 const LoadOptions& options, Ops& ops, Weights& weights) {
  const std::string what = fmt::format("{}: loading the weights", source.where());
  if (options.repack_cache.empty()) {
    fill_weights(plan, besides, what, options, ops, weights);
    return source.verify_unchanged();
  }
  require_memory(besides, what);
  const std::string name = cache_name(model), key = cache_key(plan, source);
  std::string why_not;
  weights.mapped = open_panel_cache(options.repack_cache, name, key, plan.bytes(), &why_not, options.huge_pages);
  if (weights.mapped && options.huge_pages == HugePages::kThp && weights.mapped->huge_bytes() == 0) {
    weights.mapped.reset();
    why_not = "the file system gives its files no huge pages";
  }
  if (weights.mapped) {
    source.verify_unchanged();
    return weights.place(weights.mapped->bytes().data());
  }
  std::error_code failed;  // a folder that cannot be is said before the work, not after it
  std::filesystem::create_directories(options.repack_cache, failed);
  if (failed) {
    throw Error(ErrorKind::kCannotCreate,
                fmt::format("{}: cannot be created: {}", escape(options.repack_cache, 400), failed.message()));
  }
  fill_weights(plan, besides, what, options, ops, weights);
  source.verify_unchanged();
  weights.cache_note = fmt::format("repack cache not used: {}", why_not);
  try {
    write_panel_cache(options.repack_cache, name, key, weights.panels.bytes());
    weights.cache_note += "; written anew";
  } catch (const Error& e) {
    weights.cache_note += fmt::format("; not written: {}", e.what());
  }
}

}  // namespace

Model Model::load(const std::string& model, const LoadOptions& options) {
  const bool dummy = is_dummy(model);
  ModelConfig config = dummy ? dummy_config(parse_dummy(model)) : read_model_config(model);
  const int threads = options.threads > 0 ? options.threads : default_threads();
  std::unique_ptr<Ops> ops = make_cpu_ops(threads, options.isa, options.activations);
  const uint64_t angles =
      static_cast<uint64_t>(config.context) * static_cast<uint64_t>(config.rope.dims) * sizeof(float);
  Weights weights;
  PanelPlan plan;
  if (dummy && !options.repack_cache.empty()) {
    throw Error(ErrorKind::kConfig, "a dummy model has no file, so there is nothing that a repack cache could keep");
  }
  if (dummy) {
    const DummySpec spec = parse_dummy(model);
    plan_dummy_weights(spec, config, plan, weights);
    const uint64_t embedding = static_cast<uint64_t>(config.vocab) * static_cast<uint64_t>(config.width);
    fill_weights(plan, angles + embedding, fmt::format("{}: loading the weights", model), options, *ops, weights);
    make_dummy_embedding(spec, config, weights);
    return Model(std::move(config), std::move(weights), std::move(ops), options.kv_format);
  }
  auto source = std::make_unique<WeightSource>(open_weights(model));
  TensorReader reader(*source, options.check_finite, plan);
  reader.progress = options.progress;
  find_family(config.family).take_weights(config, reader, weights);
  reader.finish();
  config.notes.insert(config.notes.end(), reader.notes().begin(), reader.notes().end());
  take_panels(plan, angles, model, *source, options, *ops, weights);
  weights.source = std::move(source);
  return Model(std::move(config), std::move(weights), std::move(ops), options.kv_format);
}

Model::Model(ModelConfig config, Weights weights, std::unique_ptr<Ops> ops, std::optional<KvFormat> kv_format)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      ops_(std::move(ops)),
      kv_format_(kv_format.value_or(default_kv_format(weights_.block_quantized()))) {
  const int half = config_.rope.dims / 2;
  const std::vector<float> frequencies = config_.rope.frequencies();
  const double size = config_.rope.attention_factor;
  rope_cos_.resize(static_cast<size_t>(config_.context) * half);
  rope_sin_.resize(rope_cos_.size());
  for (int p = 0; p < config_.context; ++p) {
    for (int i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequencies[static_cast<size_t>(i)];
      const size_t at = static_cast<size_t>(p) * half + i;
      rope_cos_[at] = static_cast<float>(std::cos(static_cast<double>(angle)) * size);
      rope_sin_[at] = static_cast<float>(std::sin(static_cast<double>(angle)) * size);
    }
  }
}

std::string Model::memory_text() const {
  const auto gb = [](size_t bytes) { return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9); };
  const std::string note = weights_.cache_note.empty() ? "" : " (" + weights_.cache_note + ")";
  if (weights_.mapped) {
    return fmt::format("{} mapped from {}, {} of it in huge pages", gb(weights_.mapped->bytes().size()),
                       escape(weights_.mapped->path(), 400), gb(weights_.mapped->huge_bytes()));
  }
  return fmt::format("repacked into {}, {} of it in huge pages{}", gb(weights_.panels.size()),
                     gb(std::min(weights_.panels.huge_bytes(), weights_.panels.size())), note);
}

void Model::lap(double StepTimes::* phase) {
  if (!times_) return;
  const double now = now_seconds();
  times_->*phase += now - lap_started_;
  lap_started_ = now;
}

Model::RowSizes Model::row_sizes() const {
  const ModelConfig& c = config_;
  RowSizes n;
  n.q = c.q_width();
  n.attended = c.heads * c.value_dim;
  n.k = c.kv_width();
  n.v = c.kv_heads * c.value_dim;
  if (c.latent) {
    n.low_rank = c.latent->q_rank;
    n.heads = c.heads * std::max(c.latent->nope + c.latent->rope, c.latent->value);
    n.v = 0;
  }
  if (c.sparse()) {
    n.indexer_q = c.indexer->heads * c.indexer->head_dim;
    n.indexer_k = c.indexer->head_dim;
    n.indexer_heads = c.indexer->heads;
  }
  return n;
}

uint64_t Model::step_bytes(int rows, int logit_rows) const {
  const ModelConfig& c = config_;
  const RowSizes n = row_sizes();
  const int64_t per_row = 3 * int64_t{c.width} + n.q + n.attended + n.k + n.v + n.low_rank + n.heads + n.indexer_q +
                          n.indexer_k + n.indexer_heads + 4 * int64_t{c.n_experts};
  const uint64_t per_logit_row = static_cast<uint64_t>(c.width) + static_cast<uint64_t>(c.vocab);
  return sizeof(float) * (static_cast<uint64_t>(rows) * static_cast<uint64_t>(per_row) +
                          static_cast<uint64_t>(logit_rows) * per_logit_row);
}

void Model::reserve(int rows, int logit_rows) {
  const auto grow = [](std::vector<float>& buffer, int64_t n) {
    if (buffer.size() < static_cast<size_t>(n)) buffer.resize(static_cast<size_t>(n));
  };
  const int64_t T = rows;
  const ModelConfig& c = config_;
  const RowSizes n = row_sizes();
  for (auto* buffer : {&x_, &normed_, &projected_}) grow(*buffer, T * c.width);
  grow(q_, T * n.q);
  grow(attended_, T * n.attended);
  grow(k_, T * n.k);
  grow(v_, T * n.v);
  grow(low_rank_, T * n.low_rank);
  grow(heads_, T * n.heads);
  grow(indexer_q_, T * n.indexer_q);
  grow(indexer_k_, T * n.indexer_k);
  grow(indexer_heads_, T * n.indexer_heads);
  for (auto* buffer : {&router_logits_, &rank_, &mix_}) grow(*buffer, T * c.n_experts);
  grow(weights_of_slots_, T * c.n_experts);
  grow(last_, int64_t{logit_rows} * c.width);
  grow(logits_, int64_t{logit_rows} * c.vocab);
}

}  // namespace carpool
