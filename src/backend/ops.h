// The dozen batch-level operations a model's forward pass is made of.
//
// Owns the interface between model/ and whatever computes (backend/cpu/ today), and the small view types it is spoken
// in. Routing is host code between two calls, so no backend knows a policy. All values are float32; matrices are
// row-major. Functions return when the result is complete, do not throw and do not allocate once the largest batch
// has been seen; one caller at a time. Symbols: T rows, D width, F expert width, H query heads, G kv heads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "routing/types.h"
#include "tensor/format.h"
#include "tensor/kv_block.h"
#include "tensor/panels.h"

namespace carpool {

// A view of T rows of float32; owns nothing.
struct Matrix {
  float* data = nullptr;
  int rows = 0;
  int cols = 0;
  int64_t stride = 0;  // floats from one row to the next
  float* row(int r) const { return data + r * stride; }
};

// How activations enter products with block-quantised weights: as int8 (tensor/activations.h), or as float32. Products
// with F32, BF16, F16 and FP8 weights always take float32.
enum class Activations : uint8_t { kInt8, kFloat };

// One product of several with the same x: out [T, w.rows] = x w^T.
struct Product {
  const PanelView* w;
  Matrix out;
};

// What a gated block does with g = gate x and u = up x.
enum class Activation : uint8_t {
  kSilu,           // silu(g) * u
  kClampedSwiglu,  // gpt-oss: g = min(g, limit), u = clamp(u, -limit, limit); g * sigmoid(1.702 g) * (u + 1)
};

// Gated blocks of one shape, the [E] routed experts of a layer or one dense block. gate_up[e] has 2 F' rows of D, F' =
// F rounded up to 16: panel 2p is panel p of the gate matrix, panel 2p + 1 of the up matrix. down[e] is [D, F].
struct ExpertWeights {
  std::span<const PanelView> gate_up, down;
  std::span<const float> gate_up_bias = {};  // [E, 2 F'] in the order of the panels' outputs, or empty
  std::span<const float> down_bias = {};     // [E, D] or empty; added before an expert's output is weighed
  Activation activation = Activation::kSilu;
  float limit = 0;  // kClampedSwiglu
};

// Rotary embedding: cos/sin [positions, dims / 2]. Elements [first, first + dims) of a head are rotated, pairs
// (i, i + dims / 2) of them, or (2i, 2i + 1).
struct RopeTable {
  std::span<const float> cos, sin;
  int first = 0, dims = 0;
  bool interleaved = false;
};

// One layer's share of the paged KV cache: [blocks, G] blocks of 16 positions (tensor/kv_block.h).
struct KvLayer {
  std::byte* data = nullptr;  // at a multiple of 64 bytes
  KvBlock block;
  int kv_heads = 0;  // G

  size_t stride() const { return block.bytes * static_cast<size_t>(kv_heads); }  // bytes from block id to block id
  std::byte* at(int id, int g) const {
    return data + static_cast<size_t>(id) * stride() + static_cast<size_t>(g) * block.bytes;
  }
};

// Where each row of the batch stands in its own sequence.
struct RowPlaces {
  std::span<const int> position;            // [T] index in its sequence, 0-based; -1 = padding row
  std::span<const int* const> block_table;  // [T] blocks of the row's sequence, in order; null for padding
};

struct AttentionShape {
  int heads = 0;      // H
  int kv_heads = 0;   // G, divides H
  int head_dim = 0;   // of queries and keys
  int value_dim = 0;  // of values and of each head's output
  float scale = 0;    // of q.k
  float norm_eps = 0;
  std::span<const float> q_norm, k_norm;  // [head_dim] per-head RMSNorm, empty = none
  RopeTable rope;
  int window = 0;                     // positions a row sees, itself included; 0 = all before it
  std::span<const float> sinks = {};  // [H] a logit per head that takes its share and has no value; empty = none
};

// Which positions each row attends to, where that is not all of them: ascending. A row without positions attends to
// all that it otherwise would.
struct PositionSets {
  std::vector<int> positions;
  std::vector<int> begin;  // [T + 1] row t has positions [begin[t], begin[t + 1]); empty = all rows attend to all

  bool empty() const { return begin.empty(); }
  std::span<const int> row(int t) const {
    const auto at = static_cast<size_t>(t);
    return {positions.data() + begin[at], static_cast<size_t>(begin[at + 1] - begin[at])};
  }
  void clear() {
    positions.clear();
    begin.clear();
  }
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual void embed(const WeightView& table, std::span<const int> tokens, Matrix out) = 0;  // token -1 gives zeros
  virtual void rms_norm(Matrix x, std::span<const float> weight, float eps, Matrix out) = 0;
  // out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, each row.
  virtual void layer_norm(Matrix x, std::span<const float> weight, std::span<const float> bias, float eps,
                          Matrix out) = 0;
  // All products in one pass; x is quantised once where a format wants it.
  virtual void matmul(Matrix x, std::span<const Product> products) = 0;
  // Each head with its own rows of w [heads * R, C]: out[t][h * out_step + r] = sum over c of x[t][h * x_step + c] *
  // w[h * R + r][c]. R is a multiple of 16. Always with float32 activations.
  virtual void matmul_heads(Matrix x, int x_step, const PanelView& w, int heads, Matrix out, int out_step) = 0;
  virtual void add(Matrix x, Matrix out) = 0;                        // out += x
  virtual void add_bias(Matrix x, std::span<const float> bias) = 0;  // x[t] += bias, each row; empty = nothing
  // Router logits [T, E], always float32. `gate` is float32.
  virtual void router_logits(Matrix x, const PanelView& gate, std::span<float> logits) = 0;
  // Normalises and rotates q [T, H*head_dim] and k [T, G*head_dim] in place, then stores k and v [T, G*value_dim] at
  // each row's place, in the cache's format. v is not read where the cache's values are the start of its keys, or
  // where it has none.
  virtual void store_kv(const AttentionShape& shape, const RowPlaces& places, Matrix q, Matrix k, Matrix v,
                        KvLayer kv) = 0;
  // Causal attention of each row over positions 0..its own, or those of them that `shape.window` and `chosen` leave;
  // out [T, H*value_dim]. Padding rows give zeros. Rows of one sequence that follow each other, here and in position,
  // share their reads.
  virtual void attention(const AttentionShape& shape, const RowPlaces& places, const PositionSets& chosen, Matrix q,
                         KvLayer kv, Matrix out) = 0;
  // The positions that an indexer chooses for each row: the `top` of 0..its own with the largest
  //   sum over heads h of weights[t][h] * relu(scale * q[t][h] . key),  equal ones the lower position,
  // or none listed where a row has no more than `top` positions. q [T, H*head_dim], weights [T, H], one kv head.
  virtual void choose_positions(const AttentionShape& shape, const RowPlaces& places, Matrix q, Matrix weights,
                                KvLayer keys, int top, PositionSets& chosen) = 0;
  // out[t] = sum over the row's slots, in ascending expert id, of weight * down(activation(gate x, up x)). One read of
  // an expert serves all its rows. `weights` has chosen.size() entries; rows without slots give zeros.
  virtual void experts(Matrix x, const ExpertWeights& e, const Selection& chosen, std::span<const float> weights,
                       Matrix out) = 0;
  // A dense SwiGLU block: out = down(silu(gate x) * up x).
  virtual void dense_mlp(Matrix x, const PanelView& gate_up, const PanelView& down, Matrix out) = 0;
  // Runs task(i, worker) for i in [0, tasks) on the threads that compute, for work outside a step (packing weights).
  virtual void parallel(int tasks, TaskRef task) = 0;
  // Reads every byte of the views once and returns the seconds it took: the memory floor of this run.
  virtual double read_seconds(std::span<const std::byte> bytes) = 0;

  // Seconds since the start that the calling thread waited for the others at the ends of operations.
  virtual double waited_seconds() const = 0;

  virtual int threads() const = 0;
  virtual const char* isa() const = 0;
};

// The CPU backend. threads >= 1, isa "auto" or a table's name; see backend/cpu/.
std::unique_ptr<Ops> make_cpu_ops(int threads, const std::string& isa, Activations activations = Activations::kInt8);

// Names of the tables this machine can run, fastest last.
std::vector<std::string> cpu_isa_names();

}  // namespace carpool
