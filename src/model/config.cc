// Reading config.json and generation_config.json, or what GGUF metadata says in their place; see config.h.
#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "model/family.h"
#include "model/gguf_config.h"
#include "model/quantization_config.h"

namespace carpool {

#define CARPOOL_FAMILY(name)   \
  namespace name {             \
  extern const Family kFamily; \
  }
#include "model/families.def"
#undef CARPOOL_FAMILY

namespace {

const Family* const kFamilies[] = {
#define CARPOOL_FAMILY(name) &name::kFamily,
#include "model/families.def"
#undef CARPOOL_FAMILY
};

void add_eos(const JsonObject& from, int vocab, std::vector<int>& ids) {
  if (!from.has("eos_token_id")) return;
  const json::value& value = from.value("eos_token_id");
  const auto add = [&](const json::value& v) {
    if (!v.is_int64() || v.as_int64() < 0 || v.as_int64() >= vocab) {
      from.fail("eos_token_id",
                fmt::format("must be ids of 0 to {}, found {}", vocab - 1, escape(json::serialize(v), 60)));
    }
    const int id = static_cast<int>(v.as_int64());
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  if (const auto* list = value.if_array()) {
    if (list->size() > 64) from.fail("eos_token_id", "more than 64 ids");
    for (const json::value& v : *list) add(v);
  } else {
    add(value);
  }
}

void read_generation_config(const JsonObject& object, ModelConfig& config) {
  add_eos(object, config.vocab, config.eos_ids);
  const bool sample = object.boolean_or("do_sample", object.has("temperature"));
  config.sampling.temperature = sample ? static_cast<float>(object.number_or("temperature", 1, 0, 100)) : 0;
  const int64_t top_k = object.integer_or("top_k", 0, -1, INT32_MAX);
  config.sampling.top_k = static_cast<int>(std::max<int64_t>(top_k, 0));  // some files write "all" as -1
  const double top_p = object.number_or("top_p", 1, 0, 1);
  config.sampling.top_p = static_cast<float>(top_p);
  if (!(config.sampling.top_p > 0)) object.fail("top_p", fmt::format("must be above 0 and at most 1, got {}", top_p));
}

}  // namespace

int ModelConfig::moe_layers() const { return static_cast<int>(std::count(moe_layer.begin(), moe_layer.end(), true)); }

const Family& find_family(std::string_view model_type) {
  std::string known;
  for (const Family* family : kFamilies) {
    if (model_type == family->model_type) return *family;
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", family->model_type, family->architecture);
  }
  throw Error(ErrorKind::kConfig,
              fmt::format("the architecture \"{}\" is not supported; supported: {}", escape(model_type), known));
}

namespace {

ModelConfig read_config(const JsonObject& object) {
  const Family& family = find_family(object.string("model_type"));
  ModelConfig config = family.read_config(object);
  config.family = family.model_type;
  add_eos(object, config.vocab, config.eos_ids);
  return config;
}

ModelConfig read_gguf_config(const std::string& path) {
  const GgufSet files = GgufSet::open(path);
  const std::string where = files.where() + ": metadata";
  const json::value root = gguf_config(files), generation = gguf_generation_config(files.metadata());
  ModelConfig config = read_config(JsonObject(root, where));
  read_generation_config(JsonObject(generation, where), config);
  return config;
}

}  // namespace

ModelConfig read_model_config(const std::string& model) {
  if (is_gguf_path(model)) return read_gguf_config(model);
  const std::string path = (std::filesystem::path(model) / "config.json").string();
  const json::value root = parse_json(read_text_file(path, size_t{16} << 20), path);
  const JsonObject object(root, path);
  ModelConfig config = read_config(object);
  const std::vector<std::string> notes = check_quantization(object, model);
  config.notes.insert(config.notes.end(), notes.begin(), notes.end());
  const std::string generation_path = (std::filesystem::path(model) / "generation_config.json").string();
  if (file_exists(generation_path)) {
    const json::value generation = parse_json(read_text_file(generation_path, size_t{1} << 20), generation_path);
    read_generation_config(JsonObject(generation, generation_path), config);
  }
  return config;
}

}  // namespace carpool
