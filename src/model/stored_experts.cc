// See stored_experts.h.
#include "model/stored_experts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace carpool {
namespace {

constexpr int64_t kFp8Block = 128, kMxfp4Block = 32, kBytesOfBlock = 16;

using Shape = std::vector<int64_t>;

[[noreturn]] void refuse(const WeightSource& source, const TensorInfo& t, const std::string& what) {
  throw Error(ErrorKind::kMalformed,
              fmt::format("{}: tensor \"{}\" at byte {}: {}", source.where(), escape(t.name), t.file_offset, what));
}

const TensorInfo& companion(const WeightSource& source, const TensorInfo& of, const std::string& name,
                            std::string_view dtype, const Shape& shape) {
  const TensorInfo* t = source.find(name);
  if (!t) refuse(source, of, fmt::format("\"{}\" is missing", escape(name)));
  if (t->dtype == dtype && t->shape == shape) return *t;
  refuse(source, *t,
         fmt::format("must be {} [{}] beside \"{}\", is {} [{}]", dtype, fmt::join(shape, ", "), escape(of.name),
                     escape(t->dtype), fmt::join(t->shape, ", ")));
}

// Part `e` of the outermost dimension.
TensorInfo slice(const TensorInfo& t, int64_t e) {
  TensorInfo out = t;
  out.bytes = t.bytes / static_cast<size_t>(t.shape[0]);
  out.shape.erase(out.shape.begin());
  out.data = t.data + static_cast<size_t>(e) * out.bytes;
  out.file_offset = t.file_offset + static_cast<size_t>(e) * out.bytes;
  return out;
}

void check_sizes(const WeightSource& source, const TensorInfo& t, size_t rank) {
  if (t.shape.size() != rank) {
    refuse(source, t,
           fmt::format("experts must have {} dimensions, the shape is [{}]", rank, fmt::join(t.shape, ", ")));
  }
  for (const int64_t n : t.shape) {
    if (n == 0) refuse(source, t, fmt::format("has no values, its shape is [{}]", fmt::join(t.shape, ", ")));
  }
}

StoredExperts mxfp4(const WeightSource& source, const TensorInfo& blocks, const std::string& name, int64_t e) {
  check_sizes(source, blocks, 4);
  if (blocks.dtype != "U8" || blocks.shape[3] != kBytesOfBlock) {
    refuse(source, blocks,
           fmt::format("must be U8 [experts, rows, columns / {}, {}], is {} [{}]", kMxfp4Block, kBytesOfBlock,
                       escape(blocks.dtype), fmt::join(blocks.shape, ", ")));
  }
  const Shape& s = blocks.shape;
  const TensorInfo& scales = companion(source, blocks, name + "_scales", "U8", {s[0], s[1], s[2]});
  StoredExperts out{s[0], s[1], s[2] * kMxfp4Block, true, {}};
  if (e >= out.experts) return out;
  out.matrix.parts = {slice(blocks, e), slice(scales, e)};
  out.matrix.parts[1].dtype = "F8_E8M0";  // what its bytes are
  out.matrix.view = {Format::kMXFP4, out.matrix.parts[0].data, out.rows, out.cols, out.matrix.parts[1].data};
  return out;
}

}  // namespace

bool has_experts(const WeightSource& source, const std::string& name) {
  return source.find(name) != nullptr || source.find(name + "_blocks") != nullptr;
}

StoredExperts stored_expert(const WeightSource& source, const std::string& name, int64_t e) {
  const TensorInfo* plain = source.find(name);
  if (!plain) return mxfp4(source, *source.find(name + "_blocks"), name, e);
  check_sizes(source, *plain, 3);
  const Shape& s = plain->shape;
  const Format* format = format_of_safetensors(plain->dtype);
  if (!format || info(*format).block_elements != 1) {
    refuse(source, *plain, fmt::format("experts have dtype {}, supported: F32, BF16, F16, F8_E4M3", plain->dtype));
  }
  StoredExperts out{s[0], s[1], s[2], false, {}};
  const std::string inverse = name + "_scale_inv";
  const bool scaled = *format == Format::kFP8;
  if (scaled || source.find(inverse)) {
    if (!scaled) refuse(source, *plain, fmt::format("is {} and cannot have scales", plain->dtype));
    companion(source, *plain, inverse, "F32",
              {s[0], (s[1] + kFp8Block - 1) / kFp8Block, (s[2] + kFp8Block - 1) / kFp8Block});
  }
  if (e >= out.experts) return out;
  out.matrix.parts = {slice(*plain, e)};
  if (scaled) out.matrix.parts.push_back(slice(*source.find(inverse), e));
  out.matrix.view = {*format, out.matrix.parts[0].data, out.rows, out.cols};
  if (scaled) out.matrix.view.scales = out.matrix.parts[1].data;
  return out;
}

}  // namespace carpool
