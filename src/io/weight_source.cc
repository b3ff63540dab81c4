// Reading the index, opening the shards, and the checks between them; tensors of GGUF files under their other names.
#include "io/weight_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"

namespace carpool {
namespace {

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr size_t kIndexBytes = 100'000'000;
constexpr size_t kShardLimit = 10'000;
constexpr size_t kTensorLimit = size_t{1} << 20;
constexpr size_t kListed = 10;  // differences spelled out in one message

// Collects what is wrong and turns it into one sentence: the first ten and the total.
class Differences {
 public:
  void add(std::string what) {
    if (listed_.size() < kListed) listed_.push_back(std::move(what));
    ++count_;
  }
  bool any() const { return count_ != 0; }
  // `what` says what the number before it counts.
  [[noreturn]] void refuse(ErrorKind kind, const std::string& where, std::string_view what) const {
    throw Error(kind, fmt::format("{}: {} {}: {}{}", where, count_, what, fmt::join(listed_, "; "),
                                  count_ > listed_.size() ? "; ..." : ""));
  }

 private:
  std::vector<std::string> listed_;
  size_t count_ = 0;
};

std::string in_quotes(std::string_view name) { return fmt::format("\"{}\"", escape(name)); }

// A shard must be a plain name in the model's own directory: the index comes with the download and must not
// be able to point anywhere else.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' && name.find_first_of("/\\") == name.npos &&
         name.find('\0') == name.npos;
}

struct Index {
  std::map<std::string, std::string, std::less<>> shard_of;  // tensor -> shard file name
  std::vector<std::string> shards;                           // each once, sorted
  int64_t total_size = -1;                                   // metadata.total_size, -1 when absent
};

Index read_index(const std::string& path) {
  const std::string where = escape(path, 400);
  JsonLimits limits;
  limits.max_bytes = kIndexBytes;
  limits.max_depth = 8;
  const json::value root = parse_json(read_text_file(path, kIndexBytes), where, limits);
  const JsonObject top(root, where);
  Index index;
  const JsonObject map = top.object("weight_map");
  if (map.raw().size() > SafetensorsLimits().tensors) {
    top.fail("weight_map", fmt::format("{} tensors, the limit is {}", map.raw().size(), SafetensorsLimits().tensors));
  }
  if (map.raw().empty()) top.fail("weight_map", "names no tensor");
  for (const auto& [name, value] : map.raw()) {
    const std::string shard = map.string(name);
    if (!is_plain_name(shard)) {
      map.fail(name,
               fmt::format("shard {} must be the plain name of a file in the model's directory", in_quotes(shard)));
    }
    index.shard_of.emplace(name, shard);
    index.shards.push_back(shard);
  }
  std::sort(index.shards.begin(), index.shards.end());
  index.shards.erase(std::unique(index.shards.begin(), index.shards.end()), index.shards.end());
  if (index.shards.size() > kShardLimit) {
    top.fail("weight_map", fmt::format("{} shards, the limit is {}", index.shards.size(), kShardLimit));
  }
  if (top.has("metadata")) {
    index.total_size = top.object("metadata").integer_or("total_size", -1, 0, INT64_MAX);
  }
  return index;
}

// Opens every shard, and reports all that cannot be opened at once: somebody with a broken download wants to
// know every file to fetch again, not the first.
std::vector<SafetensorsFile> open_shards(const std::string& model_dir, const Index& index) {
  std::vector<SafetensorsFile> files;
  Differences missing, broken;
  for (const std::string& name : index.shards) {
    try {
      files.push_back(SafetensorsFile::open(model_dir + "/" + name, static_cast<int>(files.size())));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kMissing && e.kind() != ErrorKind::kMalformed) throw;
      (e.kind() == ErrorKind::kMissing ? missing : broken).add(e.what());
    }
  }
  const std::string where = escape(model_dir, 400);
  const size_t wanted = index.shards.size();
  if (missing.any())
    missing.refuse(ErrorKind::kMissing, where, fmt::format("of {} shards missing or unreadable", wanted));
  if (broken.any()) broken.refuse(ErrorKind::kMalformed, where, fmt::format("of {} shards broken", wanted));
  return files;
}

// Every tensor of the index is in the shard it names and every tensor of a shard is in the index, under that
// shard. Two shards with one tensor therefore differ from the index in at least one of them.
void check_index(const Index& index, const std::vector<SafetensorsFile>& files, const std::string& where) {
  Differences differences;
  std::map<std::string_view, const SafetensorsFile*> file_of;
  for (size_t i = 0; i < files.size(); ++i) file_of[index.shards[i]] = &files[i];
  for (const auto& [tensor, shard] : index.shard_of) {
    if (file_of.at(shard)->find(tensor) != nullptr) continue;
    differences.add(fmt::format("tensor {} is not in shard {}", in_quotes(tensor), in_quotes(shard)));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string& shard = index.shards[i];
    for (const TensorInfo& t : files[i].tensors()) {
      const auto it = index.shard_of.find(t.name);
      if (it == index.shard_of.end()) {
        differences.add(fmt::format("tensor {} of shard {} is not in the index", in_quotes(t.name), in_quotes(shard)));
      } else if (it->second != shard) {
        const bool twice = file_of.at(it->second)->find(t.name) != nullptr;
        differences.add(twice ? fmt::format("tensor {} is in two shards, {} and {}", in_quotes(t.name),
                                            in_quotes(it->second), in_quotes(shard))
                              : fmt::format("tensor {} is in shard {}, the index says {}", in_quotes(t.name),
                                            in_quotes(shard), in_quotes(it->second)));
      }
    }
  }
  if (differences.any()) differences.refuse(ErrorKind::kMalformed, where, "differences between index and shards");
}

}  // namespace

void WeightSource::add(SafetensorsFile file) {
  for (TensorInfo& t : file.release_tensors()) {
    total_bytes_ += t.bytes;
    tensors_.push_back(std::move(t));
  }
  shards_.push_back(file.release_file());
}

void WeightSource::index_names() {
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
}

WeightSource WeightSource::open(const std::string& model_dir) {
  WeightSource source(escape(model_dir, 400));
  const std::string single = fmt::format("{}/{}", model_dir, kSingleName);
  const std::string index_path = fmt::format("{}/{}", model_dir, kIndexName);
  if (!file_exists(index_path)) {
    if (!file_exists(single)) {
      throw Error(ErrorKind::kMissing, fmt::format("{}: no weights: neither \"{}\" nor \"{}\" is there", source.where_,
                                                   kSingleName, kIndexName));
    }
    source.add(SafetensorsFile::open(single));
    source.index_names();
    return source;
  }
  const Index index = read_index(index_path);
  if (file_exists(single) && !std::binary_search(index.shards.begin(), index.shards.end(), kSingleName)) {
    throw Error(
        ErrorKind::kMalformed,
        fmt::format("{}: holds both \"{}\" and \"{}\", which names other files: remove the one that is not meant",
                    source.where_, kSingleName, kIndexName));
  }
  std::vector<SafetensorsFile> files = open_shards(model_dir, index);
  const std::string where = escape(index_path, 400);
  check_index(index, files, where);
  for (SafetensorsFile& f : files) source.add(std::move(f));
  source.index_names();
  if (index.total_size >= 0 && static_cast<uint64_t>(index.total_size) != source.total_bytes_) {
    throw Error(ErrorKind::kMalformed, fmt::format("{}: \"metadata\": \"total_size\": {} bytes, the shards hold {}",
                                                   where, index.total_size, source.total_bytes_));
  }
  return source;
}

void WeightSource::add(const GgufTensor& tensor, const GgufPlace& place) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kMalformed,
                fmt::format("{}: tensor {} at byte {}: {}", where_, in_quotes(tensor.name), tensor.file_offset, what));
  };
  const FormatInfo& format = info(tensor.format);
  const int64_t slices = place.sliced ? tensor.shape[0] : 1;
  if (static_cast<size_t>(slices) > kTensorLimit - std::min(tensors_.size(), kTensorLimit)) {
    refuse(fmt::format("{} slices, the limit is {} tensors in all", slices, kTensorLimit));
  }
  TensorInfo t;
  t.dtype = format.safetensors_name.empty() ? format.name : format.safetensors_name;
  t.shape.assign(tensor.shape.begin() + (place.sliced ? 1 : 0), tensor.shape.end());
  t.bytes = tensor.bytes.size() / static_cast<size_t>(slices);
  t.shard = tensor.part;
  if (place.scalar) {
    if (t.shape.size() > 1 || (t.shape.size() == 1 && t.shape[0] != 1)) {
      refuse(fmt::format("must be one number{}, has shape [{}]", place.sliced ? " per expert" : "",
                         fmt::join(tensor.shape, ", ")));
    }
    t.shape.clear();
  }
  if (place.heads) {
    if (t.shape.size() != 3) {
      refuse(fmt::format("must have three dimensions, has shape [{}]", fmt::join(tensor.shape, ", ")));
    }
    t.shape = {t.shape[0] * t.shape[1], t.shape[2]};
  }
  for (int64_t i = 0; i < slices; ++i) {
    const size_t offset = static_cast<size_t>(i) * t.bytes;
    t.name = place.sliced ? fmt::format("{}{}{}", place.before, i, place.after) : place.before + place.after;
    t.data = tensor.bytes.data() + offset;
    t.file_offset = tensor.file_offset + offset;
    total_bytes_ += t.bytes;
    tensors_.push_back(t);
  }
}

WeightSource WeightSource::of_gguf(GgufSet files, const GgufNaming& naming) {
  WeightSource source(files.where());
  for (GgufFile& file : files.files()) {
    for (const GgufTensor& t : file.tensors()) source.add(t, naming(t));
    source.shards_.push_back(file.release_file());
  }
  source.index_names();
  const auto& names = source.by_name_;
  for (size_t i = 1; i < names.size(); ++i) {
    const TensorInfo& t = source.tensors_[names[i]];
    if (t.name != source.tensors_[names[i - 1]].name) continue;
    throw Error(ErrorKind::kMalformed, fmt::format("{}: two tensors stand for {}", source.where_, in_quotes(t.name)));
  }
  return source;
}

const TensorInfo* WeightSource::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return it != by_name_.end() && tensors_[*it].name == name ? &tensors_[*it] : nullptr;
}

std::string WeightSource::identity() const {
  constexpr size_t kOwnLines = 16;  // files that have a line each
  std::string out, more;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const MappedFile& file = shards_[i];
    (i < kOwnLines ? out : more) +=
        fmt::format("file {} bytes {} modified {}\n", escape(std::filesystem::absolute(file.path()).string(), 4096),
                    file.bytes().size(), file.modified_ns());
  }
  if (!more.empty()) out += fmt::format("files {} others {:016x}\n", shards_.size(), checksum64(more));
  std::string all;
  for (const TensorInfo& t : tensors_) {
    all += fmt::format("{} {} {} {};", t.name, t.dtype, t.shard, t.file_offset);
    for (const int64_t n : t.shape) all += fmt::format("{},", n);
  }
  return out + fmt::format("tensors {:016x}\n", checksum64(all));
}

FileChange WeightSource::change() const {
  FileChange worst;
  for (const MappedFile& file : shards_) {
    FileChange found = file.change();
    if (found.kind > worst.kind) worst = std::move(found);
  }
  return worst;
}

void WeightSource::verify_unchanged() const {
  for (const MappedFile& file : shards_) file.verify_unchanged();
}

}  // namespace carpool
