// Arithmetic and counting of inspect.h; the tables are in inspect_report.cc.
#include "measure/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/kv_cache.h"
#include "routing/policy.h"
#include "tensor/panels.h"

namespace carpool {
namespace {

constexpr size_t kShortestStream = 8;  // steps below which a mean over steps says little

// Plain routing that also notes, per layer of a step, which experts are among the best k0 of some row, for all k0 at
// once: an expert's first rank is the smallest at which any row has it, and the union of k0 is all with first rank <
// k0.
class CountingTopk final : public Policy {
 public:
  struct Counts {
    std::vector<std::vector<int64_t>> slots;  // [MoE layers seen][E]
    std::vector<double> distinct;             // [K] sums over layers and steps
    int64_t layers = 0;
  };

  CountingTopk(int n_experts, int top_k, int n_layers, Counts& counts) : counts_(counts) {
    counts_.slots.assign(static_cast<size_t>(n_layers), std::vector<int64_t>(static_cast<size_t>(n_experts)));
    counts_.distinct.assign(static_cast<size_t>(top_k), 0);
  }

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override {
    select_plain(in, scratch, out);
    const auto K = static_cast<size_t>(in.top_k);
    std::vector<size_t> first(static_cast<size_t>(in.n_experts), K);
    std::vector<int64_t>& slots = counts_.slots[static_cast<size_t>(in.layer)];
    for (int t = 0; t < out.rows(); ++t) {
      const std::span<const int> row = out.row(t);
      for (size_t rank = 0; rank < row.size(); ++rank) {
        const auto expert = static_cast<size_t>(row[rank]);
        first[expert] = std::min(first[expert], rank);
        ++slots[expert];
      }
    }
    std::vector<int64_t> united(K);  // [k0 - 1]
    for (const size_t rank : first) {
      for (size_t k = rank; k < K; ++k) ++united[k];
    }
    for (size_t k = 0; k < K; ++k) {
      counts_.distinct[k] +=
          oea_distinct(static_cast<double>(united[k]), static_cast<double>(united[K - 1]), in.top_k, out.rows());
    }
    ++counts_.layers;
  }

  const PolicyProperties& properties() const override { return properties_; }
  std::string spec() const override { return "topk"; }
  bool is_plain(int) const override { return true; }
  void check(int, int) const override {}

 private:
  Counts& counts_;
  PolicyProperties properties_{.batch_free = true, .at_most_plain = true};
};

void finish_counts(const CountingTopk::Counts& counts, TextRouting& out) {
  for (const double sum : counts.distinct) out.distinct.push_back(sum / static_cast<double>(counts.layers));
  int used = 0;
  for (const auto& layer : counts.slots) {
    double total = 0, busiest = 0, entropy = 0;
    for (const int64_t n : layer) {
      total += static_cast<double>(n);
      busiest = std::max(busiest, static_cast<double>(n));
    }
    if (total == 0) continue;  // a dense layer
    for (const int64_t n : layer) {
      const double share = static_cast<double>(n) / total;
      if (n > 0) entropy -= share * std::log(share);
    }
    out.busiest_share += busiest / total;
    out.even_experts += std::exp(entropy);
    ++used;
  }
  out.busiest_share /= std::max(used, 1);
  out.even_experts /= std::max(used, 1);
}

}  // namespace

namespace {

struct MatrixSize {
  int64_t rows, cols;
};

// The matrices of one layer's attention, apart from its indexer.
std::vector<MatrixSize> attention_matrices(const ModelConfig& c) {
  const int64_t D = c.width, H = c.heads;
  if (!c.latent) {
    const int64_t v = int64_t{c.kv_heads} * c.value_dim;
    return {{c.q_width(), D}, {c.kv_width(), D}, {v, D}, {D, H * c.value_dim}};
  }
  const Latent& n = *c.latent;
  std::vector<MatrixSize> all = {{n.kv_rank + n.rope, D}, {H * n.kv_rank, n.nope}, {H * n.value, n.kv_rank}};
  all.push_back({D, H * n.value});
  all.push_back({H * (n.nope + n.rope), n.q_rank > 0 ? n.q_rank : D});
  if (n.q_rank > 0) all.push_back({n.q_rank, D});
  return all;
}

std::vector<MatrixSize> indexer_matrices(const ModelConfig& c) {
  const Indexer& n = *c.indexer;
  return {{int64_t{n.heads} * n.head_dim, c.latent->q_rank}, {n.head_dim, c.width}, {n.heads, c.width}};
}

// Numbers in norms, biases and sinks of one layer's attention and its two norms.
int64_t attention_vectors(const ModelConfig& c) {
  const int64_t v = int64_t{c.kv_heads} * c.value_dim;
  int64_t n = 2 * c.width + (c.o_bias ? c.width : 0) + (c.sinks ? c.heads : 0);
  if (c.latent) return n + c.latent->q_rank + c.latent->kv_rank;
  if (c.qkv_bias) n += c.q_width() + c.kv_width() + v;
  if (c.qk_norm == ModelConfig::QkNorm::kHead) n += 2 * c.head_dim;
  if (c.qk_norm == ModelConfig::QkNorm::kWhole) n += c.q_width() + c.kv_width();
  return n;
}

int64_t count(const std::vector<MatrixSize>& all) {
  int64_t n = 0;
  for (const MatrixSize& m : all) n += m.rows * m.cols;
  return n;
}

int64_t indexers(const ModelConfig& c) {
  return c.indexer ? std::count(c.indexer->own.begin(), c.indexer->own.end(), true) : 0;
}

// Numbers in the biases of one MoE layer.
int64_t moe_vectors(const ModelConfig& c) {
  const int64_t E = c.n_experts;
  return (c.selection_bias ? E : 0) + (c.router_bias ? E : 0) +
         (c.expert_bias ? E * (2 * c.expert_width + c.width) : 0);
}

}  // namespace

Parameters count_parameters(const ModelConfig& c) {
  Parameters p;
  const int64_t D = c.width, L = c.layers, M = c.moe_layers(), own = indexers(c);
  const int64_t indexer = own > 0 ? count(indexer_matrices(c)) : 0;
  p.attention = L * count(attention_matrices(c)) + own * indexer;
  p.norms = L * attention_vectors(c) + (own > 0 ? own * 2 * c.indexer->head_dim : 0) + D;
  p.dense = (L - M) * 3 * D * c.dense_width;
  p.shared = M * 3 * D * c.shared_width;
  p.per_expert = 3 * D * c.expert_width;
  p.router = M * (D * c.n_experts + moe_vectors(c));
  p.experts = M * c.n_experts * p.per_expert;
  p.embedding = int64_t{c.vocab} * D;
  p.head = c.tied_head ? 0 : p.embedding;
  p.total = p.attention + p.norms + p.dense + p.shared + p.router + p.experts + p.embedding + p.head;
  // A prediction layer is an MoE layer with an indexer, a projection of two rows to one, and three norms.
  p.unused = c.unused_layers * (count(attention_matrices(c)) + attention_vectors(c) + indexer + 2 * D * D + 3 * D +
                                (c.indexer ? 2 * c.indexer->head_dim : 0) + 3 * D * c.shared_width + D * c.n_experts +
                                moe_vectors(c) + c.n_experts * p.per_expert);
  const int64_t head_read = p.embedding;  // by every token, whether the head is a matrix of its own or the embedding
  p.active = p.attention + p.norms + p.dense + p.shared + p.router + M * c.top_k * p.per_expert + head_read;
  return p;
}

StepBytes assumed_bytes(const ModelConfig& c, const AssumedFormats& formats) {
  const auto matrix = [](Format f, int64_t rows, int64_t cols) {  // in memory: whole panels
    return static_cast<double>(PanelView{.format = f, .rows = rows, .cols = cols}.bytes());
  };
  const auto sum = [&](Format f, const std::vector<MatrixSize>& all) {
    double bytes = 0;
    for (const MatrixSize& m : all) bytes += matrix(f, m.rows, m.cols);
    return bytes;
  };
  const auto mlp = [&](Format f, int64_t width) {
    return width > 0 ? 2 * matrix(f, width, c.width) + matrix(f, c.width, width) : 0.0;
  };
  const auto stored = [](Format f, int64_t n) {  // in a file
    return static_cast<double>(n) * static_cast<double>(info(f).block_bytes) / info(f).block_elements;
  };
  const Parameters p = count_parameters(c);
  const AssumedFormats& f = formats;
  const int64_t L = c.layers, M = c.moe_layers();
  const auto floats = static_cast<double>(p.norms + M * moe_vectors(c));
  StepBytes bytes;
  bytes.per_expert = mlp(f.experts, c.expert_width);
  bytes.dense = static_cast<double>(L) * sum(f.attention, attention_matrices(c)) +
                static_cast<double>(L - M) * mlp(f.dense, c.dense_width) +
                static_cast<double>(M) * (matrix(Format::kF32, c.n_experts, c.width) + mlp(f.shared, c.shared_width)) +
                matrix(f.head, c.vocab, c.width) + floats * static_cast<double>(sizeof(float));
  if (c.sparse()) {
    std::vector<MatrixSize> matrices = indexer_matrices(c);
    const MatrixSize heads = matrices.back();  // float32, like the router
    matrices.pop_back();
    bytes.dense +=
        static_cast<double>(indexers(c)) * (sum(f.attention, matrices) + matrix(Format::kF32, heads.rows, heads.cols));
  }
  bytes.set_kv(c, default_kv_format(info(f.experts).block_elements > 1));
  bytes.weights = stored(f.experts, p.experts) + stored(f.shared, p.shared) + stored(f.dense, p.dense) +
                  stored(f.attention, p.attention) + stored(f.head, p.embedding + p.head + p.norms + p.router);
  bytes.source = "assumed " + f.text();
  return bytes;
}

void StepBytes::set_kv(const ModelConfig& config, KvFormat format) {
  kv_format = format;
  kv_per_token = static_cast<double>(KvCache::bytes_for(config, KvCache::kBlockTokens, format)) / KvCache::kBlockTokens;
}

double uniform_union(int n_experts, int k, int batch) {
  const double E = n_experts;
  return E * (1 - std::pow(1 - k / E, batch));
}

double uniform_oea(int n_experts, int k0, int top_k, int batch) {
  const double plain = uniform_union(n_experts, top_k, batch);
  if (batch < 2 || k0 >= top_k) return plain;
  const auto choose = [](int n, int k) {  // log of the binomial coefficient
    return std::lgamma(n + 1.0) - std::lgamma(k + 1.0) - std::lgamma(n - k + 1.0);
  };
  const auto E = static_cast<size_t>(n_experts), k = static_cast<size_t>(k0);
  // grow[u][j]: a row finds j of its k0 experts outside a union of u (hypergeometric).
  std::vector<std::vector<double>> grow(E + 1, std::vector<double>(k + 1));
  for (int u = 0; u <= n_experts; ++u) {
    for (int j = std::max(0, k0 - u); j <= std::min(k0, n_experts - u); ++j) {
      grow[static_cast<size_t>(u)][static_cast<size_t>(j)] =
          std::exp(choose(n_experts - u, j) + choose(u, k0 - j) - choose(n_experts, k0));
    }
  }
  std::vector<double> p(E + 1), next(E + 1);  // of the union's size
  p[0] = 1;
  for (int b = 0; b < batch; ++b) {
    std::fill(next.begin(), next.end(), 0);
    for (size_t u = 0; u <= E; ++u) {
      for (size_t j = 0; p[u] > 0 && j <= std::min(k, E - u); ++j) next[u + j] += p[u] * grow[u][j];
    }
    p.swap(next);
  }
  double expected = 0;
  for (size_t u = 0; u <= E; ++u) expected += p[u] * oea_distinct(static_cast<double>(u), plain, top_k, batch);
  return expected;
}

double oea_distinct(double union_of_k0, double plain, int top_k, int batch) {
  return batch < 2 || union_of_k0 < top_k ? plain : union_of_k0;
}

std::vector<int> shown_k0(int top_k) {
  std::vector<int> out;
  for (const int k0 : {top_k, (top_k + 1) / 2, (3 * top_k + 4) / 8}) {
    if (k0 >= 1 && (out.empty() || k0 < out.back())) out.push_back(k0);
  }
  return out;
}

std::optional<TextRouting> count_on_text(Model& model, std::span<const int> tokens, int batch, int max_steps) {
  CARPOOL_CHECK(batch >= 1 && max_steps >= 1);
  const ModelConfig& c = model.config();
  const size_t length = tokens.size() / static_cast<size_t>(batch);
  if (length < kShortestStream || c.moe_layers() == 0) return std::nullopt;
  TextRouting out;
  out.batch = batch;
  out.steps = static_cast<int>(std::min({length, static_cast<size_t>(max_steps), static_cast<size_t>(c.context)}));
  const int blocks = KvCache::blocks_for(out.steps);
  KvCache kv(c, int64_t{blocks} * KvCache::kBlockTokens * batch, model.kv_format());
  std::vector<std::vector<int>> tables(static_cast<size_t>(batch));
  for (auto& table : tables) CARPOOL_CHECK(kv.take(blocks, table));
  CountingTopk::Counts counts;
  const CountingTopk policy(c.n_experts, c.top_k, c.layers, counts);
  Rows rows;
  for (int t = 0; t < out.steps; ++t) {
    rows.clear();
    for (size_t b = 0; b < tables.size(); ++b)
      rows.push(tokens[b * length + static_cast<size_t>(t)], t, tables[b].data(), {Phase::kDecode, false, 0}, false);
    model.forward(rows, kv, policy, {});
  }
  finish_counts(counts, out);
  return out;
}

std::vector<InspectRow> predict(const ModelConfig& c, const StepBytes& bytes, const InspectInput& input) {
  std::vector<InspectRow> rows;
  const int M = c.moe_layers(), E = c.n_experts, K = c.top_k;
  for (const int batch : input.batches) {
    const auto found = std::find_if(input.text.begin(), input.text.end(),
                                    [&](const TextRouting& text) { return text.batch == batch; });
    const double plain = M > 0 ? uniform_union(E, K, batch) : 0;
    for (const int k0 : M > 0 ? shown_k0(K) : std::vector<int>{0}) {
      InspectRow row;
      row.policy = M == 0 || k0 == K ? "topk" : fmt::format("oea:k0={}", k0);
      row.k0 = k0;
      row.batch = batch;
      if (M > 0) row.uniform = uniform_oea(E, k0, K, batch);
      row.distinct_experts = row.uniform;
      row.distinct_experts_plain = plain;
      if (M > 0 && found != input.text.end()) {
        row.text = row.distinct_experts = found->distinct[static_cast<size_t>(k0) - 1];
        row.distinct_experts_plain = found->distinct.back();
      }
      row.bytes_per_step =
          row.distinct_experts * M * bytes.per_expert + bytes.dense + bytes.kv_per_token * input.context_tokens * batch;
      row.tokens_per_second_bound = batch * input.read_gbps * 1e9 / row.bytes_per_step;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace carpool
