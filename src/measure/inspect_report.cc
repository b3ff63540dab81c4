// What `carpool inspect` prints, as text and as JSON; see inspect.h.
#include <fmt/format.h>

#include "measure/inspect.h"

namespace carpool {
namespace {

// 30532122624 -> "30.53 billion".
std::string count_text(int64_t n) {
  const auto v = static_cast<double>(n);
  if (v >= 1e9) return number_text(v / 1e9, 2) + " billion";
  if (v >= 1e6) return number_text(v / 1e6, 2) + " million";
  return fmt::format("{}", n);
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return number_text(bytes / 1e9, 2) + " GB";
  if (bytes >= 1e6) return number_text(bytes / 1e6, 2) + " MB";
  if (bytes >= 1e3) return number_text(bytes / 1e3, 1) + " kB";
  return number_text(bytes, 0) + " bytes";
}

std::string features_text(const ModelConfig& c) {
  std::string out = c.heads == c.kv_heads ? "multi-head attention" : "grouped-query attention";
  if (c.latent) out = "latent attention";
  if (c.indexer) out += fmt::format(" to the {} positions that an indexer chooses", c.indexer->top);
  if (c.qk_norm != ModelConfig::QkNorm::kNone) out += ", query and key norms";
  if (c.qkv_bias || c.o_bias) out += ", attention biases";
  if (c.sinks) out += ", attention sinks";
  if (!c.window.empty()) out += fmt::format(", sliding window {}", *std::max_element(c.window.begin(), c.window.end()));
  if (c.tied_head) out += ", head tied to the embedding";
  if (c.moe_layers() == 0) return out + ", no routed experts";
  switch (c.scoring.kind) {
    case Scoring::Kind::kSoftmax:
      out += ", softmax router";
      break;
    case Scoring::Kind::kSoftmaxTopk:
      out += ", softmax over the chosen experts";
      break;
    case Scoring::Kind::kSigmoid:
      out += ", sigmoid router";
      break;
  }
  if (c.scoring.renormalize) out += " with renormalised weights";
  if (c.scoring.unit_weights) out += ", every expert of weight 1";
  if (c.scoring.n_group > 1) out += fmt::format(", {} of {} expert groups", c.scoring.topk_group, c.scoring.n_group);
  return out;
}

std::vector<std::pair<std::string, std::string>> size_lines(const InspectReport& r) {
  const ModelConfig& c = r.config;
  const Parameters& p = r.parameters;
  std::vector<std::pair<std::string, std::string>> lines;
  lines.emplace_back("family", c.family);
  lines.emplace_back("features", features_text(c));
  lines.emplace_back(
      "layers", fmt::format("{} ({} with routed experts), width {}, {} query and {} key/value heads of {}", c.layers,
                            c.moe_layers(), c.width, c.heads, c.kv_heads, c.head_dim));
  if (c.moe_layers() > 0)
    lines.emplace_back("experts", fmt::format("{} per token of {}, width {}", c.top_k, c.n_experts, c.expert_width));
  if (c.shared_width > 0) lines.emplace_back("shared experts", fmt::format("width {}", c.shared_width));
  lines.emplace_back("vocabulary", fmt::format("{}, context {}", c.vocab, c.context));
  lines.emplace_back("parameters",
                     fmt::format("{}, of which a token uses {}", count_text(p.total), count_text(p.active)));
  lines.emplace_back(
      "", fmt::format("attention {}, router {}, experts {}, shared experts {}, dense blocks {}, embedding {}, head {}",
                      count_text(p.attention), count_text(p.router), count_text(p.experts), count_text(p.shared),
                      count_text(p.dense), count_text(p.embedding), c.tied_head ? "tied" : count_text(p.head)));
  if (p.unused > 0) {
    lines.emplace_back("not run", fmt::format("{} multi-token prediction layer{}, {} parameters more", c.unused_layers,
                                              c.unused_layers == 1 ? "" : "s", count_text(p.unused)));
  }
  lines.emplace_back("weights", fmt::format("{} ({})", bytes_text(r.bytes.weights), r.bytes.source));
  lines.emplace_back("one expert", fmt::format("{} ({} MiB)", bytes_text(r.bytes.per_expert),
                                               number_text(r.bytes.per_expert / (1 << 20), 2)));
  lines.emplace_back("every step", fmt::format("{} besides experts", bytes_text(r.bytes.dense)));
  lines.emplace_back("KV cache",
                     fmt::format("{} per token ({})", bytes_text(r.bytes.kv_per_token), name(r.bytes.kv_format)));
  lines.emplace_back("read speed", fmt::format("{} GB/s measured now", number_text(r.input.read_gbps, 1)));
  return lines;
}

Table prediction_table(const InspectReport& r) {
  const bool text = !r.input.text.empty();
  Table table{fmt::format("Decode steps with {} positions of context per row", r.input.context_tokens),
              {"policy", "batch", "experts, uniform"},
              {}};
  if (text) table.columns.emplace_back("experts, text");
  for (const char* column : {"of all", "MB/step", "tok/s at most", "per stream"}) table.columns.emplace_back(column);
  for (const InspectRow& row : r.rows) {
    std::vector<std::string> cells = {row.policy, std::to_string(row.batch), number_text(row.uniform, 1)};
    if (text) cells.push_back(row.text ? number_text(*row.text, 1) : "-");
    cells.push_back(r.config.moe_layers() > 0 ? percent_text(row.distinct_experts / r.config.n_experts) : "-");
    cells.push_back(number_text(row.bytes_per_step / 1e6, 1));
    const double rate = row.tokens_per_second_bound, each = rate / row.batch;
    cells.push_back(number_text(rate, rate < 100 ? 2 : 0));
    cells.push_back(number_text(each, each < 100 ? 2 : 0));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

std::string skew_text(const InspectReport& r) {
  const TextRouting& text = r.input.text.back();
  const int E = r.config.n_experts;
  return fmt::format(
      "On the text, experts are as unevenly used as if {} of {} were used evenly; the busiest takes {} of a layer's "
      "slots, {} times its even share (batch {}, {} steps, mean over layers).\n",
      number_text(text.even_experts, 1), E, percent_text(text.busiest_share), number_text(text.busiest_share * E, 1),
      text.batch, text.steps);
}

}  // namespace

std::string inspect_text(const InspectReport& report) {
  std::string out;
  const auto facts = fact_lines(report.facts);
  const auto sizes = size_lines(report);
  size_t width = 0;
  for (const auto* lines : {&facts, &sizes}) {
    for (const auto& [key, value] : *lines) width = std::max(width, key.size());
  }
  for (const auto* lines : {&facts, &sizes}) {
    for (const auto& [key, value] : *lines) out += fmt::format("{:<{}}  {}\n", printable(key), width, printable(value));
    out += "\n";
  }
  for (const std::string& note : report.config.notes) out += "note: " + printable(note) + "\n";
  if (!report.config.notes.empty()) out += "\n";
  out += to_text(prediction_table(report)) + "\n";
  if (!report.input.text.empty()) out += skew_text(report);
  out +=
      "tok/s are upper bounds: the bytes of a step over the read speed, as if computing were free. Uniform routing "
      "is the worst case of independent rows; real texts usually load fewer experts";
  out += report.input.text.empty() ? " (--text FILE counts them).\n" : ".\n";
  if (report.bytes.weights < 4.0 * static_cast<double>(report.cache_bytes)) {
    out += fmt::format(
        "Here the bounds do not hold: weights of {} are less than four times the last-level cache of {}, so a part of "
        "every step's bytes comes from the cache, faster than memory.\n",
        bytes_text(report.bytes.weights), bytes_text(static_cast<double>(report.cache_bytes)));
  }
  if (report.config.moe_layers() > 0) {
    out +=
        "Rows of oea count the experts of its first phase; a lone row, and a union smaller than K, stay plain. Their "
        "quality is measured by carpool ab.\n";
  }
  return out;
}

json::value inspect_json(const InspectReport& report) {
  const ModelConfig& c = report.config;
  const Parameters& p = report.parameters;
  json::object out;
  for (const auto& [key, value] : {std::pair("command", &report.facts.command),
                                   {"commit", &report.facts.commit},
                                   {"machine", &report.facts.machine},
                                   {"model", &report.facts.model}})
    out[key] = *value;
  json::object settings;
  for (const auto& [key, value] : report.facts.settings) settings[key] = value;
  out["settings"] = std::move(settings);
  out["config"] = {{"family", c.family},
                   {"layers", c.layers},
                   {"moe_layers", c.moe_layers()},
                   {"width", c.width},
                   {"heads", c.heads},
                   {"kv_heads", c.kv_heads},
                   {"head_dim", c.head_dim},
                   {"vocab", c.vocab},
                   {"context", c.context},
                   {"n_experts", c.n_experts},
                   {"experts_per_token", c.top_k},
                   {"expert_width", c.expert_width},
                   {"dense_width", c.dense_width}};
  out["parameters"] = {{"total", p.total},         {"active", p.active},   {"attention", p.attention},
                       {"router", p.router},       {"experts", p.experts}, {"dense", p.dense},
                       {"shared", p.shared},       {"unused", p.unused},   {"norms", p.norms},
                       {"embedding", p.embedding}, {"head", p.head}};
  out["bytes"] = {{"source", report.bytes.source},
                  {"weights", report.bytes.weights},
                  {"per_expert", report.bytes.per_expert},
                  {"dense_per_step", report.bytes.dense},
                  {"kv_per_token", report.bytes.kv_per_token},
                  {"last_level_cache", report.cache_bytes}};
  json::array skew;
  for (const TextRouting& text : report.input.text) {
    skew.push_back({{"batch", text.batch},
                    {"steps", text.steps},
                    {"busiest_share", text.busiest_share},
                    {"even_experts", text.even_experts}});
  }
  out["text"] = std::move(skew);
  json::array results;
  for (const InspectRow& row : report.rows) {
    json::object o;
    o["policy"] = row.policy;
    o["batch"] = row.batch;
    o["distinct_experts_from"] = row.text ? "text" : "uniform";
    o["distinct_experts"] = row.distinct_experts;
    o["distinct_experts_plain"] = row.distinct_experts_plain;
    o["distinct_experts_uniform"] = row.uniform;
    o["bytes_per_step"] = row.bytes_per_step;
    o["read_gbps"] = report.input.read_gbps;
    o["tokens_per_second_bound"] = row.tokens_per_second_bound;
    results.push_back(std::move(o));
  }
  out["results"] = std::move(results);
  out["notes"] = json::array(report.config.notes.begin(), report.config.notes.end());
  return out;
}

}  // namespace carpool
