// Shared by the tests of model/ and engine/: the tiny golden checkpoints, and how to run them by hand.
//
// Golden files: python/golden/make_<family>.py, which also record what transformers computed for them. A checkpoint is
// called "family/case"; those of qwen3_moe also by their case alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "model/model.h"

namespace carpool::golden {

inline const std::string kGolden = source_dir() + "/tests/golden";
inline const std::string kFolder = kGolden + "/qwen3_moe";

inline std::string folder(const std::string& name) {
  return (name.find('/') == name.npos ? kFolder : kGolden) + "/" + name;
}

struct GoldenPrompt {
  std::vector<int> tokens, greedy;
  std::vector<float> last_logits, all_logits;
};

// Bytes of base64 text: six bits a character, up to the padding.
inline std::string from_base64(std::string_view text) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.find('='))) {
    const size_t digit = kAlphabet.find(c);
    if (digit == kAlphabet.npos) throw Error(ErrorKind::kMalformed, "not base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

inline std::vector<float> floats(const json::value& base64) {
  const std::string bytes = from_base64(base64.as_string());
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
  return out;
}

inline std::vector<int> ints(const json::value& v) {
  std::vector<int> out;
  for (const json::value& i : v.as_array()) out.push_back(static_cast<int>(i.as_int64()));
  return out;
}

inline std::vector<GoldenPrompt> prompts(const std::string& directory) {
  const json::value root = parse_json(read_text_file(directory + "/golden.json"), "golden.json");
  std::vector<GoldenPrompt> out;
  for (const json::value& p : root.at("prompts").as_array()) {
    GoldenPrompt g{ints(p.at("tokens")), ints(p.at("greedy")), floats(p.at("last_logits")), {}};
    if (p.as_object().contains("all_logits")) g.all_logits = floats(p.at("all_logits"));
    out.push_back(std::move(g));
  }
  return out;
}

// The cases of one family, by their names alone.
inline std::vector<std::string> cases(const std::string& family = "qwen3_moe") {
  std::vector<std::string> out;
  const std::string path = kGolden + "/" + family;
  if (!std::filesystem::is_directory(path)) return out;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (std::filesystem::exists(entry.path() / "golden.json")) out.push_back(entry.path().filename().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// The families of families.def.
inline std::vector<std::string> families() {
  return {
#define CARPOOL_FAMILY(name) #name,
#include "model/families.def"
#undef CARPOOL_FAMILY
  };
}

// The cases of every family, "family/case".
inline std::vector<std::string> all_cases() {
  std::vector<std::string> out;
  for (const std::string& family : families()) {
    for (const std::string& name : cases(family)) out.push_back(family + "/" + name);
  }
  return out;
}

// References compute in float32 throughout, so products with quantised weights and the cache do too.
inline Model load_path(const std::string& path, const std::string& isa = "auto", int threads = 2) {
  LoadOptions options;
  options.activations = Activations::kFloat;
  options.kv_format = KvFormat::kF32;
  options.threads = threads;
  const char* forced = std::getenv("CARPOOL_ISA");  // ./check runs these tests with every table in turn
  options.isa = isa == "auto" && forced ? forced : isa;
  return Model::load(path, options);
}

inline Model load(const std::string& name, const std::string& isa = "auto", int threads = 2) {
  return load_path(folder(name), isa, threads);
}

// A sequence with its own blocks in `kv`.
struct Place {
  std::vector<int> blocks;
  Place(KvCache& kv, int tokens) { EXPECT_TRUE(kv.take(KvCache::blocks_for(tokens), blocks)); }
};

inline std::vector<float> row_of(const Matrix& m, int r) { return {m.row(r), m.row(r) + m.cols}; }

inline int argmax(const std::vector<float>& v) {
  return static_cast<int>(std::max_element(v.begin(), v.end()) - v.begin());
}

// Calls a function for every MoE layer of a step.
class Watcher final : public StepObserver {
 public:
  explicit Watcher(std::function<void(const RoutedLayer&)> use) : use_(std::move(use)) {}
  void routed(const RoutedLayer& layer) override { use_(layer); }

 private:
  std::function<void(const RoutedLayer&)> use_;
};

// Feeds `tokens` in chunks as prefill; returns the logits of every position.
inline std::vector<std::vector<float>> prefill(Model& model, KvCache& kv, const Place& place,
                                               const std::vector<int>& tokens, int chunk,
                                               const StepRecord& record = {}) {
  const auto topk = make_policy("topk");
  std::vector<std::vector<float>> out;
  Rows rows;
  for (int start = 0; start < static_cast<int>(tokens.size()); start += chunk) {
    rows.clear();
    for (int p = start; p < std::min(start + chunk, static_cast<int>(tokens.size())); ++p) {
      rows.push(tokens[static_cast<size_t>(p)], p, place.blocks.data(), {Phase::kPrefill, false, 0}, true);
    }
    const Matrix logits = model.forward(rows, kv, *topk, record);
    for (int r = 0; r < logits.rows; ++r) out.push_back(row_of(logits, r));
  }
  return out;
}

inline std::vector<float> decode(Model& model, KvCache& kv, const Place& place, int token, int position,
                                 const Policy& policy) {
  Rows rows;
  rows.push(token, position, place.blocks.data(), {Phase::kDecode, false, 0}, true);
  return row_of(model.forward(rows, kv, policy, {}), 0);
}

}  // namespace carpool::golden
