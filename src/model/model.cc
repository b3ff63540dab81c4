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

constexpr int kPanelLayout = 1;  // changes whenever tensor/panels.h changes what the bytes of a panel mean

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
      static_cast<uint64_t>(config.context) * static_cast<uint64_t>(config.head_dim) * sizeof(float);
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
  take_panels(plan, angles, model, *source, options, *ops, weights);
  weights.source = std::move(source);
  return Model(std::move(config), std::move(weights), std::move(ops), options.kv_format);
}

Model::Model(ModelConfig config, Weights weights, std::unique_ptr<Ops> ops, std::optional<KvFormat> kv_format)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      ops_(std::move(ops)),
      kv_format_(kv_format.value_or(default_kv_format(weights_.block_quantized()))) {
  // Angles in double, rounded once; positions up to the model's context.
  const int half = config_.head_dim / 2;
  rope_cos_.resize(static_cast<size_t>(config_.context) * half);
  rope_sin_.resize(rope_cos_.size());
  for (int i = 0; i < half; ++i) {
    const auto frequency = static_cast<float>(1.0 / std::pow(config_.rope_theta, 2.0 * i / config_.head_dim));
    for (int p = 0; p < config_.context; ++p) {
      const float angle = static_cast<float>(p) * frequency;
      rope_cos_[static_cast<size_t>(p) * half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      rope_sin_[static_cast<size_t>(p) * half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
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

uint64_t Model::step_bytes(int rows, int logit_rows) const {
  const ModelConfig& c = config_;
  const uint64_t per_row = 3 * static_cast<uint64_t>(c.width) +
                           2 * static_cast<uint64_t>(c.heads) * static_cast<uint64_t>(c.head_dim) +
                           2 * static_cast<uint64_t>(c.kv_width()) + 4 * static_cast<uint64_t>(c.n_experts);
  const uint64_t per_logit_row = static_cast<uint64_t>(c.width) + static_cast<uint64_t>(c.vocab);
  return sizeof(float) * (static_cast<uint64_t>(rows) * per_row + static_cast<uint64_t>(logit_rows) * per_logit_row);
}

void Model::reserve(int rows, int logit_rows) {
  const auto grow = [](std::vector<float>& buffer, int64_t n) {
    if (buffer.size() < static_cast<size_t>(n)) buffer.resize(static_cast<size_t>(n));
  };
  const int64_t T = rows;
  const ModelConfig& c = config_;
  for (auto* buffer : {&x_, &normed_, &projected_}) grow(*buffer, T * c.width);
  for (auto* buffer : {&q_, &attended_}) grow(*buffer, T * c.heads * c.head_dim);
  for (auto* buffer : {&k_, &v_}) grow(*buffer, T * c.kv_width());
  for (auto* buffer : {&router_logits_, &rank_, &mix_}) grow(*buffer, T * c.n_experts);
  grow(weights_of_slots_, T * c.n_experts);
  grow(last_, int64_t{logit_rows} * c.width);
  grow(logits_, int64_t{logit_rows} * c.vocab);
}

}  // namespace carpool
