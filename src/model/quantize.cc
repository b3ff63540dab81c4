// The two kinds of output; see quantize.h. What is stored as what is quantize_plan.h.
#include "model/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/threads.h"
#include "io/gguf_writer.h"
#include "io/safetensors_writer.h"
#include "model/config.h"
#include "model/gguf_config.h"
#include "model/gguf_names.h"
#include "model/quantize_plan.h"
#include "text/tokenizer_files.h"
#include "text/tokenizer_gguf.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

// general.file_type: what most matrices are, by the numbers of the format.
uint32_t file_type(Format format) {
  switch (format) {
    case Format::kF16:
      return 1;
    case Format::kQ4_0:
      return 2;
    case Format::kQ4_1:
      return 3;
    case Format::kQ8_0:
      return 7;
    case Format::kQ5_0:
      return 8;
    case Format::kQ5_1:
      return 9;
    case Format::kQ2_K:
      return 10;
    case Format::kQ3_K:
      return 11;
    case Format::kQ4_K:
      return 14;
    case Format::kQ5_K:
      return 16;
    case Format::kQ6_K:
      return 18;
    case Format::kIQ4_NL:
      return 25;
    case Format::kIQ4_XS:
      return 30;
    case Format::kBF16:
      return 32;
    case Format::kMXFP4:
      return 38;
    case Format::kNVFP4:
      return 39;
    default:
      return 0;
  }
}
constexpr uint32_t kQuantizationVersion = 2;

std::string in(const std::string& directory, const char* file) { return (fs::path(directory) / file).string(); }

// Reports progress by source bytes.
class Meter {
 public:
  Meter(const QuantizeOptions& options, uint64_t total)
      : progress_(options.progress), total_(std::max<uint64_t>(total, 1)) {}
  void add(uint64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(static_cast<double>(done_) / static_cast<double>(total_));
  }

 private:
  const std::function<void(double)>& progress_;
  uint64_t total_, done_ = 0;
};

// The matrix in its format.
EncodedMatrix encode(const PlannedTensor& p, Layout layout, ThreadPool& pool) {
  const std::string what = fmt::format("tensor \"{}\"", escape(p.part.name));
  if (!p.part.values) return encode_matrix(p.part.view, p.format, layout, pool, what);
  const std::vector<float> values = p.part.values();
  return encode_matrix({Format::kF32, values.data(), p.rows(), p.cols()}, p.format, layout, pool, what);
}

// Reports progress by source bytes, of a tensor of several parts when the first is done.
void add_bytes(const PlannedTensor& p, const TensorInfo*& last, Meter& meter) {
  if (p.part.tensor != last) meter.add(p.part.tensor->bytes);
  last = p.part.tensor;
}

// A tensor of a GGUF file and what it is made of: one planned tensor, or one for each expert in order.
struct Group {
  std::string name;
  bool sliced;  // [E, ...]
  std::vector<const PlannedTensor*> members;
};

// Puts experts together. Throws when a name has no place in GGUF, or experts are missing or differ.
std::vector<Group> group_for_gguf(const std::vector<PlannedTensor>& plan, const GgufArchitecture& architecture,
                                  const std::string& where) {
  std::vector<Group> groups;
  std::map<std::string, size_t> index;
  for (const PlannedTensor& p : plan) {
    const auto refuse = [&](ErrorKind kind, const std::string& what) {
      throw Error(kind, fmt::format("{}: tensor \"{}\": {}", where, escape(p.part.name), what));
    };
    const std::optional<GgufName> name = gguf_name(architecture, p.part.name);
    if (!name) refuse(ErrorKind::kConfig, fmt::format("has no name in GGUF files of {}", architecture.name));
    const auto [it, fresh] = index.emplace(name->name, groups.size());
    if (fresh) groups.push_back({name->name, name->expert >= 0, {}});
    std::vector<const PlannedTensor*>& members = groups[it->second].members;
    const size_t place = name->expert < 0 ? 0 : static_cast<size_t>(name->expert);
    if (place > plan.size()) refuse(ErrorKind::kMalformed, "experts before it are missing");
    if (members.size() <= place) members.resize(place + 1);
    members[place] = &p;
  }
  for (const Group& g : groups) {
    for (const PlannedTensor* p : g.members) {
      if (!p) throw Error(ErrorKind::kMalformed, fmt::format("{}: experts of \"{}\" are missing", where, g.name));
      const PlannedTensor& first = *g.members[0];
      if (p->part.shape != first.part.shape) {
        throw Error(ErrorKind::kMalformed, fmt::format("{}: experts of \"{}\" differ in shape", where, g.name));
      }
      if (p->format != first.format) {
        throw Error(ErrorKind::kUsage,
                    fmt::format("{}: a GGUF file stores all experts of \"{}\" in one format, asked are {} and {}",
                                where, g.name, info(first.format).name, info(p->format).name));
      }
    }
  }
  return groups;
}

// "blk.0.attn_q.weight" -> "blk.0.attn_q.scale"
std::string scale_name(const std::string& name) { return name.substr(0, name.rfind('.')) + ".scale"; }

void declare(const std::vector<Group>& groups, GgufWriter& writer) {
  for (const Group& g : groups) {
    const PlannedTensor& first = *g.members[0];
    std::vector<int64_t> shape = first.part.shape;
    const auto experts = static_cast<int64_t>(g.members.size());
    if (g.sliced) shape.insert(shape.begin(), experts);
    if (first.part.heads > 0) shape = {first.part.heads, shape[0] / first.part.heads, shape[1]};
    writer.add_tensor(g.name, first.format, shape);
    if (first.format == Format::kNVFP4) writer.add_tensor(scale_name(g.name), Format::kF32, {&experts, 1});
  }
}

void write_groups(const std::vector<Group>& groups, const GgufWriter& writer, ThreadPool& pool, Meter& meter,
                  OutputFile& out) {
  for (const Group& g : groups) {
    std::vector<float> scales;
    const TensorInfo* last = nullptr;
    for (const PlannedTensor* p : g.members) {
      const EncodedMatrix m = encode(*p, Layout::kGguf, pool);
      out.write(m.data);
      scales.push_back(m.scale);
      add_bytes(*p, last, meter);
    }
    writer.pad(out);
    if (g.members[0]->format != Format::kNVFP4) continue;
    out.write(std::as_bytes(std::span(scales)));
    writer.pad(out);
  }
}

TokenizerConfig tokenizer_config_of(const std::string& directory) {
  const std::string path = in(directory, "tokenizer_config.json");
  return file_exists(path) ? TokenizerConfig::load(path) : TokenizerConfig{};
}

// Metadata of a Hugging Face directory.
void describe_directory(const QuantizeOptions& options, const ModelConfig& config, GgufWriter& writer,
                        QuantizeReport& report) {
  const std::string path = tokenizer_file(options.input);
  const bool has_tokenizer = !path.empty();
  const TokenizerConfig tokens = tokenizer_config_of(options.input);
  std::optional<int> end;
  std::string text;
  if (has_tokenizer) {
    text = read_tokenizer_json(options.input);
    if (tokens.eos_token) end = Tokenizer::parse(text, path).token_id(*tokens.eos_token);
  }
  add_gguf_config(config, end, writer);
  std::string name = fs::path(options.input).filename().string();
  if (name.empty()) name = fs::path(options.input).parent_path().filename().string();
  writer.add_string("general.type", "model");
  writer.add_string("general.name", escape(name));
  if (!has_tokenizer) {
    report.notes.push_back(
        "the directory has no tokenizer.json or tiktoken.model: the file can be measured but not talked to");
  } else if (!add_gguf_tokenizer(text, path, tokens, config.vocab, writer)) {
    report.notes.push_back(
        "the tokenizer is stored as tokenizer.huggingface.json too, because the usual keys cannot describe it; "
        "programs "
        "that know only those may tokenize differently");
  }
}

// Metadata of a GGUF file: all that stays true.
void describe_gguf(const QuantizeOptions& options, GgufWriter& writer) {
  const GgufSet files = GgufSet::open(options.input);
  for (const GgufMetadata::Entry& e : files.metadata().entries()) {
    const bool changes = e.key == "general.file_type" || e.key == "general.quantization_version" ||
                         e.key == "general.alignment" || e.key.starts_with("split.") ||
                         e.key.starts_with("quantize.imatrix.");
    if (!changes) writer.add(e);
  }
}

void write_gguf(const QuantizeOptions& options, const WeightSource& source, const std::vector<PlannedTensor>& plan,
                const PartsFor& what, ThreadPool& pool, QuantizeReport& report) {
  GgufWriter writer;
  if (what.from) {
    describe_gguf(options, writer);
  } else {
    describe_directory(options, what.config, writer, report);
  }
  writer.add_u32("general.file_type", file_type(options.format));
  writer.add_u32("general.quantization_version", kQuantizationVersion);
  const std::vector<Group> groups = group_for_gguf(plan, *what.to, source.where());
  declare(groups, writer);
  const std::vector<float> divisors = what.from ? std::vector<float>() : gguf_rope_divisors(what.config);
  const std::array count = {static_cast<int64_t>(divisors.size())};
  if (!divisors.empty()) writer.add_tensor(kGgufRopeDivisors, Format::kF32, count);
  report.output_bytes = writer.file_bytes();
  OutputFile out(options.output, options.replace, report.output_bytes);
  writer.begin(out);
  Meter meter(options, source.total_bytes());
  write_groups(groups, writer, pool, meter, out);
  if (!divisors.empty()) {
    out.write(std::as_bytes(std::span(divisors)));
    writer.pad(out);
  }
  CARPOOL_CHECK(out.written() == report.output_bytes);
  source.verify_unchanged();
  out.commit();
}

// The tensors of stored_matrix.h that a planned one becomes.
void declare(const PlannedTensor& p, SafetensorsWriter& writer) {
  const std::string& name = p.part.name;
  const std::string stem = name.substr(0, name.rfind('.'));
  const int64_t rows = p.rows(), cols = p.cols();
  if (p.format == Format::kNVFP4) {
    writer.add_tensor(name, "U8", std::array{rows, cols / 2}, static_cast<uint64_t>(rows * cols / 2));
    writer.add_tensor(stem + ".weight_scale", "F8_E4M3", std::array{rows, cols / 16},
                      static_cast<uint64_t>(rows * (cols / 16)));
    writer.add_tensor(stem + ".weight_scale_2", "F32", {}, sizeof(float));
  } else if (p.format == Format::kFP8) {
    const std::array blocks = {(rows + 127) / 128, (cols + 127) / 128};
    writer.add_tensor(name, "F8_E4M3", std::array{rows, cols}, static_cast<uint64_t>(rows * cols));
    writer.add_tensor(stem + ".weight_scale_inv", "F32", blocks,
                      static_cast<uint64_t>(blocks[0] * blocks[1]) * sizeof(float));
  } else {
    writer.add_tensor(name, info(p.format).safetensors_name, p.part.shape, planned_bytes(p));
  }
}

void write_weights(const QuantizeOptions& options, const WeightSource& source, const std::vector<PlannedTensor>& plan,
                   ThreadPool& pool, OutputFile& out) {
  Meter meter(options, source.total_bytes());
  const TensorInfo* last = nullptr;
  for (const PlannedTensor& p : plan) {
    const EncodedMatrix m = encode(p, Layout::kCheckpoint, pool);
    out.write(m.data);
    out.write(m.scales);
    if (p.format == Format::kNVFP4) out.write(std::as_bytes(std::span(&m.scale, 1)));
    add_bytes(p, last, meter);
  }
}

const char* torch_name(Format format) {
  return format == Format::kF32 ? "float32" : format == Format::kF16 ? "float16" : "bfloat16";
}

// What loaders of such checkpoints look for in config.json.
json::value quantization_config(Format format, const std::vector<PlannedTensor>& plan) {
  json::array apart;  // modules whose matrices are not in the format
  for (const PlannedTensor& p : plan) {
    const std::string& name = p.part.name;
    if (p.part.shape.size() == 2 && p.format != format) apart.emplace_back(name.substr(0, name.rfind('.')));
  }
  if (format == Format::kNVFP4) {
    return json::object{
        {"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", 16}, {"ignore", std::move(apart)}};
  }
  if (format == Format::kFP8) {
    return json::object{{"quant_method", "fp8"},
                        {"fmt", "e4m3"},
                        {"activation_scheme", "dynamic"},
                        {"weight_block_size", {128, 128}},
                        {"modules_to_not_convert", std::move(apart)}};
  }
  return nullptr;
}

void write_small(const OutputFolder& folder, const char* name, const std::string& text) {
  OutputFile out(folder.file(name), false, text.size());
  out.write(text);
  out.commit();
}

// config.json and what else a directory needs beside its weights.
void write_description(const QuantizeOptions& options, const std::vector<PlannedTensor>& plan,
                       const OutputFolder& folder) {
  json::object config;
  if (is_gguf_path(options.input)) {
    const GgufSet files = GgufSet::open(options.input);
    const GgufMetadata& m = files.metadata();
    config = gguf_config(files);
    config.erase("rope_interleave");  // the rows are in the order of checkpoints again
    if (const json::object g = gguf_generation_config(m); !g.empty())
      write_small(folder, "generation_config.json", pretty(g));
    if (gguf_has_tokenizer(m)) {
      const TokenizerConfig tokens = gguf_tokenizer_config(m);
      json::object t;
      for (const auto& [key, text] : {std::pair{"bos_token", tokens.bos_token},
                                      {"eos_token", tokens.eos_token},
                                      {"chat_template", tokens.chat_template}}) {
        if (text) t[key] = *text;
      }
      write_small(folder, "tokenizer.json", gguf_tokenizer_json(m));
      write_small(folder, "tokenizer_config.json", pretty(t));
    }
  } else {
    const std::string path = in(options.input, "config.json");
    config = JsonObject(parse_json(read_text_file(path, size_t{16} << 20), path), path).raw();
    for (const char* name :
         {"tokenizer.json", "tiktoken.model", "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
          "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"}) {
      if (file_exists(in(options.input, name))) write_small(folder, name, read_text_file(in(options.input, name)));
    }
  }
  config.erase("quantization_config");
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = torch_name(options.format);
  if (json::value q = quantization_config(options.format, plan); !q.is_null())
    config["quantization_config"] = std::move(q);
  write_small(folder, "config.json", pretty(config));
}

void write_directory(const QuantizeOptions& options, const WeightSource& source, const std::vector<PlannedTensor>& plan,
                     ThreadPool& pool, QuantizeReport& report) {
  SafetensorsWriter writer;
  for (const PlannedTensor& p : plan) declare(p, writer);
  report.output_bytes = writer.file_bytes();
  OutputFolder folder(options.output, options.replace, "config.json");
  {
    OutputFile out(folder.file("model.safetensors"), false, report.output_bytes);
    writer.begin(out);
    write_weights(options, source, plan, pool, out);
    CARPOOL_CHECK(out.written() == report.output_bytes);
    source.verify_unchanged();
    out.commit();
  }
  write_description(options, plan, folder);
  folder.commit();
}

void check_formats(const QuantizeOptions& options, Layout layout) {
  const auto check = [&](Format format) {
    const bool plain = format == Format::kF32 || format == Format::kBF16 || format == Format::kF16;
    if (layout == Layout::kGguf && info(format).gguf_type < 0) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("a GGUF file cannot hold {}; name a directory as output", info(format).name));
    }
    if (layout == Layout::kCheckpoint && !plain && format != Format::kNVFP4 && format != Format::kFP8) {
      throw Error(ErrorKind::kUsage,
                  fmt::format("a directory of safetensors holds f32, bf16, f16, nvfp4 or fp8; for {} name an output "
                              "that ends in .gguf",
                              info(format).name));
    }
  };
  check(options.format);
  for (const auto& [pattern, format] : options.exceptions) {
    check(format);
    const bool apart = format == Format::kNVFP4 || format == Format::kFP8;
    if (layout == Layout::kCheckpoint && apart && format != options.format) {
      throw Error(ErrorKind::kUsage, fmt::format("--format-for {}: a directory holds {} only if --format asks for it",
                                                 escape(pattern), info(format).name));
    }
  }
}

// What a GGUF output is written as. Throws Error{kConfig} when there is no way.
const GgufArchitecture* output_architecture(const QuantizeOptions& options, const ModelConfig& config,
                                            const GgufArchitecture* from) {
  if (from) return from;
  const GgufArchitecture* to = gguf_architecture_of(config.family);
  const std::string missing = to ? not_in_gguf(config, *to) : "there is no architecture for them";
  if (missing.empty()) return to;
  throw Error(ErrorKind::kConfig,
              fmt::format("{}: models of {} cannot be written as GGUF: {}; name a directory as output",
                          escape(options.input, 400), config.family, missing));
}

// Error{kConfig} for a GGUF file that says what checkpoints have no way to say.
void check_directory(const QuantizeOptions& options, const WeightSource& source, const PartsFor& what) {
  if (!what.from) return;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kConfig, fmt::format("{}: cannot be written as a directory: {}; name an output that ends in "
                                                ".gguf",
                                                escape(options.input, 400), why));
  };
  if (!what.config.rope.divisors.empty()) refuse("it divides single frequencies of the rotation");
  if (what.config.expert_bias) refuse("checkpoints keep experts with biases in another form");
  const bool split = std::any_of(source.tensors().begin(), source.tensors().end(),
                                 [](const TensorInfo& t) { return t.name.ends_with(".self_attn.k_b_proj.weight"); });
  if (split) refuse("checkpoints keep keys and values of latent attention together");
}

void summarise(const std::vector<PlannedTensor>& plan, QuantizeReport& report) {
  std::map<std::pair<std::string_view, std::string_view>, size_t> index;
  for (const PlannedTensor& p : plan) {
    const std::string_view format = info(p.format).name;
    const auto [it, fresh] = index.emplace(std::pair{format, std::string_view(p.why)}, report.stored.size());
    if (fresh) report.stored.push_back({std::string(format), p.why, 0, 0});
    StoredAs& row = report.stored[it->second];
    ++row.tensors;
    row.bytes += planned_bytes(p);
  }
  std::stable_sort(report.stored.begin(), report.stored.end(),
                   [](const StoredAs& a, const StoredAs& b) { return a.bytes > b.bytes; });
}

}  // namespace

QuantizeReport quantize(const QuantizeOptions& options) {
  const Layout layout = is_gguf_path(options.output) ? Layout::kGguf : Layout::kCheckpoint;
  check_formats(options, layout);
  std::error_code ignored;
  if (fs::equivalent(options.input, options.output, ignored)) {
    throw Error(ErrorKind::kUsage, fmt::format("{}: the output is the input", escape(options.output, 400)));
  }
  const WeightSource source = open_weights(options.input);
  const ModelConfig config = read_model_config(options.input);
  const GgufArchitecture* from = is_gguf_path(options.input) ? gguf_architecture_of_file(options.input) : nullptr;
  const PartsFor what{from, layout == Layout::kGguf ? output_architecture(options, config, from) : nullptr, config};
  if (!what.to) check_directory(options, source, what);
  const std::vector<PlannedTensor> plan = plan_quantize(options, source, what);
  QuantizeReport report;
  report.input_bytes = source.total_bytes();
  summarise(plan, report);
  if (what.to && !what.from && config.unused_layers > 0) {
    report.notes.emplace_back("layers of multi-token prediction, which are not run, are left out of the file");
  }
  ThreadPool pool(options.threads > 0 ? options.threads : default_threads());
  if (layout == Layout::kGguf) {
    write_gguf(options, source, plan, what, pool, report);
  } else {
    write_directory(options, source, plan, pool, report);
  }
  return report;
}

}  // namespace carpool
