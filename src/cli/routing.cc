// carpool routing list | score. See routing.h for the request and the answer.
#include "cli/routing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>

#include "cli/model_options.h"
#include "model/routing_tables.h"
#include "routing/policy.h"
#include "routing/scoring.h"

namespace carpool {
namespace {

constexpr size_t kMaxRows = 65536;
constexpr size_t kMaxExperts = 4096;
constexpr size_t kMaxScores = size_t{1} << 26;  // 256 MiB of logits
constexpr size_t kMaxBytes = size_t{1} << 30;

struct Request {
  int n_experts = 0;
  int top_k = 0;
  int layer = 0;
  std::vector<float> logits;
  std::vector<TokenInfo> tokens;
  Scoring scoring;
  std::unique_ptr<Policy> policy;
};

void allow_keys(const JsonObject& object, const std::vector<std::string>& known) {
  for (const auto& item : object.raw()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
      object.fail(item.key(), fmt::format("unknown key; known keys: {}", fmt::join(known, ", ")));
    }
  }
}

// Index of the string at `key` among `choices`; the first is the default.
size_t choice(const JsonObject& object, std::string_view key, const std::vector<std::string>& choices) {
  const std::string value = object.string_or(key, choices[0]);
  const auto found = std::find(choices.begin(), choices.end(), value);
  if (found == choices.end()) {
    object.fail(key, fmt::format("must be {}, got \"{}\"", fmt::join(choices, " or "), escape(value)));
  }
  return static_cast<size_t>(found - choices.begin());
}

// A float32, given as a number or as "nan", "inf", "-inf". `path` is called only to name a bad value.
template <class Path>
float read_float(const JsonObject& object, const json::value& value, Path&& path) {
  if (const json::string* text = value.if_string()) {
    if (*text == "nan") return std::numeric_limits<float>::quiet_NaN();
    if (*text == "inf") return std::numeric_limits<float>::infinity();
    if (*text == "-inf") return -std::numeric_limits<float>::infinity();
  }
  if (!value.is_number()) object.fail(path(), "must be a number, \"nan\", \"inf\" or \"-inf\"");
  const double d = value.to_number<double>();
  const auto f =
      static_cast<float>(std::clamp<double>(d, -std::numeric_limits<float>::max(), std::numeric_limits<float>::max()));
  // Up to half a step above the largest float32 still rounds to it; beyond, the number is not one.
  if (std::fabs(d) >= 0x1.ffffffp127) object.fail(path(), "is too large for float32");
  return f;
}

void read_logits(const JsonObject& root, Request& request) {
  const json::array& rows = root.array("logits");
  if (rows.empty() || rows.size() > kMaxRows) {
    root.fail("logits", fmt::format("must have 1 to {} rows, got {}", kMaxRows, rows.size()));
  }
  const auto row_at = [&](size_t t) -> const json::array& {
    const json::array* row = rows[t].if_array();
    if (!row) root.fail(fmt::format("logits[{}]", t), "must be an array of numbers");
    return *row;
  };
  const size_t width = row_at(0).size();
  if (width < 1 || width > kMaxExperts) {
    root.fail("logits[0]", fmt::format("must have 1 to {} experts, got {}", kMaxExperts, width));
  }
  if (rows.size() * width > kMaxScores) {
    root.fail("logits", fmt::format("{} rows of {} experts are more than {} scores", rows.size(), width, kMaxScores));
  }
  request.n_experts = static_cast<int>(width);
  request.logits.reserve(rows.size() * width);
  for (size_t t = 0; t < rows.size(); ++t) {
    const json::array& row = row_at(t);
    if (row.size() != width) {
      root.fail(fmt::format("logits[{}]", t), fmt::format("has {} experts, the first row has {}", row.size(), width));
    }
    for (size_t e = 0; e < width; ++e) {
      request.logits.push_back(read_float(root, row[e], [&] { return fmt::format("logits[{}][{}]", t, e); }));
    }
  }
}

void read_scoring(const JsonObject& root, Request& request) {
  constexpr int kMax = std::numeric_limits<int>::max();
  Scoring& scoring = request.scoring;
  scoring.kind = static_cast<Scoring::Kind>(choice(root, "scoring", {"softmax", "softmax_topk", "sigmoid"}));
  scoring.renormalize = root.boolean_or("renormalize", true);
  scoring.n_group = static_cast<int>(root.integer_or("n_group", 1, 1, kMax));
  scoring.topk_group = static_cast<int>(root.integer_or("topk_group", 1, 1, kMax));
  const bool best_only = choice(root, "group_score", {"top2", "max"}) == 1;
  scoring.group_score = best_only ? Scoring::GroupScore::kMax : Scoring::GroupScore::kTop2;
  constexpr double kFloatMax = std::numeric_limits<float>::max();
  scoring.routed_scaling_factor = static_cast<float>(root.number_or("routed_scaling_factor", 1, -kFloatMax, kFloatMax));
  if (root.has("bias")) {
    const json::array& bias = root.array("bias");
    for (size_t e = 0; e < bias.size(); ++e) {
      scoring.selection_bias.push_back(read_float(root, bias[e], [&] { return fmt::format("bias[{}]", e); }));
    }
    if (bias.empty()) root.fail("bias", fmt::format("has 0 values for {} experts", request.n_experts));
  }
  request.top_k = static_cast<int>(root.integer("top_k", 1, request.n_experts));
  try {
    scoring.check(request.n_experts, request.top_k);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}: {}", root.where(), e.what()));
  }
}

void read_rows(const JsonObject& root, Request& request) {
  const size_t n_rows = request.logits.size() / static_cast<size_t>(request.n_experts);
  request.tokens.resize(n_rows);
  if (!root.has("rows")) return;
  const json::array& rows = root.array("rows");
  if (rows.size() != n_rows) {
    root.fail("rows", fmt::format("has {} entries, logits has {} rows", rows.size(), n_rows));
  }
  constexpr Phase kPhases[] = {Phase::kDecode, Phase::kPrefill, Phase::kPad};
  for (size_t t = 0; t < n_rows; ++t) {
    const JsonObject row(rows[t], fmt::format("{}: rows[{}]", root.where(), t));
    allow_keys(row, {"phase", "isolated", "group"});
    TokenInfo& token = request.tokens[t];
    token.phase = kPhases[choice(row, "phase", {"decode", "prefill", "pad"})];
    token.isolated = row.boolean_or("isolated", false);
    token.group =
        static_cast<int>(row.integer_or("group", 0, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
  }
}

// Appends the numbers of a row, or of `rows` rows one after another; of other lengths, RoutingTables::check says.
std::vector<float> read_table(const JsonObject& tables, const std::string& key, bool square) {
  std::vector<float> values;
  if (!tables.has(key)) return values;
  const json::array& rows = tables.array(key);
  const auto read_row = [&](const json::array& row, const std::string& path) {
    if (row.size() > kMaxExperts) tables.fail(path, fmt::format("has more than {} entries", kMaxExperts));
    for (const json::value& v : row) values.push_back(read_float(tables, v, [&] { return path; }));
  };
  if (!square) {
    read_row(rows, key);
    return values;
  }
  if (rows.size() > kMaxExperts) tables.fail(key, fmt::format("has more than {} rows", kMaxExperts));
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", key, i);
    const json::array* row = rows[i].if_array();
    if (!row) tables.fail(path, "must be an array of numbers");
    read_row(*row, path);
  }
  return values;
}

std::shared_ptr<const RoutingTables> read_tables(const JsonObject& root, const Request& request) {
  const JsonObject o = root.object("tables");
  allow_keys(o, {"similarity", "fold_scale", "fold_loss", "norm", "contribution", "resident", "rank_range", "k0"});
  auto tables = std::make_shared<RoutingTables>();
  tables->n_experts = request.n_experts;
  tables->top_k = request.top_k;
  tables->layers.resize(static_cast<size_t>(request.layer) + 1);
  LayerTables& t = tables->layers.back();
  t.similarity = read_table(o, "similarity", true);
  t.fold_scale = read_table(o, "fold_scale", true);
  t.fold_loss = read_table(o, "fold_loss", true);
  t.norm = read_table(o, "norm", false);
  t.contribution = read_table(o, "contribution", false);
  for (const float v : read_table(o, "resident", false)) {
    if (v != 0 && v != 1) o.fail("resident", "must hold 0 and 1");
    t.resident.push_back(v != 0 ? 1 : 0);
  }
  t.rank_range = static_cast<float>(o.number_or("rank_range", 0, 0, std::numeric_limits<float>::max()));
  t.k0 = static_cast<int>(o.integer_or("k0", 0, 1, request.top_k));
  tables->check(o.where());
  return tables;
}

// Without a model nothing says whose tables a file's are, but that they fit the layer.
void give_tables(const JsonObject& root, Request& request) {
  const std::string path = request.policy->tables_file();
  if (path.empty() && root.has("tables")) root.fail("tables", "the policy needs none");
  if (path.empty()) return;
  if (root.has("tables")) return request.policy->use_tables(read_tables(root, request));
  auto file = std::make_shared<RoutingTablesFile>(read_routing_tables(path));
  if (!file->tables.layer(request.layer))
    root.fail("layer", fmt::format("{} has no tables of layer {}", escape(path, 400), request.layer));
  request.policy->use_tables(std::shared_ptr<const RoutingTables>(file, &file->tables));
}

void read_policy(const JsonObject& root, Request& request) {
  request.layer = static_cast<int>(root.integer_or("layer", 0, 0, RoutingTables::kMaxLayers - 1));
  try {
    request.policy = make_policy(root.string_or("policy", "topk"));
    give_tables(root, request);
    const int layers = request.policy->layers();
    if (layers > 0 && request.layer >= layers)
      root.fail("layer", fmt::format("the policy has values for {} layers, this is layer {}", layers, request.layer));
    request.policy->check(request.n_experts, request.top_k);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kConfig) throw;
    throw Error(e.kind(), fmt::format("{}: \"policy\": {}", root.where(), e.what()));
  }
}

Request read_request(const std::string& text, const std::string& where) {
  JsonLimits limits;
  limits.max_bytes = kMaxBytes;
  const json::value value = parse_json(text, where, limits);
  const JsonObject root(value, where);
  allow_keys(root, {"logits", "bias", "scoring", "top_k", "renormalize", "n_group", "topk_group", "group_score",
                    "routed_scaling_factor", "rows", "policy", "layer", "tables"});
  Request request;
  read_logits(root, request);
  read_scoring(root, request);
  read_rows(root, request);
  read_policy(root, request);
  return request;
}

// A float32 widened to double prints with enough digits to come back as the same float32.
json::value number(float f) {
  if (std::isnan(f)) return "nan";
  if (std::isinf(f)) return f > 0 ? "inf" : "-inf";
  return static_cast<double>(f);
}

json::array sorted_experts(const Selection& selection) {
  std::vector<int> ids(selection.experts().begin(), selection.experts().end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return json::array(ids.begin(), ids.end());
}

std::string read_all(const std::string& file) {
  if (file != "-") return read_text_file(file, kMaxBytes);
  return read_stream(std::cin, kMaxBytes, "standard input");
}

std::vector<std::pair<const char*, bool>> named_properties(const PolicyProperties& p) {
  return {{"union", p.union_exact},     {"keeps_top_k0", p.keeps_top_k0},   {"fills_union", p.fills_union},
          {"batch_free", p.batch_free}, {"may_repeat", p.may_repeat},       {"ids_decide", p.ids_decide},
          {"by_rank", p.by_rank},       {"at_most_plain", p.at_most_plain}, {"uses_tables", p.uses_tables},
          {"reweighs", p.reweighs}};
}

std::string list_as_text() {
  std::string text;
  for (const PolicyInfo& info : policy_list()) {
    text += fmt::format("{}\n  {}\n", info.name, info.summary);
    for (const ArgumentInfo& a : info.arguments) {
      const std::string fallback = a.fallback == "required" ? a.fallback : "default " + a.fallback;
      text += fmt::format("  {:<10} {} ({})\n", a.name, a.meaning, fallback);
    }
    std::vector<std::string> held;
    for (const auto& [property, holds] : named_properties(info.properties)) {
      if (holds) held.push_back(property);
    }
    text += fmt::format("  promises: {}\n", fmt::join(held, ", "));
  }
  return text;
}

}  // namespace

json::value list_policies() {
  json::array policies;
  for (const PolicyInfo& info : policy_list()) {
    json::object properties;
    for (const auto& [property, holds] : named_properties(info.properties)) properties[property] = holds;
    json::array arguments;
    for (const ArgumentInfo& a : info.arguments) {
      arguments.push_back(json::object{{"name", a.name}, {"meaning", a.meaning}, {"default", a.fallback}});
    }
    policies.push_back(json::object{
        {"name", info.name}, {"summary", info.summary}, {"properties", properties}, {"arguments", arguments}});
  }
  return json::object{{"policies", policies}};
}

json::value score_request(const std::string& text, const std::string& where) {
  const Request request = read_request(text, where);
  std::vector<float> rank(request.logits.size()), mix(request.logits.size());
  score(request.scoring, request.n_experts, request.logits, rank, mix);
  const RouterInput in{rank, mix, request.tokens, request.n_experts, request.top_k, request.layer};
  Scratch scratch;
  Selection plain, chosen;
  select_plain(in, scratch, plain);
  request.policy->select(in, scratch, chosen);
  std::vector<float> weights(static_cast<size_t>(chosen.size()));
  finish_weights(request.scoring, request.n_experts, mix, chosen, weights);

  json::array experts_out, weights_out, reasons;
  for (int t = 0; t < chosen.rows(); ++t) {
    const auto row = chosen.row(t);
    experts_out.push_back(json::array(row.begin(), row.end()));
    json::array row_weights;
    for (int i = chosen.begin(t); i < chosen.end(t); ++i)
      row_weights.push_back(number(weights[static_cast<size_t>(i)]));
    weights_out.push_back(std::move(row_weights));
    const PlainReason reason = chosen.reason(t);
    reasons.push_back(reason == PlainReason::kApplied ? json::value() : json::value(name(reason)));
  }
  return json::object{{"experts", std::move(experts_out)},
                      {"weights", std::move(weights_out)},
                      {"active", sorted_experts(chosen)},
                      {"active_plain", sorted_experts(plain)},
                      {"plain_reason", std::move(reasons)}};
}

void add_routing(CLI::App& app) {
  CLI::App* routing = app.add_subcommand("routing", "The routing core alone: list policies, route given logits");
  routing->require_subcommand(1);
  routing->footer("Example: carpool routing list");

  CLI::App* list = routing->add_subcommand("list", "Every policy with its arguments and what it promises");
  auto json_file = std::make_shared<std::string>();
  list->add_option("--json", *json_file, "Write the list as JSON to this file; - is standard output");
  list->footer("Example: carpool routing list --json -");
  list->callback([json_file] {
    if (json_file->empty()) {
      write_output("-", list_as_text());
    } else {
      write_output(*json_file, pretty(list_policies()));
    }
  });

  CLI::App* score = routing->add_subcommand("score", "Route one batch of logits: JSON in, experts and weights out");
  auto file = std::make_shared<std::string>();
  score->add_option("FILE", *file, "The request (src/cli/routing.h describes it); - is standard input")->required();
  score->footer(
      "Example: echo '{\"logits\": [[2, 1, 0], [0, 2, 1]], \"top_k\": 2, \"scoring\": \"softmax\", \"policy\": "
      "\"oea:k0=1,guard=off\"}' | carpool routing score -");
  score->callback([file] {
    const std::string where = *file == "-" ? "standard input" : escape(*file);
    write_output("-", json::serialize(score_request(read_all(*file), where)) + "\n");
  });
}

}  // namespace carpool
