// See quantize_plan.h.
#include "model/quantize_plan.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "base/error.h"

namespace carpool {
namespace {

// Routers decide which experts run, and the weights of an indexer's heads which positions are seen; they stay float32
// whatever is asked, as biases do.
bool is_float(std::string_view name) {
  constexpr std::string_view kEndings[] = {".mlp.gate.weight", ".mlp.router.weight", ".block_sparse_moe.gate.weight",
                                           ".indexer.weights_proj.weight", "_bias"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](auto ending) { return name.ends_with(ending); });
}

// Formats with a scale per matrix are for products: rows of the embedding are looked up, and the head is what the model
// says, so both keep 16 bits, as in the checkpoints that such formats come from.
bool is_kept_apart(std::string_view name, Format format) {
  return (format == Format::kNVFP4 || format == Format::kFP8) &&
         (name == "model.embed_tokens.weight" || name == "lm_head.weight");
}

int block_of(Format format, Layout layout) {
  return format == Format::kNVFP4 && layout == Layout::kCheckpoint ? 16 : info(format).block_elements;
}

// What takes the place of a format whose blocks a row does not fill: never coarser than what was asked.
Format next_finer(Format format) {
  switch (format) {
    case Format::kF32:
    case Format::kBF16:
    case Format::kF16:
    case Format::kFP8:
    case Format::kQ8_0:
      return Format::kBF16;
    default:
      return Format::kQ8_0;
  }
}

class Planner {
 public:
  Planner(const QuantizeOptions& options, Layout layout)
      : options_(options), layout_(layout), matched_(options.exceptions.size()) {}

  PlannedTensor plan(const WeightSource& source, TensorPart part) {
    PlannedTensor p{std::move(part), Format::kF32, "routers, norms and biases stay float32"};
    if (p.part.shape.empty() || p.rows() > INT32_MAX || p.cols() > INT32_MAX) {
      throw Error(ErrorKind::kMalformed, fmt::format("{}: tensor \"{}\" has no values, or 2^31 rows or columns",
                                                     source.where(), escape(p.part.name)));
    }
    if (p.part.shape.size() != 2 || is_float(p.part.name)) return p;
    choose(p);
    return p;
  }

  void check_patterns() const {
    for (size_t i = 0; i < matched_.size(); ++i) {
      if (matched_[i]) continue;
      throw Error(ErrorKind::kUsage,
                  fmt::format("--format-for {}={}: matches no matrix whose format can be chosen",
                              escape(options_.exceptions[i].first), info(options_.exceptions[i].second).name));
    }
  }

 private:
  void choose(PlannedTensor& p) {
    p.format = options_.format;
    p.why = "as asked";
    bool exception = false;
    for (size_t i = 0; i < matched_.size(); ++i) {
      const auto& [pattern, format] = options_.exceptions[i];
      if (::fnmatch(pattern.c_str(), p.part.name.c_str(), 0) != 0) continue;
      matched_[i] = true;
      exception = true;
      p.format = format;
      p.why = "--format-for " + pattern;
    }
    if (!exception && is_kept_apart(p.part.name, p.format)) {
      p.why = fmt::format("embedding and head are not stored as {}", info(p.format).name);
      p.format = p.part.view.format == Format::kF16 ? Format::kF16 : Format::kBF16;
    }
    const Format asked = p.format;
    while (p.cols() % block_of(p.format, layout_) != 0) p.format = next_finer(p.format);
    if (p.format != asked) {
      p.why = fmt::format("rows of {} are not whole blocks of {} ({})", p.cols(), block_of(asked, layout_),
                          info(asked).name);
    }
    // A directory of safetensors has no way to hold the formats of blocks that the search above may end at.
    if (layout_ == Layout::kCheckpoint && p.format == Format::kQ8_0) p.format = Format::kBF16;
  }

  const QuantizeOptions& options_;
  const Layout layout_;
  std::vector<bool> matched_;
};

}  // namespace

std::vector<PlannedTensor> plan_quantize(const QuantizeOptions& options, const WeightSource& source,
                                         const PartsFor& what) {
  Planner planner(options, what.to ? Layout::kGguf : Layout::kCheckpoint);
  std::vector<PlannedTensor> out;
  for (const TensorInfo& tensor : source.tensors()) {
    for (TensorPart& part : tensor_parts(source, tensor, what)) out.push_back(planner.plan(source, std::move(part)));
  }
  planner.check_patterns();
  return out;
}

uint64_t planned_bytes(const PlannedTensor& p) {
  const auto rows = static_cast<uint64_t>(p.rows()), cols = static_cast<uint64_t>(p.cols());
  if (p.format == Format::kNVFP4) return rows * (cols / 2 + cols / 16) + sizeof(float);
  if (p.format == Format::kFP8) return rows * cols + (rows + 127) / 128 * ((cols + 127) / 128) * sizeof(float);
  const FormatInfo& f = info(p.format);
  return rows * (cols / static_cast<uint64_t>(f.block_elements)) * static_cast<uint64_t>(f.block_bytes);
}

}  // namespace carpool
