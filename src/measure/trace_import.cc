#include "measure/trace_import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "measure/lines.h"

namespace carpool {
namespace {

[[noreturn]] void malformed(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::kMalformed, fmt::format("{}: {}", where, what));
}

// The number behind `prefix`, as in "layer_12"; -1 when it is something else.
int number_after(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return -1;
  text.remove_prefix(prefix.size());
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

std::vector<int> counted(size_t n) {
  std::vector<int> out(n);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

const json::array& array_of(const json::value& value, const std::string& where, const char* what) {
  const auto* list = value.if_array();
  if (!list) malformed(where, fmt::format("{} must be a list", what));
  return *list;
}

int64_t whole(const json::value& value, const std::string& where) {
  if (!value.is_int64())
    malformed(where, fmt::format("expected a whole number, found {}", escape(json::serialize(value), 40)));
  return value.as_int64();
}

// A number that a float32 holds, so that what is read can be written; `null` where null may stand for one.
float number_of(const json::value& value, const std::string& where, std::optional<float> null = std::nullopt) {
  if (null && value.is_null()) return *null;
  boost::system::error_code ec;
  const double d = value.is_number() ? value.to_number<double>(ec) : 0;
  if (!value.is_number() || ec) malformed(where, "expected a number");
  if (std::fabs(d) > static_cast<double>(std::numeric_limits<float>::max()))
    malformed(where, fmt::format("a number of {} is beyond float32", d));
  return static_cast<float>(d);
}

// The member "logits": sixteen hexadecimal digits.
uint64_t checksum_of(const JsonObject& line) {
  const std::string text = line.string("logits");
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size())
    line.fail("logits", "must be sixteen hexadecimal digits");
  return value;
}

// Floats [L][n] of a line's member, appended.
void append_rows(const JsonObject& line, const char* key, size_t layers, size_t each, std::vector<float>& out,
                 std::optional<float> null = std::nullopt) {
  const json::array& rows = line.array(key);
  if (rows.size() != layers) line.fail(key, fmt::format("has {} layers, the header {}", rows.size(), layers));
  for (const json::value& row : rows) {
    const json::array& values = array_of(row, line.where(), key);
    if (values.size() > each) line.fail(key, fmt::format("has {} values in a layer, at most {}", values.size(), each));
    for (const json::value& v : values) out.push_back(number_of(v, line.where(), null));
    out.resize(out.size() + each - values.size(), 0.0f);
  }
}

}  // namespace

void TraceBuilder::expect(const std::string& where, int top_k, const std::vector<int>& layers, bool ranked) {
  if (top_k < 1 || top_k > kMaxTraceK)
    malformed(where, fmt::format("{} experts per token: must be 1 to {}", top_k, kMaxTraceK));
  if (layers.empty() || layers.size() > kMaxTraceLayers)
    malformed(where, fmt::format("{} layers: must be 1 to {}", layers.size(), kMaxTraceLayers));
  if (!shaped_) {
    shaped_ = true;
    trace_.top_k = top_k;
    trace_.layers = layers;
    trace_.ranked = ranked;
    return;
  }
  if (trace_.top_k == top_k && trace_.layers == layers && trace_.ranked == ranked) return;
  throw Error(ErrorKind::kConfig,
              fmt::format("{}: {} experts per token in layers {}, the files before it have {} in layers {}: not traces "
                          "of one model",
                          where, top_k, fmt::join(layers, " "), trace_.top_k, fmt::join(trace_.layers, " ")));
}

void TraceBuilder::check_expert(const std::string& where, int64_t expert) {
  const int limit = told_ ? trace_.n_experts : asked_ > 0 ? asked_ : kMaxTraceExperts;
  if (expert < 0 || expert >= limit)
    malformed(where, fmt::format("expert {} is not one of 0 to {}", expert, limit - 1));
  highest_ = std::max(highest_, static_cast<int>(expert));
}

// One token of carpool's own format. A position that comes again replaces it and all behind it: the sequence was
// computed anew from there.
void TraceBuilder::add_own_token(const JsonObject& o, TraceSequence& s) {
  const size_t L = trace_.layers.size(), K = static_cast<size_t>(trace_.top_k),
               E = static_cast<size_t>(trace_.n_experts);
  const auto position = static_cast<int>(o.integer("position", 0, INT32_MAX));
  if (position > s.positions)
    o.fail("position", fmt::format("must be {}: a sequence's tokens stand in order", s.positions));
  const auto before = static_cast<size_t>(position);
  s.positions = position + 1;
  s.ids.resize(before * L * K);
  const auto cut = [before](auto& values, size_t each) { values.resize(std::min(values.size(), before * each)); };
  cut(s.weights, L * K);
  cut(s.rank, L * E);
  cut(s.mix, L * E);
  cut(s.tokens, 1);
  cut(s.logits, 1);
  const json::array& rows = o.array("experts");
  if (rows.size() != L) o.fail("experts", fmt::format("has {} layers, the header {}", rows.size(), L));
  for (const json::value& row : rows) {
    const json::array& ids = array_of(row, o.where(), "\"experts\"");
    if (ids.size() > K) o.fail("experts", fmt::format("{} in a layer, the header says {}", ids.size(), K));
    for (const json::value& id : ids) {
      check_expert(o.where(), whole(id, o.where()));
      s.ids.push_back(static_cast<int16_t>(id.as_int64()));
    }
    s.ids.resize(s.ids.size() + K - ids.size(), -1);
  }
  if (o.has("weights")) append_rows(o, "weights", L, K, s.weights);
  if (o.has("rank")) append_rows(o, "rank", L, E, s.rank, -std::numeric_limits<float>::infinity());
  if (o.has("mix")) append_rows(o, "mix", L, E, s.mix, 0.0f);
  if (o.has("token")) s.tokens.push_back(static_cast<int>(o.integer("token", 0, INT32_MAX)));
  if (!s.tokens.empty()) s.logits.push_back(o.has("logits") ? checksum_of(o) : 0);
  const auto n = before + 1;
  const bool whole_sequence = (s.weights.empty() || s.weights.size() == n * L * K) &&
                              (s.rank.empty() || s.rank.size() == n * L * E) && s.rank.size() == s.mix.size() &&
                              (s.tokens.empty() || s.tokens.size() == n);
  if (!whole_sequence)
    malformed(o.where(), "some tokens of the sequence have weights, scores or ids and others have none");
}

void TraceBuilder::add_own(const std::string& path, const std::string& text) {
  const std::string where = escape(path, 400);
  std::map<std::string, size_t> places;  // sequences of this file; those of requests in one batch interleave
  bool header = false;
  for_each_line(text, [&](const Line& line) {
    const std::string here = line.where(path);
    json::value value;
    try {
      value = parse_json(line.text, here);
    } catch (const Error&) {
      if (!line.last || !header) throw;
      trace_.notes.push_back(fmt::format("{}: the last line is cut short and was left out", where));
      return;
    }
    const JsonObject o(value, here);
    if (!header) {
      header = true;
      if (o.integer("carpool_trace", 0, 1 << 20) != 1) o.fail("carpool_trace", "this version reads version 1");
      const int E = static_cast<int>(o.integer("n_experts", 1, kMaxTraceExperts));
      if (told_ && E != trace_.n_experts)
        o.fail("n_experts", fmt::format("{}, other files have {}", E, trace_.n_experts));
      const std::string routers = o.string_or("routers", "");
      trace_.routers = !told_ || routers == trace_.routers ? routers : "";
      told_ = true;
      trace_.n_experts = E;
      trace_.model = o.string_or("model", "");
      trace_.model_hash = o.string_or("model_hash", "");
      trace_.policy = o.string_or("policy", "");
      std::vector<int> layers;
      for (const json::value& l : o.array("layers")) layers.push_back(static_cast<int>(whole(l, here)));
      return expect(here, static_cast<int>(o.integer("top_k", 1, kMaxTraceK)), layers, o.boolean_or("ranked", true));
    }
    const std::string name = o.string("sequence");
    const auto [found, fresh] = places.try_emplace(name, trace_.sequences.size());
    if (fresh) trace_.sequences.push_back({name, 0, {}, {}, {}, {}, {}, {}});
    add_own_token(o, trace_.sequences[found->second]);
  });
  if (!header) malformed(where, "the file is empty");
}

void TraceBuilder::add_fingerprint(const std::string& path, const std::string& text) {
  const std::string where = escape(path, 400);
  const json::value root = parse_json(text, where);
  const JsonObject file(root, where);
  TraceSequence s;
  s.name = std::filesystem::path(path).stem().string();
  for (const json::value& item : file.array("router_data")) {
    const JsonObject tokens(item, where + ": \"router_data\"");
    for (const auto& token : tokens.raw()) {
      const JsonObject layers(token.value(), fmt::format("{}: {}", where, escape(token.key())));
      std::vector<std::pair<int, const json::value*>> rows;
      for (const auto& row : layers.raw()) {
        const int l = number_after(row.key(), "layer_");
        if (l < 0) layers.fail(row.key(), "is not a layer");
        rows.emplace_back(l, &row.value());
      }
      std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      std::vector<int> numbers;
      int K = -1;  // not known yet
      for (const auto& [l, value] : rows) {
        numbers.push_back(l);
        const JsonObject row(*value, fmt::format("{}: layer_{}", layers.where(), l));
        const json::array &ids = row.array("selected_experts"), &weights = row.array("selected_probs");
        if (K < 0) K = static_cast<int>(ids.size());
        if (ids.size() != weights.size() || static_cast<int>(ids.size()) != K)
          row.fail("selected_experts",
                   fmt::format("{} experts and {} weights, expected {}", ids.size(), weights.size(), K));
        for (size_t i = 0; i < ids.size(); ++i) {
          check_expert(row.where(), whole(ids[i], row.where()));
          s.ids.push_back(static_cast<int16_t>(ids[i].as_int64()));
          s.weights.push_back(number_of(weights[i], row.where()));
        }
      }
      expect(layers.where(), K, numbers, true);
      ++s.positions;
    }
  }
  if (s.positions == 0) file.fail("router_data", "holds no tokens");
  trace_.sequences.push_back(std::move(s));
}

namespace {

struct EsftChoice {
  int expert = 0;
  float weight = 0;
};

constexpr int kEsftExperts = 6;  // per token, of the model that such files are published for

// The choices of one line: ids of all its tokens, an empty column, weights in the same order. Ids are not sorted by
// weight; here they are, equal weights by id.
std::vector<EsftChoice> esft_line(std::string_view line, const std::string& here) {
  std::vector<std::string_view> cells;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find('\t', begin), line.size());
    cells.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  const auto blank = static_cast<size_t>(std::find(cells.begin(), cells.end(), "") - cells.begin());
  if (blank == 0 || blank % kEsftExperts != 0 || cells.size() < 2 * blank + 1) {
    malformed(here,
              fmt::format("expected ids of whole tokens ({} each), an empty column and as many weights", kEsftExperts));
  }
  std::vector<EsftChoice> choices(blank);
  for (size_t i = 0; i < blank; ++i) {
    const std::string_view id = cells[i], weight = cells[blank + 1 + i];
    const bool read =
        std::from_chars(id.data(), id.data() + id.size(), choices[i].expert).ec == std::errc() &&
        std::from_chars(weight.data(), weight.data() + weight.size(), choices[i].weight).ec == std::errc() &&
        std::isfinite(choices[i].weight);
    if (!read) malformed(here, "holds something that is no number");
  }
  for (auto it = choices.begin(); it != choices.end(); it += kEsftExperts) {
    std::sort(it, it + kEsftExperts, [](const EsftChoice& a, const EsftChoice& b) {
      return a.weight > b.weight || (a.weight == b.weight && a.expert < b.expert);
    });
  }
  return choices;
}

}  // namespace

// All layers of one task: files of one prompt per line.
void TraceBuilder::add_esft(const std::string& folder, const std::map<int, std::string>& files) {
  const std::string task = std::filesystem::path(folder).filename().string();
  std::vector<int> layers;
  for (const auto& file : files) layers.push_back(file.first);
  expect(escape(folder, 400), kEsftExperts, layers, true);
  const size_t at = trace_.sequences.size(), slots = trace_.slots();
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::string& path = files.at(layers[l]);
    size_t index = at;
    for_each_line(read_text_file(path, kMaxTraceFile), [&](const Line& line) {
      const std::string here = line.where(path);
      const std::vector<EsftChoice> choices = esft_line(line.text, here);
      const auto positions = static_cast<int>(choices.size() / kEsftExperts);
      if (l == 0) {
        TraceSequence s{fmt::format("{} {}", task, line.number), positions, {}, {}, {}, {}, {}, {}};
        s.ids.assign(static_cast<size_t>(positions) * slots, -1);
        s.weights.assign(s.ids.size(), 0);
        trace_.sequences.push_back(std::move(s));
      }
      if (index >= trace_.sequences.size() || trace_.sequences[index].positions != positions) {
        malformed(here, "the prompt has another length than in the other layers");
      }
      TraceSequence& s = trace_.sequences[index++];
      for (size_t i = 0; i < choices.size(); ++i) {
        check_expert(here, choices[i].expert);
        const size_t slot = i / kEsftExperts * slots + l * kEsftExperts + i % kEsftExperts;
        s.ids[slot] = static_cast<int16_t>(choices[i].expert);
        s.weights[slot] = choices[i].weight;
      }
    });
    if (index != trace_.sequences.size()) malformed(escape(path, 400), "holds fewer prompts than the other layers");
  }
}

// JSON lines of {"tok": id, "layers": [[ids], ...]}: one sequence, ids sorted by id.
void TraceBuilder::add_token_lines(const std::string& path, const std::string& text) {
  TraceSequence s;
  s.name = std::filesystem::path(path).stem().string();
  bool ascending = true;
  std::vector<int> layers;
  int K = -1;  // not known yet
  for_each_line(text, [&](const Line& line) {
    const std::string here = line.where(path);
    const json::value value = parse_json(line.text, here);
    const json::array& rows = JsonObject(value, here).array("layers");
    if (layers.empty()) layers = counted(rows.size());
    if (rows.size() != layers.size())
      malformed(here, fmt::format("{} layers, the first line has {}", rows.size(), layers.size()));
    for (const json::value& row : rows) {
      const json::array& ids = array_of(row, here, "\"layers\"");
      if (K < 0) K = static_cast<int>(ids.size());
      if (static_cast<int>(ids.size()) != K)
        malformed(here, fmt::format("{} experts in a layer, expected {}", ids.size(), K));
      for (size_t i = 0; i < ids.size(); ++i) {
        check_expert(here, whole(ids[i], here));
        ascending = ascending && (i == 0 || ids[i].as_int64() > ids[i - 1].as_int64());
        s.ids.push_back(static_cast<int16_t>(ids[i].as_int64()));
      }
    }
    ++s.positions;
  });
  if (s.positions == 0) malformed(escape(path, 400), "the file is empty");
  expect(escape(path, 400), K, layers, !ascending);
  trace_.sequences.push_back(std::move(s));
}

// A NumPy array [tokens, layers, k] of int16 or int32, little endian, C order, version 1 or 2.
void TraceBuilder::add_npy(const std::string& path, const std::string& bytes) {
  const std::string where = escape(path, 400);
  if (bytes.size() < 12 || bytes[6] < 1 || bytes[6] > 2) malformed(where, "is not a .npy file of version 1 or 2");
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(bytes[i])); };
  const size_t start = bytes[6] == 1 ? 10 : 12;
  size_t length = byte(8) + (byte(9) << 8);
  if (start == 12) length += (byte(10) << 16) + (byte(11) << 24);
  if (length > bytes.size() - start) malformed(where, "ends inside its header");
  const std::string head = bytes.substr(start, length);
  const size_t size = head.find("'<i2'") != std::string::npos ? 2 : head.find("'<i4'") != std::string::npos ? 4 : 0;
  const size_t open = head.find("'shape': (");
  if (size == 0 || open == std::string::npos || head.find("'fortran_order': False") == std::string::npos) {
    malformed(where, "must hold int16 or int32, little endian, in C order");
  }
  std::vector<int64_t> shape;
  for (size_t at = open + 10; at < head.size() && head[at] != ')';) {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(head.data() + at, head.data() + head.size(), n);
    if (error != std::errc() || n < 1 || n > (int64_t{1} << 31)) break;
    shape.push_back(n);
    at = static_cast<size_t>(end - head.data());
    while (at < head.size() && (head[at] == ',' || head[at] == ' ')) ++at;
  }
  if (shape.size() != 3) malformed(where, "must have three dimensions: tokens, layers, experts per token");
  if (shape[1] > kMaxTraceLayers || shape[2] > kMaxTraceK) malformed(where, "has too many layers or experts per token");
  const auto values = static_cast<size_t>(shape[0] * shape[1] * shape[2]);
  if (bytes.size() - start - length != values * size) malformed(where, "has another size than its header says");
  expect(where, static_cast<int>(shape[2]), counted(static_cast<size_t>(shape[1])), true);
  TraceSequence s{std::filesystem::path(path).stem().string(), static_cast<int>(shape[0]), {}, {}, {}, {}, {}, {}};
  s.ids.reserve(values);
  for (size_t i = 0; i < values; ++i) {
    int32_t id = 0;
    const char* at = bytes.data() + start + length + i * size;
    if (size == 2) {
      int16_t half;
      std::memcpy(&half, at, 2);
      id = half;
    } else {
      std::memcpy(&id, at, 4);
    }
    if (id != -1) check_expert(where, id);
    s.ids.push_back(static_cast<int16_t>(id));
  }
  trace_.sequences.push_back(std::move(s));
}

void TraceBuilder::add_file(const std::string& path) {
  namespace fs = std::filesystem;
  const std::string name = fs::path(path).filename().string();
  const int layer = number_after(fs::path(path).stem().string(), "expert_weights_");
  if (layer >= 0 && name.ends_with(".txt")) {
    esft_[fs::path(path).parent_path().string()][layer] = path;
    return;
  }
  const std::string text = read_text_file(path, kMaxTraceFile);
  if (text.starts_with("\x93NUMPY")) return add_npy(path, text);
  const std::string_view first = std::string_view(text).substr(0, text.find('\n'));
  if (first.find("\"carpool_trace\"") != std::string_view::npos) return add_own(path, text);
  if (first.find("\"layers\"") != std::string_view::npos) return add_token_lines(path, text);
  if (text.find("\"router_data\"") != std::string::npos) return add_fingerprint(path, text);
  malformed(escape(path, 400), "is no trace in a format that is known here (docs/traces.md lists them)");
}

Trace TraceBuilder::finish() {
  for (const auto& [folder, files] : esft_) add_esft(folder, files);
  if (trace_.tokens() == 0) malformed("the traces", "hold no tokens");
  if (!told_) {
    // Published models have one of these; the smallest that holds every id is what ids alone can say.
    constexpr int kUsual[] = {4, 8, 16, 32, 60, 64, 128, 160, 256, 288, 384, 512, 1024, 2048, kMaxTraceExperts};
    trace_.n_experts =
        asked_ > 0 ? asked_ : *std::find_if(std::begin(kUsual), std::end(kUsual), [&](int n) { return n > highest_; });
    if (asked_ == 0)
      trace_.notes.push_back(
          fmt::format("the files do not say how many experts there are: taken as {}", trace_.n_experts));
  }
  if (!trace_.policy.empty() && trace_.policy != "topk") {
    trace_.notes.push_back(
        fmt::format("recorded under {}: the experts are those that ran, {}", escape(trace_.policy, 200),
                    trace_.has_scores() ? "the scores those of that run" : "not the model's own choice"));
  }
  if (trace_.top_k > trace_.n_experts) malformed("the traces", "more experts per token than experts");
  return std::move(trace_);
}

}  // namespace carpool
