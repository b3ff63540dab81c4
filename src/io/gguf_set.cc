// The parts of a split GGUF model: their names, and whether they belong together. See gguf.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "io/gguf.h"

namespace carpool {
namespace {

constexpr std::string_view kCount = "split.count", kNumber = "split.no", kTensors = "split.tensors.count";
constexpr std::string_view kArchitecture = "general.architecture";

// NAME-00002-of-00003.gguf: everything before the part's number (from 1), and the number of parts.
struct PartName {
  std::string before;
  int64_t number = 0, count = 0;

  std::string of(int64_t n) const { return fmt::format("{}-{:05}-of-{:05}.gguf", before, n, count); }
};

std::optional<int64_t> five_digits(std::string_view text) {
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

std::optional<PartName> part_name(const std::string& path) {
  constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (path.size() <= kForm.size()) return std::nullopt;
  const std::string_view ending = std::string_view(path).substr(path.size() - kForm.size());
  if (ending[0] != '-' || ending.substr(6, 4) != "-of-" || ending.substr(15) != ".gguf") return std::nullopt;
  const auto number = five_digits(ending.substr(1, 5)), count = five_digits(ending.substr(10, 5));
  if (!number || !count) return std::nullopt;
  return PartName{path.substr(0, path.size() - kForm.size()), *number, *count};
}

// What one part says of the whole must be what the first says, and its number must be its place.
void check_part(const GgufFile& file, const GgufFile& first, int64_t number, int64_t count) {
  const GgufMetadata& m = file.metadata();
  if (m.integer(kCount, 1, UINT16_MAX) != count) {
    m.fail(kCount, fmt::format("must be {} as in the first part, found {}", count, m.integer(kCount, 1, UINT16_MAX)));
  }
  const int64_t found = m.integer(kNumber, 0, UINT16_MAX);
  if (found != number - 1) m.fail(kNumber, fmt::format("must be {} in part {}, found {}", number - 1, number, found));
  const int64_t total = first.metadata().integer(kTensors, 0, INT32_MAX);
  if (m.integer(kTensors, 0, INT32_MAX) != total) {
    m.fail(kTensors, fmt::format("must be {} as in the first part, found {}: a part of another model", total,
                                 m.integer(kTensors, 0, INT32_MAX)));
  }
  if (m.has(kArchitecture) && m.string(kArchitecture) != first.metadata().string(kArchitecture)) {
    m.fail(kArchitecture, fmt::format("\"{}\", but \"{}\" in the first part: a part of another model",
                                      escape(m.string(kArchitecture)), escape(first.metadata().string(kArchitecture))));
  }
}

void check_tensors(const std::vector<GgufFile>& files) {
  const GgufMetadata& m = files[0].metadata();
  std::vector<std::string_view> names;
  for (const GgufFile& file : files) {
    for (const GgufTensor& t : file.tensors()) names.push_back(t.name);
  }
  if (const int64_t total = m.integer(kTensors, 0, INT32_MAX); static_cast<uint64_t>(total) != names.size()) {
    m.fail(kTensors, fmt::format("{}, but the parts hold {}", total, names.size()));
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    throw Error(ErrorKind::kMalformed, fmt::format("{}: tensor \"{}\": two parts hold it", m.where(), escape(*twice)));
  }
}

// Opens every part and reports all that are absent at once.
std::vector<GgufFile> open_parts(const PartName& name) {
  std::vector<GgufFile> files;
  std::vector<std::string> missing;
  for (int64_t n = 1; n <= name.count; ++n) {
    try {
      files.push_back(GgufFile::open(name.of(n), static_cast<int>(n - 1)));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kMissing) throw;
      if (missing.size() < 10) missing.push_back(e.what());
      if (missing.size() == 10) break;
    }
  }
  if (!missing.empty()) {
    throw Error(ErrorKind::kMissing, fmt::format("parts of a model in {} are missing or unreadable: {}{}", name.count,
                                                 fmt::join(missing, "; "), missing.size() == 10 ? "; ..." : ""));
  }
  return files;
}

}  // namespace

GgufSet GgufSet::open(const std::string& path) {
  GgufSet set;
  GgufFile given = GgufFile::open(path);
  const int64_t count = given.metadata().integer_or(kCount, 1, 0, UINT16_MAX);
  if (count <= 1) {
    set.files_.push_back(std::move(given));
    return set;
  }
  const GgufMetadata& m = given.metadata();
  if (static_cast<size_t>(count) > GgufLimits().parts) {
    m.fail(kCount, fmt::format("{} parts, the limit is {}", count, GgufLimits().parts));
  }
  const int64_t number = m.integer(kNumber, 0, count - 1) + 1;
  const std::optional<PartName> name = part_name(path);
  if (!name || name->count != count || name->number != number) {
    m.fail(kCount, fmt::format("this is part {} of {}, so the file's name must end in -{:05}-of-{:05}.gguf", number,
                               count, number, count));
  }
  set.files_ = open_parts(*name);
  for (size_t i = 0; i < set.files_.size(); ++i) {
    check_part(set.files_[i], set.files_[0], static_cast<int64_t>(i) + 1, count);
  }
  check_tensors(set.files_);
  return set;
}

}  // namespace carpool
