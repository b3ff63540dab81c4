// The tensors of a model: matrices as panels in one private buffer, embedding rows where their file is mapped.
//
// Owns Weights (one named field per tensor), TensorReader (takes tensors by name and shape and reports what is missing,
// misshapen or left over together, so that one look at the message is enough), and the cold copies that benches rotate
// through so that small models are read from memory rather than from cache. Read next: panel_plan.h, family.h,
// forward.cc.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "base/large_buffer.h"
#include "io/panel_cache.h"
#include "io/weight_source.h"
#include "model/config.h"
#include "model/panel_plan.h"
#include "model/stored_matrix.h"
#include "tensor/format.h"

namespace carpool {

// The routed experts of a layer: gate and up as one matrix of alternating panels (see ExpertWeights).
struct ExpertSet {
  std::vector<PanelView> gate_up, down;        // [E]
  std::vector<float> gate_up_bias, down_bias;  // as in ExpertWeights, or empty
};

// Attention whose heads have keys and values of their own.
struct GroupedWeights {
  PanelView q, k, v;  // [H*head_dim, D], [G*head_dim, D], [G*value_dim, D]
  std::vector<float> q_bias, k_bias, v_bias;
  std::vector<float> q_norm, k_norm;  // [head_dim], or of all heads together
  std::vector<float> sinks;           // [H]
};

// Attention over latent vectors, in the form that decoding needs: the queries are taken to the latent space, and what
// attention finds there is taken back, so that neither keys nor values of single heads are ever made.
struct LatentWeights {
  PanelView q_a, kv_a;                     // [q_rank, D], [kv_rank + rope, D]
  std::vector<float> q_a_norm, kv_a_norm;  // [q_rank], [kv_rank]
  PanelView q;                             // [H*(nope + rope), q_rank], or of D columns where q_rank is 0
  PanelView k_up, v_up;                    // [H*kv_rank, nope] each head's transposed, [H*value, kv_rank]
};

struct IndexerWeights {
  PanelView q, k;                          // [heads*head_dim, q_rank], [head_dim, D]
  PanelView head_weights;                  // [heads, D], float32
  std::vector<float> k_norm, k_norm_bias;  // [head_dim], LayerNorm
};

struct LayerWeights {
  std::vector<float> input_norm, post_norm;  // [D]
  GroupedWeights grouped;                    // empty where attention is latent
  LatentWeights latent;
  IndexerWeights indexer;  // empty where the layer does not choose for itself
  PanelView o;             // [D, H*value]
  std::vector<float> o_bias;
  PanelView router;  // [E, D], float32 always
  std::vector<float> router_bias;
  Scoring scoring;
  ExpertSet experts;                      // MoE layers
  PanelView shared_gate_up, shared_down;  // MoE layers with shared experts
  PanelView dense_gate_up, dense_down;    // dense layers

  // Every matrix and every vector but the experts', those that the layer does not have included.
  std::array<const PanelView*, 17> matrices() const;
  std::array<const std::vector<float>*, 14> vectors() const;
};

struct Weights {
  WeightView embed;  // rows, where the file keeps them
  PanelView head;
  std::vector<float> final_norm;
  std::vector<LayerWeights> layers;

  // cold[c][l]: private copies of all routed experts, used in rotation instead of layers[l].experts when not empty.
  std::vector<std::vector<ExpertSet>> cold;
  std::vector<LargeBuffer> cold_storage;
  LargeBuffer panels;                  // what panel views point into: private memory,
  std::optional<MappedPanels> mapped;  // or a file of repacked weights
  std::string cache_note;              // why that file was not used, if it was asked for
  std::vector<std::byte> random;       // the embedding of a dummy model
  std::unique_ptr<WeightSource> source;

  // Turns the offsets that a plan gave into addresses from `base` on.
  void place(const std::byte* base);

  size_t expert_bytes() const;          // all routed experts together
  size_t bytes_per_expert() const;      // of the first MoE layer; 0 without one
  size_t dense_bytes_per_step() const;  // every weight that each step reads whatever was routed, embedding rows apart
  // Whether some matrix has a format of integer codes, whose products may take quantised activations.
  bool block_quantized() const;
  // Makes `n` private copies of the routed experts; 0 drops them. Error{kNoMemory} with both numbers when they cannot
  // fit.
  void set_cold_copies(int n);
};

// How the rows of two matrices lie in one tensor: those of gate, then those of up, or in turns, gate first.
enum class Order { kHalves, kInterleaved };

// A tensor [experts, rows, cols] (of a pair [experts, 2 rows, cols]), or, transposed, [experts, cols, rows] ([experts,
// cols, 2 rows]). MXFP4 blocks are never transposed, whatever is said here: gpt-oss is published in both forms.
struct ExpertShape {
  int64_t experts = 0, rows = 0, cols = 0;
  bool transposed = false;
};

// Rows [begin, end) of each head of a matrix [heads * rows_per_head, cols].
struct HeadRows {
  int64_t heads = 0, rows_per_head = 0, begin = 0, end = 0;
  int64_t count() const { return end - begin; }
  RowMap map() const { return {begin, count(), rows_per_head}; }
};

// Takes tensors of a source by name and shape, and plans where they go.
class TensorReader {
 public:
  static constexpr size_t kListed = 10;    // problems that the message spells out
  static constexpr size_t kGiveUp = 1000;  // problems after which the file is not of this model; take throws then

  // `check_finite` scans every tensor taken for NaN and Inf.
  TensorReader(const WeightSource& source, bool check_finite, PanelPlan& plan)
      : source_(source), check_finite_(check_finite), plan_(plan) {}

  PanelView matrix(const std::string& name, int64_t rows, int64_t cols);
  // Two matrices of one shape as alternating panels. They must have one format.
  PanelView pair(const std::string& even, const std::string& odd, int64_t rows, int64_t cols);
  // Expert `e` of a tensor that holds all of them, in the forms and by the names of stored_experts.h.
  PanelView expert(const std::string& name, int64_t e, const ExpertShape& shape);
  // Gate and up of expert `e` as alternating panels, as of pair().
  PanelView expert_pair(const std::string& name, int64_t e, const ExpertShape& shape, Order order);
  // [rows, cols] of a tensor [cols, rows]. Formats that store a value an element keep their bits, others become
  // float32.
  PanelView transposed(const std::string& name, int64_t rows, int64_t cols);
  // A part of every head of a matrix [heads * rows_per_head, cols]: its rows as they are, heads one after another,
  // [heads * count, cols]; and each head's transposed and stacked, [heads * cols, count] (bits as of transposed). A
  // matrix may be taken several times.
  PanelView head_rows(const std::string& name, const HeadRows& part, int64_t cols);
  PanelView heads_transposed(const std::string& name, const HeadRows& part, int64_t cols);
  // Whether the source has this tensor, or experts of this name.
  bool has(const std::string& name) const;
  std::string dtype(const std::string& name) const;  // as the file calls it; "" without the tensor
  std::vector<float> values(const std::string& name, int64_t rows, int64_t cols);  // a whole matrix as float32
  PanelView matrix_f32(const std::string& name, int64_t rows, int64_t cols);       // converted to float32
  std::vector<float> vector(const std::string& name, int64_t n);                   // as float32
  // A matrix that is read row by row where the file keeps it.
  WeightView rows(const std::string& name, int64_t rows, int64_t cols);
  // Takes a tensor that the model has and this engine does not need.
  void skip(const std::string& name, const std::vector<int64_t>& shape) { take(name, shape); }
  // Tensors whose names begin so are no part of what is loaded, and no problem. Returns their number.
  size_t ignore(const std::string& prefix);
  // Reports when the experts of a layer differ in format: a pass over a layer is of one kind.
  void check_one_format(const ExpertSet& experts, const std::string& where);
  // Throws Error{kMalformed}: the first ten of the missing, misshapen, non-finite or unexpected tensors, and their
  // number.
  void finish();
  std::function<void(double share)> progress;  // of the bytes taken so far, if set
  // After finish(): sentences about tensors that are there and not used.
  const std::vector<std::string>& notes() const { return notes_; }
  void add_note(std::string sentence) { notes_.push_back(std::move(sentence)); }

 private:
  // The named matrix as its file stores it, null data when it was reported.
  WeightView take(const std::string& name, const std::vector<int64_t>& shape);
  // `stored` if its shape is the wanted one and its values are finite.
  WeightView accept(const std::string& name, const StoredMatrix& stored, const std::vector<int64_t>& found,
                    const std::vector<int64_t>& wanted);
  // Expert `e` as stored, of a tensor of shape `plain` or, in blocks, `blocks`.
  WeightView take_expert(const std::string& name, int64_t e, const std::vector<int64_t>& plain,
                         const std::vector<int64_t>& blocks);
  void report(const std::string& problem);
  [[noreturn]] void fail() const;
  const WeightSource& source_;
  bool check_finite_;
  PanelPlan& plan_;
  std::set<std::string> taken_;
  std::vector<std::string> notes_;
  std::vector<std::string> first_problems_;  // at most kListed
  size_t problems_ = 0;
  size_t bytes_taken_ = 0;
};

}  // namespace carpool
