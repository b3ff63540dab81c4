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

#include "routing/types.h"
#include "tensor/format.h"

namespace carpool {

// A view of T rows of float32; owns nothing.
struct Matrix {
  float* data = nullptr;
  int rows = 0;
  int cols = 0;
  int64_t stride = 0;  // floats from one row to the next
  float* row(int r) const { return data + r * stride; }
};

// The routed experts of one layer: [E] matrices each. gate and up are [F, D], down is [D, F].
struct ExpertWeights {
  std::span<const WeightView> gate, up, down;
};

// Rotary embedding of a layer, half-split pairs (i, i + n/2): cos/sin [positions, n/2].
struct RopeTable {
  std::span<const float> cos, sin;
  int rotary_dims = 0;
};

// One layer's share of the paged KV cache: keys/values [blocks, block_tokens, G * head_dim].
struct KvLayer {
  float* keys = nullptr;
  float* values = nullptr;
  int block_tokens = 0;
};

// Where each row of the batch stands in its own sequence.
struct RowPlaces {
  std::span<const int> position;            // [T] index in its sequence, 0-based; -1 = padding row
  std::span<const int* const> block_table;  // [T] blocks of the row's sequence, in order; null for padding
};

struct AttentionShape {
  int heads = 0;     // H
  int kv_heads = 0;  // G, divides H
  int head_dim = 0;
  float scale = 0;  // of q.k, usually head_dim^-0.5
  float norm_eps = 0;
  std::span<const float> q_norm, k_norm;  // [head_dim] per-head RMSNorm, empty = none
  RopeTable rope;
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual void embed(const WeightView& table, std::span<const int> tokens, Matrix out) = 0;  // token -1 gives zeros
  virtual void rms_norm(Matrix x, std::span<const float> weight, float eps, Matrix out) = 0;
  virtual void matmul(Matrix x, const WeightView& w, Matrix out) = 0;  // out [T, w.rows]
  virtual void add(Matrix x, Matrix out) = 0;                          // out += x
  // Router logits [T, E], always float32. `gate` is a float32 view.
  virtual void router_logits(Matrix x, const WeightView& gate, std::span<float> logits) = 0;
  // Normalises and rotates q [T, H*hd] and k [T, G*hd] in place, then stores k and v [T, G*hd] at each row's place.
  virtual void store_kv(const AttentionShape& shape, const RowPlaces& places, Matrix q, Matrix k, Matrix v,
                        KvLayer kv) = 0;
  // Causal attention of each row over positions 0..its own; out [T, H*hd]. Padding rows give zeros.
  virtual void attention(const AttentionShape& shape, const RowPlaces& places, Matrix q, KvLayer kv, Matrix out) = 0;
  // out[t] = sum over the row's slots, in ascending expert id, of weight * down(silu(gate x) * up x). One read of an
  // expert serves all its rows. `weights` has chosen.size() entries; rows without slots give zeros.
  virtual void experts(Matrix x, const ExpertWeights& e, const Selection& chosen, std::span<const float> weights,
                       Matrix out) = 0;
  // A dense SwiGLU block: out = down(silu(gate x) * up x).
  virtual void dense_mlp(Matrix x, const WeightView& gate, const WeightView& up, const WeightView& down,
                         Matrix out) = 0;
  // Reads every byte of the views once and returns the seconds it took: the memory floor of this run.
  virtual double read_seconds(std::span<const std::byte> bytes) = 0;

  virtual int threads() const = 0;
  virtual const char* isa() const = 0;
};

// The CPU backend. threads >= 1, isa "auto" or a table's name; see backend/cpu/.
std::unique_ptr<Ops> make_cpu_ops(int threads, const std::string& isa);

// Names of the tables this machine can run, fastest last.
std::vector<std::string> cpu_isa_names();

}  // namespace carpool
