// The header reader: a state machine over JSON events, so that memory is bounded by the header's size whatever
// it holds, and every refusal knows its byte.
#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "io/dtype.h"

namespace carpool {
namespace {

namespace json = boost::json;

constexpr size_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

// A tensor as the header declares it, offsets relative to the data.
struct Declared {
  TensorInfo info;
  uint64_t begin = 0, end = 0;
};

std::string tensor_at(std::string_view name, uint64_t byte) {
  return fmt::format("tensor \"{}\" at byte {}", escape(name), byte);
}

// The SAX handler of the header. Any event that the grammar above does not allow ends the parse with a problem.
class HeaderHandler {
 public:
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = size_t{1} << 16;
  static constexpr size_t max_string_size = size_t{16} << 20;

  HeaderHandler(uint64_t data_bytes, const SafetensorsLimits& limits) : data_bytes_(data_bytes), limits_(limits) {}

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code& ec) {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        return name_ == kMetadataKey ? begin_metadata(ec) : begin_tensor(ec);
      default:
        return wrong_type("an object", ec);
    }
  }
  bool on_object_end(size_t, json::error_code& ec) {
    if (place_ == Place::kTensor && !finish_tensor(ec)) return false;
    place_ = place_ == Place::kTop ? Place::kStart : Place::kTop;
    return true;
  }
  bool on_array_begin(json::error_code& ec) {
    if (place_ != Place::kTensor || field_ == "dtype") return wrong_type("an array", ec);
    place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }
  bool on_array_end(size_t, json::error_code&) {
    place_ = Place::kTensor;
    return true;
  }
  bool on_key_part(json::string_view part, size_t, json::error_code&) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, json::error_code& ec) {
    text_.append(part.data(), part.size());
    const std::string key = std::exchange(text_, {});
    switch (place_) {
      case Place::kTop:
        return on_name(key, ec);
      case Place::kMetadata:
        return on_metadata_key(key, ec);
      default:
        return on_field(key, ec);
    }
  }
  bool on_string_part(json::string_view part, size_t, json::error_code&) {
    if (place_ == Place::kTensor && text_.size() + part.size() < 64) text_.append(part.data(), part.size());
    return true;
  }
  bool on_string(json::string_view part, size_t, json::error_code& ec) {
    if (place_ == Place::kMetadata) return true;  // a value nobody here reads
    if (place_ != Place::kTensor || field_ != "dtype") return wrong_type("a string", ec);
    text_.append(part.data(), part.size());
    current_.info.dtype = std::exchange(text_, {});
    dtype_ = find_dtype(current_.info.dtype);
    if (dtype_ != nullptr) return true;
    return fail(fmt::format("dtype \"{}\" is not one of {}", escape(current_.info.dtype, 64), dtype_names()), ec);
  }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t value, json::string_view text, json::error_code& ec) {
    // "-0" is an integer to the JSON reader and not a size.
    if (value < 0 || text.starts_with('-')) return bad_number(fmt::format("{}", value), ec);
    return on_size(static_cast<uint64_t>(value), ec);
  }
  bool on_uint64(uint64_t value, json::string_view, json::error_code& ec) { return on_size(value, ec); }
  bool on_double(double value, json::string_view, json::error_code& ec) {
    return bad_number(fmt::format("{}", value), ec);
  }
  bool on_bool(bool, json::error_code& ec) { return wrong_type("a boolean", ec); }
  bool on_null(json::error_code& ec) { return wrong_type("null", ec); }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

  // What is wrong; empty when the parser itself found no JSON.
  const std::string& problem() const { return problem_; }
  // The tensor that the problem belongs to, if any.
  const std::optional<std::string>& problem_tensor() const { return problem_tensor_; }
  std::vector<Declared>& declared() { return declared_; }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };

  bool fail(std::string what, json::error_code& ec) {
    problem_ = std::move(what);
    if (place_ != Place::kStart && place_ != Place::kMetadata && !name_.empty() && name_ != kMetadataKey) {
      problem_tensor_ = name_;
    }
    ec = json::make_error_code(json::error::syntax);
    return false;
  }

  // What the place wanted instead of a value of this type.
  bool wrong_type(std::string_view found, json::error_code& ec) {
    switch (place_) {
      case Place::kMetadata:
        return fail(fmt::format("\"{}\": \"{}\" must be a string, found {}", kMetadataKey, escape(field_), found), ec);
      case Place::kTensor:
        return fail(fmt::format("\"{}\" must be {}, found {}", field_,
                                field_ == "dtype" ? "a string" : "an array of integers", found),
                    ec);
      case Place::kShape:
      case Place::kOffsets:
        return fail(fmt::format("\"{}\" must hold integers, found {}", field_, found), ec);
      default:
        if (place_ == Place::kTop && name_ == kMetadataKey) {
          return fail(fmt::format("\"{}\" must be an object of strings, found {}", kMetadataKey, found), ec);
        }
        return fail(fmt::format("expected an object, found {}", found), ec);
    }
  }

  bool bad_number(const std::string& value, json::error_code& ec) {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return wrong_type("the number " + value, ec);
    return fail(fmt::format("\"{}\" must hold integers of at least 0, found {}", field_, value), ec);
  }

  bool on_size(uint64_t value, json::error_code& ec) {
    if (place_ == Place::kShape) {
      if (current_.info.shape.size() == limits_.rank) {
        return fail(fmt::format("\"shape\" has more than {} entries", limits_.rank), ec);
      }
      if (value > static_cast<uint64_t>(INT64_MAX)) {
        return fail(fmt::format("\"shape\" holds {}, the limit is {}", value, INT64_MAX), ec);
      }
      current_.info.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (n_offsets_ == 2) return fail("\"data_offsets\" must have 2 entries, found more", ec);
      (n_offsets_ == 0 ? current_.begin : current_.end) = value;
      ++n_offsets_;
      return true;
    }
    return wrong_type(fmt::format("the number {}", value), ec);
  }

  bool on_name(const std::string& key, json::error_code& ec) {
    name_ = key;
    if (key.size() > limits_.name_bytes) {
      return fail(fmt::format("the name has {} bytes, the limit is {}", key.size(), limits_.name_bytes), ec);
    }
    return true;
  }

  bool on_metadata_key(const std::string& key, json::error_code& ec) {
    field_ = key;
    if (metadata_keys_.size() == limits_.metadata_entries) {
      return fail(fmt::format("\"{}\" has more than {} entries", kMetadataKey, limits_.metadata_entries), ec);
    }
    if (!metadata_keys_.insert(key).second) {
      return fail(fmt::format("\"{}\": duplicate key \"{}\"", kMetadataKey, escape(key)), ec);
    }
    return true;
  }

  bool on_field(const std::string& key, json::error_code& ec) {
    bool* seen = key == "dtype"          ? &has_dtype_
                 : key == "shape"        ? &has_shape_
                 : key == "data_offsets" ? &has_offsets_
                                         : nullptr;
    if (seen == nullptr) return fail(fmt::format("unknown field \"{}\"", escape(key)), ec);
    if (std::exchange(*seen, true)) return fail(fmt::format("duplicate field \"{}\"", key), ec);
    field_ = key;
    return true;
  }

  bool begin_metadata(json::error_code& ec) {
    if (std::exchange(has_metadata_, true)) return fail(fmt::format("duplicate key \"{}\"", kMetadataKey), ec);
    place_ = Place::kMetadata;
    return true;
  }

  bool begin_tensor(json::error_code& ec) {
    if (declared_.size() == limits_.tensors) return fail(fmt::format("more than {} tensors", limits_.tensors), ec);
    place_ = Place::kTensor;
    current_ = {};
    current_.info.name = name_;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    n_offsets_ = 0;
    return true;
  }

  // All that one entry must satisfy on its own; what entries must satisfy together is check_layout.
  bool finish_tensor(json::error_code& ec) {
    for (const auto& [seen, field] :
         {std::pair{has_dtype_, "dtype"}, {has_shape_, "shape"}, {has_offsets_, "data_offsets"}}) {
      if (!seen) return fail(fmt::format("\"{}\" is missing", field), ec);
    }
    const uint64_t begin = current_.begin, end = current_.end;
    if (n_offsets_ != 2) return fail(fmt::format("\"data_offsets\" must have 2 entries, found {}", n_offsets_), ec);
    if (begin > end)
      return fail(fmt::format("\"data_offsets\" begin at {} and end at {}, before that", begin, end), ec);
    if (end > data_bytes_) {
      return fail(fmt::format("\"data_offsets\" end at {}, the file has {} bytes of data", end, data_bytes_), ec);
    }
    std::optional<uint64_t> bits = static_cast<uint64_t>(1);
    for (const int64_t d : current_.info.shape) {
      if (bits) bits = checked_mul(*bits, static_cast<uint64_t>(d));
    }
    if (bits) bits = checked_mul(*bits, static_cast<uint64_t>(dtype_->bits));
    const std::string what = fmt::format("shape [{}] of {}", fmt::join(current_.info.shape, ", "), current_.info.dtype);
    if (!bits) return fail(what + " needs more than 2^64 bits", ec);
    if (*bits % 8 != 0)
      return fail(fmt::format("{} needs {} bits, which is not a whole number of bytes", what, *bits), ec);
    if (*bits / 8 != end - begin) {
      return fail(fmt::format("{} needs {} bytes, \"data_offsets\" give {}", what, *bits / 8, end - begin), ec);
    }
    declared_.push_back(std::move(current_));
    return true;
  }

  const uint64_t data_bytes_;
  const SafetensorsLimits limits_;
  Place place_ = Place::kStart;
  std::string text_;   // of a key or string that arrives in parts
  std::string name_;   // the last key of the top object
  std::string field_;  // the last key inside of it
  Declared current_;
  const DtypeInfo* dtype_ = nullptr;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false, has_metadata_ = false;
  int n_offsets_ = 0;
  std::set<std::string> metadata_keys_;
  std::vector<Declared> declared_;
  std::string problem_;
  std::optional<std::string> problem_tensor_;
};

// Names the file in every refusal.
class Refuse {
 public:
  explicit Refuse(const std::string& path) : path_(escape(path, 400)) {}
  [[noreturn]] void operator()(const std::string& what) const {
    throw Error(ErrorKind::kMalformed, path_ + ": " + what);
  }

 private:
  std::string path_;
};

struct Header {
  std::string_view text;  // without the length field in front and the spaces behind
  size_t data_start = 0;  // byte of the file
};

Header find_header(std::span<const std::byte> file, const SafetensorsLimits& limits, const Refuse& refuse) {
  if (file.size() < kLengthBytes) {
    refuse(fmt::format("{} bytes, a safetensors file starts with a length field of {}", file.size(), kLengthBytes));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= static_cast<uint64_t>(file[i]) << (8 * i);
  if (length == 0) refuse("header length at byte 0: 0, must be at least 1");
  if (length > limits.header_bytes) {
    refuse(fmt::format("header length at byte 0: {} bytes, the limit is {}", length, limits.header_bytes));
  }
  if (length > file.size() - kLengthBytes) {
    refuse(fmt::format("header length at byte 0: {} bytes, {} left in the file", length, file.size() - kLengthBytes));
  }
  std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<size_t>(length));
  if (text.front() != '{') {
    refuse(fmt::format("header at byte {}: must start with '{{', found '{}'", kLengthBytes, escape(text.substr(0, 1))));
  }
  return {text.substr(0, text.find_last_not_of(' ') + 1), kLengthBytes + text.size()};
}

std::vector<Declared> parse_header(std::string_view text, uint64_t data_bytes, const SafetensorsLimits& limits,
                                   const Refuse& refuse) {
  json::parse_options options;
  options.max_depth = 4;  // the deepest allowed value is an array in an object in the object
  json::basic_parser<HeaderHandler> parser(options, data_bytes, limits);
  json::error_code ec;
  const size_t used = parser.write_some(false, text.data(), text.size(), ec);
  HeaderHandler& handler = parser.handler();
  const uint64_t byte = kLengthBytes + used;
  if (ec) {
    if (handler.problem_tensor()) refuse(tensor_at(*handler.problem_tensor(), byte) + ": " + handler.problem());
    if (!handler.problem().empty()) refuse(fmt::format("header at byte {}: {}", byte, handler.problem()));
    if (ec == json::error::incomplete) refuse(fmt::format("header at byte {}: the JSON text ends early", byte));
    refuse(fmt::format("header at byte {}: not valid JSON ({})", byte, ec.message()));
  }
  // What follows the closing brace can only be white space that is not a space, or a second value.
  if (used != text.size() || text.back() != '}') {
    refuse(fmt::format("header at byte {}: only spaces may follow the closing brace",
                       kLengthBytes + text.rfind('}', used) + 1));
  }
  return std::move(handler.declared());
}

// Indices 0..n-1 in the order of name(i), then of the index.
template <typename Name>
std::vector<uint32_t> order_by_name(size_t n, const Name& name) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return std::tie(name(a), a) < std::tie(name(b), b); });
  return order;
}

// A sort rather than a hash set: names come from the file and could be made to collide.
void check_names_once(const std::vector<Declared>& tensors, size_t data_start, const Refuse& refuse) {
  const auto name = [&](uint32_t i) -> const std::string& { return tensors[i].info.name; };
  const std::vector<uint32_t> order = order_by_name(tensors.size(), name);
  for (size_t i = 1; i < order.size(); ++i) {
    if (name(order[i]) != name(order[i - 1])) continue;
    const Declared& t = tensors[order[i]];
    refuse(tensor_at(t.info.name, data_start + t.begin) + ": duplicate tensor, the header names it twice");
  }
}

// Sorts by place and requires that the tensors fill the data without hole or overlap.
void check_layout(std::vector<Declared>& tensors, uint64_t data_start, uint64_t data_bytes, const Refuse& refuse) {
  std::sort(tensors.begin(), tensors.end(), [](const Declared& a, const Declared& b) {
    return std::tie(a.begin, a.end, a.info.name) < std::tie(b.begin, b.end, b.info.name);
  });
  uint64_t position = 0;
  for (const Declared& t : tensors) {
    const std::string_view what = t.begin < position ? "overlaps the tensor before it" : "leaves a hole before it";
    if (t.begin != position) {
      refuse(fmt::format("{}: {}: begins at {}, must begin at {}", tensor_at(t.info.name, data_start + t.begin), what,
                         t.begin, position));
    }
    position = t.end;
  }
  if (position != data_bytes) {
    refuse(fmt::format("the tensors end at byte {}, the file has {}", data_start + position, data_start + data_bytes));
  }
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path, int shard, const SafetensorsLimits& limits) {
  SafetensorsFile result(MappedFile::open(path));
  const Refuse refuse(path);
  const std::span<const std::byte> bytes = result.file_.bytes();
  const Header header = find_header(bytes, limits, refuse);
  result.data_bytes_ = bytes.size() - header.data_start;

  std::vector<Declared> declared = parse_header(header.text, result.data_bytes_, limits, refuse);
  check_names_once(declared, header.data_start, refuse);
  check_layout(declared, header.data_start, result.data_bytes_, refuse);

  result.tensors_.reserve(declared.size());
  for (Declared& d : declared) {
    d.info.file_offset = header.data_start + d.begin;
    d.info.bytes = d.end - d.begin;
    d.info.data = bytes.data() + d.info.file_offset;
    d.info.shard = shard;
    result.tensors_.push_back(std::move(d.info));
  }
  const auto name = [&](uint32_t i) -> const std::string& { return result.tensors_[i].name; };
  result.by_name_ = order_by_name(result.tensors_.size(), name);
  return result;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return it != by_name_.end() && tensors_[*it].name == name ? &tensors_[*it] : nullptr;
}

}  // namespace carpool
