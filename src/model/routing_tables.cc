// Reading and writing files of routing tables. See routing_tables.h for the format.
#include "model/routing_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"
#include "io/output_file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace carpool {
namespace {

constexpr std::string_view kHead = "carpool_routing_tables", kFormat = "carpool routing tables";
constexpr int kVersion = 1;
constexpr size_t kMostHead = 1 << 16;

// One tensor of the file: what of each layer is its row.
struct Column {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;    // of a row
  std::vector<std::byte> bytes;  // of all rows
};

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

// The tables as columns, in the order in which files hold them; those that no layer has are left out.
std::vector<Column> columns_of(const RoutingTables& tables) {
  const int64_t E = tables.n_experts;
  std::vector<Column> all = {
      {"layers", "I32", {}, {}},        {"similarity", "F32", {E, E}, {}}, {"fold_scale", "F32", {E, E}, {}},
      {"fold_loss", "F32", {E, E}, {}}, {"norm", "F32", {E}, {}},          {"contribution", "F32", {E}, {}},
      {"rank_range", "F32", {}, {}},    {"resident", "U8", {E}, {}},       {"k0", "I32", {}, {}}};
  const auto put = [&](size_t column, const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    all[column].bytes.insert(all[column].bytes.end(), from, from + bytes);
  };
  for (size_t l = 0; l < tables.layers.size(); ++l) {
    const LayerTables& t = tables.layers[l];
    if (t.empty()) continue;
    const auto number = static_cast<int32_t>(l);
    put(0, &number, sizeof(number));
    size_t column = 1;
    for (const auto* values : {&t.similarity, &t.fold_scale, &t.fold_loss, &t.norm, &t.contribution}) {
      put(column++, values->data(), values->size() * sizeof(float));
    }
    if (!t.resident.empty()) {
      put(6, &t.rank_range, sizeof(float));
      put(7, t.resident.data(), t.resident.size());
    }
    const auto k0 = static_cast<int32_t>(t.k0);
    if (t.k0 > 0) put(8, &k0, sizeof(k0));
  }
  std::erase_if(all, [](const Column& c) { return c.bytes.empty(); });
  return all;
}

// Continues a checksum over parts: of the one so far and the next part's.
uint64_t continued(uint64_t sum, std::span<const std::byte> part) {
  return checksum64(fmt::format("{:016x}{:016x}", sum, checksum64(part)));
}

std::vector<int64_t> with_rows(int64_t rows, std::vector<int64_t> shape) {
  shape.insert(shape.begin(), rows);
  return shape;
}

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(SafetensorsFile::open(path)), where_(escape(path, 400)) {}

  RoutingTablesFile read() {
    const json::value head = read_head();
    const JsonObject o(head, where_);
    RoutingTablesFile out;
    out.model = o.string("model");
    out.made_by = o.string_or("made_by", "");
    out.tables.n_experts = static_cast<int>(o.integer("experts", 1, RoutingTables::kMaxExperts));
    out.tables.top_k = static_cast<int>(o.integer("top_k", 1, out.tables.n_experts));
    out.tables.layers.resize(static_cast<size_t>(o.integer("layers", 1, RoutingTables::kMaxLayers)));
    read_layers(out.tables);
    read_columns(out.tables);
    if (o.string("checksum") != fmt::format("{:016x}", sum_))
      fail("it is damaged: its checksum does not fit its bytes");
    out.tables.check(where_);
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kMalformed, fmt::format("{}: {}", where_, what));
  }

  json::value read_head() const {
    const TensorInfo* t = file_.find(kHead);
    if (!t) fail("no file of routing tables, which `carpool calibrate` makes");
    if (t->dtype != "U8" || t->shape.size() != 1 || t->bytes > kMostHead) {
      fail(fmt::format("tensor {} must be one row of at most {} bytes", kHead, kMostHead));
    }
    const std::string text(reinterpret_cast<const char*>(t->data), t->bytes);
    json::value head = parse_json(text, fmt::format("{}: {}", where_, kHead));
    const JsonObject o(head, where_);
    if (o.string("format") != kFormat)
      fail(fmt::format("the format is \"{}\", not \"{}\"", escape(o.string("format")), kFormat));
    const int64_t version = o.integer("version", 1, int64_t{1} << 31);
    if (version != kVersion) fail(fmt::format("version {}, this build reads {}", version, kVersion));
    return head;
  }

  // The tensor of a column with its bytes, null when absent. Every byte read is part of the checksum.
  const TensorInfo* take(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
    const TensorInfo* t = file_.find(name);
    if (!t) return nullptr;
    if (t->dtype != dtype || t->shape != shape) {
      fail(fmt::format("tensor {} is {} [{}], it must be {} [{}]", name, t->dtype, fmt::join(t->shape, ", "), dtype,
                       fmt::join(shape, ", ")));
    }
    sum_ = continued(sum_, {t->data, t->bytes});
    ++taken_;
    return t;
  }

  void read_layers(RoutingTables& tables) {
    const TensorInfo* found = file_.find("layers");
    const int64_t most = std::ssize(tables.layers);
    const int64_t n = found && found->shape.size() == 1 ? found->shape[0] : 0;
    if (n < 1 || n > most) fail(fmt::format("tensor layers must name 1 to {} layers, it names {}", most, n));
    const TensorInfo* t = take("layers", "I32", {n});
    std::vector<int32_t> numbers(static_cast<size_t>(n));
    std::memcpy(numbers.data(), t->data, t->bytes);
    for (const int32_t l : numbers) {
      const bool ascends = rows_.empty() || l > rows_.back();
      if (l < 0 || l >= most || !ascends)
        fail(fmt::format("tensor layers names {}: ascending numbers below {} are allowed", l, most));
      rows_.push_back(l);
    }
  }

  // Fills `values(layer)`, of `each` entries, from the rows of a tensor, if it is there.
  template <class T, class Values>
  void read_rows(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
                 Values&& values) {
    const TensorInfo* t = take(name, dtype, with_rows(std::ssize(rows_), shape));
    if (!t) return;
    const auto each = static_cast<size_t>(elements(shape));
    for (size_t m = 0; m < rows_.size(); ++m) {
      std::vector<T> row(each);
      std::memcpy(row.data(), t->data + m * each * sizeof(T), each * sizeof(T));
      values(static_cast<size_t>(rows_[m]), std::move(row));
    }
  }

  void read_columns(RoutingTables& tables) {
    const int64_t E = tables.n_experts;
    const auto floats = [&](const std::string& name, const std::vector<int64_t>& shape,
                            std::vector<float> LayerTables::* member) {
      read_rows<float>(name, "F32", shape,
                       [&](size_t l, std::vector<float> row) { tables.layers[l].*member = std::move(row); });
    };
    floats("similarity", {E, E}, &LayerTables::similarity);
    floats("fold_scale", {E, E}, &LayerTables::fold_scale);
    floats("fold_loss", {E, E}, &LayerTables::fold_loss);
    floats("norm", {E}, &LayerTables::norm);
    floats("contribution", {E}, &LayerTables::contribution);
    read_rows<float>("rank_range", "F32", {},
                     [&](size_t l, std::vector<float> row) { tables.layers[l].rank_range = row[0]; });
    read_rows<uint8_t>("resident", "U8", {E},
                       [&](size_t l, std::vector<uint8_t> row) { tables.layers[l].resident = std::move(row); });
    read_rows<int32_t>("k0", "I32", {}, [&](size_t l, std::vector<int32_t> row) { tables.layers[l].k0 = row[0]; });
    if (file_.tensors().size() != taken_ + 1) {
      fail(fmt::format("it has {} tensors, {} of which are none of a file of routing tables", file_.tensors().size(),
                       file_.tensors().size() - taken_ - 1));
    }
    if ((file_.find("resident") != nullptr) != (file_.find("rank_range") != nullptr)) {
      fail("tensors resident and rank_range come together");
    }
  }

  SafetensorsFile file_;
  std::string where_;
  std::vector<int32_t> rows_;  // the layers that the rows of tensors are of
  uint64_t sum_ = 0;
  size_t taken_ = 0;
};

}  // namespace

std::string router_hash(const Model& model) {
  const ModelConfig& c = model.config();
  if (c.moe_layers() == 0) return "";
  uint64_t sum =
      checksum64(fmt::format("{} layers, {} of {} experts, width {}", c.layers, c.top_k, c.n_experts, c.width));
  for (size_t l = 0; l < model.weights().layers.size(); ++l) {
    if (!c.moe_layer[l]) continue;
    const LayerWeights& layer = model.weights().layers[l];
    sum = continued(sum, {layer.router.data, layer.router.bytes()});
    for (const auto* bias : {&layer.router_bias, &layer.scoring.selection_bias})
      sum = continued(sum, std::as_bytes(std::span(*bias)));
  }
  return fmt::format("{:016x}", sum);
}

RoutingTablesFile read_routing_tables(const std::string& path) { return Reader(path).read(); }

void check_routing_tables_output(const std::string& path) {
  if (!file_exists(path)) return;
  try {
    if (SafetensorsFile::open(path).find(kHead)) return;
  } catch (const Error&) {  // nothing of ours
  }
  throw Error(ErrorKind::kCannotCreate,
              fmt::format("{}: exists and is no file of routing tables, so it is not replaced", escape(path, 400)));
}

void write_routing_tables(const std::string& path, const RoutingTablesFile& file) {
  file.tables.check(escape(path, 400));
  check_routing_tables_output(path);
  const std::vector<Column> columns = columns_of(file.tables);
  uint64_t sum = 0;
  for (const Column& c : columns) sum = continued(sum, c.bytes);
  const std::string head = json::serialize(json::object{{"format", kFormat},
                                                        {"version", kVersion},
                                                        {"model", file.model},
                                                        {"layers", file.tables.layers.size()},
                                                        {"experts", file.tables.n_experts},
                                                        {"top_k", file.tables.top_k},
                                                        {"checksum", fmt::format("{:016x}", sum)},
                                                        {"made_by", file.made_by}});
  SafetensorsWriter writer;
  const auto rows = static_cast<int64_t>(columns.front().bytes.size() / sizeof(int32_t));  // "layers" comes first
  // The widest elements first, so that every tensor lies at a multiple of its own.
  for (const Column& c : columns) {
    if (c.dtype != "U8") writer.add_tensor(c.name, c.dtype, with_rows(rows, c.shape), c.bytes.size());
  }
  for (const Column& c : columns) {
    if (c.dtype == "U8") writer.add_tensor(c.name, c.dtype, with_rows(rows, c.shape), c.bytes.size());
  }
  const int64_t head_bytes = std::ssize(head);
  writer.add_tensor(kHead, "U8", {&head_bytes, 1}, head.size());
  OutputFile out(path, true, writer.file_bytes());
  writer.begin(out);
  for (const Column& c : columns) {
    if (c.dtype != "U8") out.write(c.bytes);
  }
  for (const Column& c : columns) {
    if (c.dtype == "U8") out.write(c.bytes);
  }
  out.write(head);
  out.commit();
}

void give_tables(Policy& policy, const std::string& routers, std::span<const int> moe_layers) {
  const std::string path = policy.tables_file();
  if (path.empty()) return;
  auto file = std::make_shared<RoutingTablesFile>(read_routing_tables(path));
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kConfig, fmt::format("{}: {}", escape(path, 400), what));
  };
  if (file->model != routers) {
    const RoutingTables& t = file->tables;
    refuse(fmt::format("tables of another model (routers {}, {} layers, {} of {} experts) than this one (routers {})",
                       escape(file->model), t.layers.size(), t.top_k, t.n_experts,
                       routers.empty() ? "none" : escape(routers)));
  }
  for (const int l : moe_layers) {
    if (!file->tables.layer(l)) refuse(fmt::format("it has no tables of layer {}", l));
  }
  policy.use_tables(std::shared_ptr<const RoutingTables>(file, &file->tables));
}

std::unique_ptr<Policy> make_policy(std::string_view spec, const Model& model) {
  std::unique_ptr<Policy> policy = make_policy(spec);
  const ModelConfig& c = model.config();
  check_layers(*policy, c.layers);
  if (policy->tables_file().empty()) return policy;
  std::vector<int> layers;
  for (size_t l = 0; l < c.moe_layer.size(); ++l) {
    if (c.moe_layer[l]) layers.push_back(static_cast<int>(l));
  }
  give_tables(*policy, router_hash(model), layers);
  return policy;
}

void check_spec(std::string_view spec, const ModelConfig& config) {
  const std::unique_ptr<Policy> policy = make_policy(spec);
  check_layers(*policy, config.layers);
  if (policy->tables_file().empty()) policy->check(config.n_experts, config.top_k);
}

}  // namespace carpool
