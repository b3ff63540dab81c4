// Parsing of one GGUF file. Nothing is read before the bytes it needs are known to be there. See gguf.h; the parts of
// a split model are put together in gguf_set.cc.
#include "io/gguf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>

#include "base/checked.h"
#include "base/error.h"

namespace carpool {

static_assert(std::endian::native == std::endian::little, "values are copied as they lie in the file");

namespace {

constexpr std::array<std::string_view, 13> kTypeNames = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                         "int32",  "float32", "bool",   "string", "array",
                                                         "uint64", "int64",   "float64"};
constexpr std::array<size_t, 13> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint64_t kDefaultAlignment = 32;
constexpr size_t kLeastKeyBytes = 8 + 4 + 1;             // an empty key, a type and a one-byte value
constexpr size_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;  // an empty name, one dimension
constexpr size_t kListed = 10;                           // tensors spelled out in one message

// Names of tensor types by number, for messages about those that formats.def does not have.
constexpr std::pair<int, std::string_view> kTensorTypes[] = {
    {3, "Q4_1"},   {6, "Q5_0"},     {7, "Q5_1"},    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {13, "Q5_K"},
    {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},
    {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},     {26, "I32"},   {27, "I64"},    {28, "F64"},
    {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {41, "Q1_0"}};

std::string tensor_type_name(uint32_t type) {
  for (const auto& [number, name] : kTensorTypes) {
    if (static_cast<uint32_t>(number) == type) return fmt::format("{} ({})", name, type);
  }
  return fmt::format("of unknown number {}", type);
}

// Names of the formats that have a tensor type.
std::string supported_tensor_types() {
  std::string out;
  for (int f = 0; f < kFormatCount; ++f) {
    const FormatInfo& i = info(static_cast<Format>(f));
    if (i.gguf_type >= 0) out += fmt::format("{}{}", out.empty() ? "" : ", ", i.name);
  }
  return out;
}

bool is_integer(GgufType type) { return type <= GgufType::kI32 || type == GgufType::kU64 || type == GgufType::kI64; }

template <class T>
T read_as(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

// The stored integer; nullopt when it is above int64.
std::optional<int64_t> read_integer(GgufType type, const std::byte* p) {
  switch (type) {
    case GgufType::kU8:
      return read_as<uint8_t>(p);
    case GgufType::kI8:
      return read_as<int8_t>(p);
    case GgufType::kU16:
      return read_as<uint16_t>(p);
    case GgufType::kI16:
      return read_as<int16_t>(p);
    case GgufType::kU32:
      return read_as<uint32_t>(p);
    case GgufType::kI32:
      return read_as<int32_t>(p);
    case GgufType::kI64:
      return read_as<int64_t>(p);
    default: {
      const auto value = read_as<uint64_t>(p);
      if (value > INT64_MAX) return std::nullopt;
      return static_cast<int64_t>(value);
    }
  }
}

// What a value is, for messages: "uint32", "array of string".
std::string described(const GgufMetadata::Entry& e) {
  if (e.type != GgufType::kArray) return std::string(name(e.type));
  return fmt::format("array of {} {}", e.count, name(e.element));
}

}  // namespace

std::string_view name(GgufType type) { return kTypeNames[static_cast<size_t>(type)]; }

// One pass over a file, front to back. `left` bytes are there; every read is checked against them.
class GgufReader {
 public:
  GgufReader(GgufFile& file, int part, const GgufLimits& limits)
      : file_(file), bytes_(file.file_.bytes()), part_(part), limits_(limits) {
    file_.metadata_.where_ = escape(file.path(), 400);
  }

  void read() {
    read_start();
    read_metadata();
    read_alignment();
    read_tensors();
    place_tensors();
  }

 private:
  // What stands in the infos before the data is known to be there.
  struct Declared {
    GgufTensor tensor;
    uint64_t offset = 0, size = 0;  // in the data
    size_t info_offset = 0;         // in the file
  };

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kMalformed, file_.metadata_.where_ + ": " + what);
  }
  [[noreturn]] void refuse_at(size_t byte, const std::string& what) const {
    refuse(fmt::format("{} at byte {}: {}", context_, byte, what));
  }
  size_t left() const { return bytes_.size() - at_; }

  // The next `n` bytes; `what` names them.
  const std::byte* take(uint64_t n, std::string_view what) {
    if (n > left()) refuse_at(at_, fmt::format("{} needs {} bytes, {} left in the file", what, n, left()));
    const std::byte* p = bytes_.data() + at_;
    at_ += static_cast<size_t>(n);
    return p;
  }
  template <class T>
  T number(std::string_view what) {
    return read_as<T>(take(sizeof(T), what));
  }
  std::string_view string(size_t limit, std::string_view what) {
    const size_t start = at_;
    const auto n = number<uint64_t>(what);
    if (n > limit) refuse_at(start, fmt::format("{} of {} bytes, the limit is {}", what, n, limit));
    return {reinterpret_cast<const char*>(take(n, what)), static_cast<size_t>(n)};
  }

  void read_start() {
    context_ = "header";
    constexpr char kMagic[4] = {'G', 'G', 'U', 'F'};
    const std::byte* magic = take(4, "the magic");
    if (std::memcmp(magic, kMagic, 4) != 0) {
      const std::string_view found(reinterpret_cast<const char*>(magic), 4);
      refuse_at(0, fmt::format("must start with \"GGUF\", found \"{}\"", escape(found)));
    }
    const size_t at = at_;
    file_.version_ = number<uint32_t>("the version");
    if (const uint32_t swapped = __builtin_bswap32(file_.version_); file_.version_ > 0xffff && swapped <= 0xffff) {
      refuse_at(at,
                fmt::format("version {} in the wrong byte order: a big-endian file, only little-endian is supported",
                            swapped));
    }
    if (file_.version_ != 2 && file_.version_ != 3) {
      refuse_at(at, fmt::format("version {} is not supported; supported: 2, 3", file_.version_));
    }
    n_tensors_ = count(limits_.tensors, kLeastTensorBytes, "tensors");
    n_keys_ = count(limits_.keys, kLeastKeyBytes, "metadata keys");
  }

  // A number of records that follow later in the file and take at least `least` bytes each.
  uint64_t count(size_t limit, size_t least, std::string_view what) {
    const size_t at = at_;
    const auto n = number<uint64_t>("a count");
    if (n > limit) refuse_at(at, fmt::format("{} {}, the limit is {}", n, what, limit));
    if (n > left() / least) {
      refuse_at(at, fmt::format("{} {} of at least {} bytes each, {} bytes left in the file", n, what, least, left()));
    }
    return n;
  }

  GgufType value_type(std::string_view what) {
    const size_t at = at_;
    const auto type = number<uint32_t>(what);
    if (type >= kTypeNames.size()) {
      refuse_at(at, fmt::format("{} {} is unknown, known are 0 to {}", what, type, kTypeNames.size() - 1));
    }
    return static_cast<GgufType>(type);
  }

  void read_metadata() {
    std::vector<GgufMetadata::Entry>& entries = file_.metadata_.entries_;
    entries.reserve(static_cast<size_t>(n_keys_));
    for (uint64_t i = 0; i < n_keys_; ++i) {
      context_ = fmt::format("metadata key {}", i);
      GgufMetadata::Entry e{};
      e.file_offset = at_;
      e.key = string(limits_.key_bytes, "the key");
      context_ = fmt::format("key \"{}\"", escape(e.key));
      if (e.key.empty()) refuse_at(e.file_offset, "the key is empty");
      e.type = value_type("the value's type");
      read_value(e);
      entries.push_back(e);
    }
    // A sort rather than a hash set: keys come from the file and could be made to collide.
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return std::tie(a.key, a.file_offset) < std::tie(b.key, b.file_offset);
    });
    for (size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].key != entries[i - 1].key) continue;
      context_ = fmt::format("key \"{}\"", escape(entries[i].key));
      refuse_at(entries[i].file_offset, "the key is there twice");
    }
  }

  void read_value(GgufMetadata::Entry& e) {
    if (e.type == GgufType::kString) {
      const std::string_view text = string(limits_.string_bytes, "a string");
      e.bytes = std::as_bytes(std::span(text));
      return;
    }
    if (e.type != GgufType::kArray) {
      const size_t n = kTypeBytes[static_cast<size_t>(e.type)];
      e.bytes = {take(n, "the value"), n};
      if (e.type == GgufType::kBool) check_bools(e.bytes);
      return;
    }
    e.element = value_type("the elements' type");
    if (e.element == GgufType::kArray) refuse_at(at_, "arrays of arrays are not supported");
    const size_t element_bytes = kTypeBytes[static_cast<size_t>(e.element)];
    const size_t least = e.element == GgufType::kString ? 8 : element_bytes;
    e.count = count(limits_.array_elements, least, "array elements");
    const size_t begin = at_;
    if (e.element == GgufType::kString) {
      for (uint64_t i = 0; i < e.count; ++i) string(limits_.string_bytes, "a string");
    } else {
      take(e.count * element_bytes, "the array");  // at most array_elements * 8
    }
    e.bytes = bytes_.subspan(begin, at_ - begin);
    if (e.element == GgufType::kBool) check_bools(e.bytes);
  }

  void check_bools(std::span<const std::byte> values) const {
    for (const std::byte b : values) {
      if (b > std::byte{1}) refuse_at(at_, fmt::format("a bool must be 0 or 1, found {}", static_cast<int>(b)));
    }
  }

  void read_alignment() {
    constexpr std::string_view kKey = "general.alignment";
    file_.alignment_ = kDefaultAlignment;
    const GgufMetadata& metadata = file_.metadata_;
    if (!metadata.has(kKey)) return;
    if (metadata.find(kKey)->type != GgufType::kU32) {
      metadata.fail(kKey, fmt::format("must be uint32, found {}", described(*metadata.find(kKey))));
    }
    const auto value = static_cast<uint32_t>(metadata.integer(kKey, 0, UINT32_MAX));
    if (!std::has_single_bit(value) || value < limits_.min_alignment || value > limits_.max_alignment) {
      metadata.fail(kKey, fmt::format("must be a power of two from {} to {}, found {}", limits_.min_alignment,
                                      limits_.max_alignment, value));
    }
    file_.alignment_ = value;
  }

  void read_tensors() {
    declared_.reserve(static_cast<size_t>(n_tensors_));
    for (uint64_t i = 0; i < n_tensors_; ++i) {
      context_ = fmt::format("tensor info {}", i);
      Declared d;
      d.info_offset = at_;
      d.tensor.name = string(limits_.tensor_name_bytes, "the name");
      context_ = fmt::format("tensor \"{}\"", escape(d.tensor.name));
      if (d.tensor.name.empty()) refuse_at(d.info_offset, "the name is empty");
      read_shape(d);
      if (const auto type = number<uint32_t>("the type"); const Format* format = format_of_gguf(type)) {
        d.tensor.format = *format;
        d.size = size_of(d);
      } else {
        if (unsupported_.size() < kListed) {
          unsupported_.push_back(fmt::format("\"{}\" is {}", escape(d.tensor.name), tensor_type_name(type)));
        }
        ++n_unsupported_;
      }
      d.offset = number<uint64_t>("the offset");
      declared_.push_back(std::move(d));
    }
    if (n_unsupported_ > 0) {
      refuse(fmt::format("{} tensor{} of a type that is not supported: {}{}; supported: {}", n_unsupported_,
                         n_unsupported_ == 1 ? "" : "s", fmt::join(unsupported_, "; "),
                         n_unsupported_ > unsupported_.size() ? "; ..." : "", supported_tensor_types()));
    }
    check_names_once();
  }

  void read_shape(Declared& d) {
    const size_t at = at_;
    const auto rank = number<uint32_t>("the number of dimensions");
    if (rank < 1 || rank > limits_.rank) {
      refuse_at(at, fmt::format("{} dimensions, must be 1 to {}", rank, limits_.rank));
    }
    for (uint32_t i = 0; i < rank; ++i) {
      const size_t dimension_at = at_;
      const auto n = number<int64_t>("a dimension");
      if (n < 1) refuse_at(dimension_at, fmt::format("dimension {} is {}, must be at least 1", i, n));
      d.tensor.shape.push_back(n);
    }
    std::reverse(d.tensor.shape.begin(), d.tensor.shape.end());  // the file has the innermost first
  }

  uint64_t size_of(const Declared& d) const {
    const FormatInfo& format = info(d.tensor.format);
    const int64_t row = d.tensor.shape.back();
    if (row % format.block_elements != 0) {
      refuse_at(d.info_offset,
                fmt::format("rows of {} are not whole blocks of {} ({})", row, format.block_elements, format.name));
    }
    std::optional<uint64_t> size = static_cast<uint64_t>(row / format.block_elements);
    size = checked_mul(*size, static_cast<uint64_t>(format.block_bytes));
    for (size_t i = 0; size && i + 1 < d.tensor.shape.size(); ++i) {
      size = checked_mul(*size, static_cast<uint64_t>(d.tensor.shape[i]));
    }
    // Far above any file, and such that rounding up to the alignment cannot wrap.
    if (!size || *size > uint64_t{1} << 62) {
      refuse_at(d.info_offset, fmt::format("shape [{}] of {} needs more than 2^62 bytes",
                                           fmt::join(d.tensor.shape, ", "), format.name));
    }
    return *size;
  }

  void check_names_once() {
    std::vector<uint32_t> order(declared_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::tie(declared_[a].tensor.name, a) < std::tie(declared_[b].tensor.name, b);
    });
    for (size_t i = 1; i < order.size(); ++i) {
      const Declared& d = declared_[order[i]];
      if (d.tensor.name != declared_[order[i - 1]].tensor.name) continue;
      context_ = fmt::format("tensor \"{}\"", escape(d.tensor.name));
      refuse_at(d.info_offset, "duplicate tensor, the header names it twice");
    }
  }

  // Offsets must be the running sum of padded sizes, and the data must end where the file does.
  void place_tensors() {
    const uint64_t a = file_.alignment_;
    const auto padded = [a](uint64_t n) { return (n + a - 1) / a * a; };
    if (declared_.empty()) {
      if (padded(at_) < bytes_.size())
        refuse(fmt::format("{} bytes follow the header of a file without tensors", left()));
      return;
    }
    const uint64_t start = padded(at_);
    uint64_t position = 0, end = 0;
    for (Declared& d : declared_) {
      context_ = fmt::format("tensor \"{}\"", escape(d.tensor.name));
      if (d.offset != position) {
        const char* what = d.offset < position ? "overlaps the tensor before it" : "leaves a hole before it";
        refuse_at(d.info_offset, fmt::format("{}: its offset is {}, must be {}", what, d.offset, position));
      }
      const uint64_t begin = start + position;  // below the file's size plus one alignment
      const uint64_t there = begin < bytes_.size() ? bytes_.size() - begin : 0;
      if (d.size > there) {
        refuse_at(static_cast<size_t>(begin), fmt::format("needs {} bytes, {} left in the file", d.size, there));
      }
      d.tensor.file_offset = static_cast<size_t>(begin);
      d.tensor.bytes = bytes_.subspan(static_cast<size_t>(begin), static_cast<size_t>(d.size));
      d.tensor.part = part_;
      end = begin + d.size;
      position += padded(d.size);
      file_.tensors_.push_back(std::move(d.tensor));
    }
    if (bytes_.size() > start + position) {
      refuse(fmt::format("the tensors end at byte {}, the file has {}", end, bytes_.size()));
    }
  }

  GgufFile& file_;
  std::span<const std::byte> bytes_;
  size_t at_ = 0;  // of the next byte
  const int part_;
  const GgufLimits limits_;
  std::string context_;  // what is being read, for messages
  uint64_t n_tensors_ = 0, n_keys_ = 0;
  std::vector<Declared> declared_;
  std::vector<std::string> unsupported_;
  size_t n_unsupported_ = 0;
};

GgufFile GgufFile::open(const std::string& path, int part, const GgufLimits& limits) {
  GgufFile file(MappedFile::open(path));
  GgufReader(file, part, limits).read();
  return file;
}

const GgufMetadata::Entry* GgufMetadata::find(std::string_view key) const {
  const auto it = std::lower_bound(entries_.begin(), entries_.end(), key,
                                   [](const Entry& e, std::string_view wanted) { return e.key < wanted; });
  return it != entries_.end() && it->key == key ? &*it : nullptr;
}

void GgufMetadata::fail(std::string_view key, const std::string& what) const {
  const Entry* e = find(key);
  const std::string place = e ? fmt::format(" at byte {}", e->file_offset) : "";
  throw Error(ErrorKind::kMalformed, fmt::format("{}: key \"{}\"{}: {}", where_, escape(key), place, what));
}

const GgufMetadata::Entry& GgufMetadata::get(std::string_view key) const {
  const Entry* e = find(key);
  if (!e) fail(key, "is missing");
  return *e;
}

int64_t GgufMetadata::integer(std::string_view key, int64_t low, int64_t high) const {
  const Entry& e = get(key);
  if (!is_integer(e.type)) fail(key, fmt::format("must be an integer, found {}", described(e)));
  const std::optional<int64_t> value = read_integer(e.type, e.bytes.data());
  if (!value || *value < low || *value > high) {
    const std::string found = value ? std::to_string(*value) : std::to_string(read_as<uint64_t>(e.bytes.data()));
    fail(key, fmt::format("must be {} to {}, found {}", low, high, found));
  }
  return *value;
}

int64_t GgufMetadata::integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double GgufMetadata::number(std::string_view key) const {
  const Entry& e = get(key);
  if (e.type != GgufType::kF32 && e.type != GgufType::kF64) {
    fail(key, fmt::format("must be float32 or float64, found {}", described(e)));
  }
  const double value =
      e.type == GgufType::kF32 ? double{read_as<float>(e.bytes.data())} : read_as<double>(e.bytes.data());
  if (!std::isfinite(value)) fail(key, fmt::format("must be finite, found {}", value));
  return value;
}

bool GgufMetadata::boolean(std::string_view key) const {
  const Entry& e = get(key);
  if (e.type != GgufType::kBool) fail(key, fmt::format("must be bool, found {}", described(e)));
  return e.bytes[0] != std::byte{0};
}

bool GgufMetadata::boolean_or(std::string_view key, bool fallback) const { return has(key) ? boolean(key) : fallback; }

std::string_view GgufMetadata::string(std::string_view key) const {
  const Entry& e = get(key);
  if (e.type != GgufType::kString) fail(key, fmt::format("must be string, found {}", described(e)));
  return {reinterpret_cast<const char*>(e.bytes.data()), e.bytes.size()};
}

std::vector<std::string_view> GgufMetadata::strings(std::string_view key) const {
  const Entry& e = get(key);
  if (e.type != GgufType::kArray || e.element != GgufType::kString) {
    fail(key, fmt::format("must be an array of strings, found {}", described(e)));
  }
  std::vector<std::string_view> out;
  out.reserve(static_cast<size_t>(e.count));
  const std::byte* p = e.bytes.data();  // every length was checked when the file was opened
  for (uint64_t i = 0; i < e.count; ++i) {
    const auto n = static_cast<size_t>(read_as<uint64_t>(p));
    out.emplace_back(reinterpret_cast<const char*>(p) + 8, n);
    p += 8 + n;
  }
  return out;
}

std::vector<int64_t> GgufMetadata::integers(std::string_view key) const {
  const Entry& e = get(key);
  if (e.type != GgufType::kArray || !is_integer(e.element)) {
    fail(key, fmt::format("must be an array of integers, found {}", described(e)));
  }
  const size_t width = kTypeBytes[static_cast<size_t>(e.element)];
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(e.count));
  for (uint64_t i = 0; i < e.count; ++i) {
    const std::optional<int64_t> value = read_integer(e.element, e.bytes.data() + i * width);
    if (!value) fail(key, fmt::format("element {} is above 2^63", i));
    out.push_back(*value);
  }
  return out;
}

bool is_gguf_path(std::string_view path) {
  constexpr std::string_view kEnding = ".gguf";
  if (path.size() < kEnding.size()) return false;
  return std::equal(kEnding.begin(), kEnding.end(), path.end() - static_cast<ptrdiff_t>(kEnding.size()),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
}

}  // namespace carpool
