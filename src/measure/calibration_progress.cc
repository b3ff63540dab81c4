#include "measure/calibration_progress.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "io/output_file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace carpool {
namespace {

[[noreturn]] void refuse(ErrorKind kind, const std::string& path, const std::string& what) {
  throw Error(kind, fmt::format("{}: {}; --restart begins anew", escape(path, 400), what));
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// The values of a tensor of this type and shape.
template <class T>
std::vector<T> values_of(const SafetensorsFile& file, const std::string& name, const std::string& dtype,
                         const std::vector<int64_t>& shape) {
  const TensorInfo* t = file.find(name);
  if (!t || t->dtype != dtype || t->shape != shape) {
    refuse(ErrorKind::kMalformed, file.path(),
           fmt::format("the progress of a calibration without a sound \"{}\"", name));
  }
  std::vector<T> values(t->bytes / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), t->data, t->bytes);  // of nothing there is no address
  return values;
}

}  // namespace

void save_progress(const std::string& path, const CalibrationProgress& progress) {
  const auto layers = static_cast<int64_t>(progress.sums.size());
  const auto each = static_cast<int64_t>(progress.sums.front().values().size());
  const auto done_layers = static_cast<int64_t>(progress.probes.size());
  const int64_t k0s = progress.probes.empty() ? 0 : std::ssize(progress.probes.front());
  const std::vector<int64_t> done = {progress.documents, done_layers};
  std::vector<double> probes;
  for (const auto& layer : progress.probes) {
    for (const Probe& p : layer) probes.insert(probes.end(), {p.kl, p.cross_entropy_delta});
  }
  SafetensorsWriter writer;
  const std::vector<int64_t> two = {2}, key = {std::ssize(progress.key)}, sums = {layers, each};
  const std::vector<int64_t> probed = {done_layers, k0s, 2};
  writer.add_tensor("done", "I64", two, 2 * sizeof(int64_t));
  writer.add_tensor("sums", "F64", sums, static_cast<uint64_t>(layers * each) * sizeof(double));
  writer.add_tensor("probes", "F64", probed, probes.size() * sizeof(double));
  writer.add_tensor("key", "U8", key, progress.key.size());
  OutputFile out(path, true, writer.file_bytes());
  writer.begin(out);
  out.write(bytes_of(done));
  for (const ExpertSums& s : progress.sums) out.write(std::as_bytes(s.values()));
  out.write(bytes_of(probes));
  out.write(progress.key);
  out.commit();
}

bool load_progress(const std::string& path, size_t probes_per_layer, CalibrationProgress& progress) {
  if (!file_exists(path)) return false;
  const SafetensorsFile file = SafetensorsFile::open(path);
  const TensorInfo* key = file.find("key");
  if (!key || key->dtype != "U8") refuse(ErrorKind::kMalformed, path, "not the progress of a calibration");
  if (std::string_view(reinterpret_cast<const char*>(key->data), key->bytes) != progress.key) {
    refuse(ErrorKind::kConfig, path, "the progress of a calibration with another model, text or options");
  }
  const std::vector<int64_t> done = values_of<int64_t>(file, "done", "I64", {2});
  const auto layers = static_cast<int64_t>(progress.sums.size());
  if (done[0] < 0 || done[0] > (1 << 24) || done[1] < 0 || done[1] > layers) {
    refuse(ErrorKind::kMalformed, path, fmt::format("{} documents and {} layers cannot be done", done[0], done[1]));
  }
  const auto each = static_cast<int64_t>(progress.sums.front().values().size());
  const std::vector<double> sums = values_of<double>(file, "sums", "F64", {layers, each});
  const int64_t k0s = done[1] > 0 ? static_cast<int64_t>(probes_per_layer) : 0;
  const std::vector<double> probes = values_of<double>(file, "probes", "F64", {done[1], k0s, 2});
  for (const auto* values : {&sums, &probes}) {
    if (!std::all_of(values->begin(), values->end(), [](double v) { return std::isfinite(v); })) {
      refuse(ErrorKind::kMalformed, path, "the progress of a calibration holds numbers that are not finite");
    }
  }
  progress.documents = static_cast<int>(done[0]);
  for (size_t m = 0; m < progress.sums.size(); ++m) {
    std::copy_n(sums.begin() + static_cast<std::ptrdiff_t>(m) * each, each, progress.sums[m].values().begin());
  }
  for (int64_t m = 0, at = 0; m < done[1]; ++m) {
    std::vector<Probe>& layer = progress.probes.emplace_back();
    for (int64_t i = 0; i < k0s; ++i, at += 2) {
      layer.push_back({probes[static_cast<size_t>(at)], probes[static_cast<size_t>(at) + 1]});
    }
  }
  return true;
}

}  // namespace carpool
