// The CPU backend: batch-level operations as tasks of a thread pool over the kernels of one instruction set.
//
// Every output element is computed wholly by one task with a fixed order of sums, so results do not depend on the
// thread count, on how work is cut, or on who shares the batch. Scratch memory grows to the largest batch and longest
// context seen and stays. Files: cpu_ops.cc (dense operations), attention.cc (KV store and attention), indexer.cc
// (positions of sparse attention), experts.cc (SwiGLU blocks, routed and dense). Does not know models, layers or
// policies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "backend/ops.h"
#include "base/threads.h"
#include "kernels/kernels.h"

namespace carpool {

// Panels of `w` in about so many bytes, at least 1: an even number of several, since kernels work on two at a time.
int64_t panels_in(int64_t bytes, const PanelView& w);

class CpuOps final : public Ops {
 public:
  CpuOps(int threads, const Kernels& kernels, Activations activations = Activations::kInt8)
      : pool_(threads), kernels_(kernels), activations_(activations), workers_(static_cast<size_t>(threads)) {}

  void embed(const WeightView& table, std::span<const int> tokens, Matrix out) override;
  void rms_norm(Matrix x, std::span<const float> weight, float eps, Matrix out) override;
  void layer_norm(Matrix x, std::span<const float> weight, std::span<const float> bias, float eps, Matrix out) override;
  void matmul(Matrix x, std::span<const Product> products) override;
  void matmul_heads(Matrix x, int x_step, const PanelView& w, int heads, Matrix out, int out_step) override;
  void add(Matrix x, Matrix out) override;
  void add_bias(Matrix x, std::span<const float> bias) override;
  void router_logits(Matrix x, const PanelView& gate, std::span<float> logits) override;
  void store_kv(const AttentionShape& shape, const RowPlaces& places, Matrix q, Matrix k, Matrix v,
                KvLayer kv) override;
  void attention(const AttentionShape& shape, const RowPlaces& places, const PositionSets& chosen, Matrix q, KvLayer kv,
                 Matrix out) override;
  void choose_positions(const AttentionShape& shape, const RowPlaces& places, Matrix q, Matrix weights, KvLayer keys,
                        int top, PositionSets& chosen) override;
  void experts(Matrix x, const ExpertWeights& e, const Selection& chosen, std::span<const float> weights,
               Matrix out) override;
  void dense_mlp(Matrix x, const PanelView& gate_up, const PanelView& down, Matrix out) override;
  void parallel(int tasks, TaskRef task) override { pool_.run(tasks, task); }
  double read_seconds(std::span<const std::byte> bytes) override;
  double waited_seconds() const override { return pool_.waited_seconds(); }
  int threads() const override { return pool_.size(); }
  const char* isa() const override { return kernels_.name; }

 private:
  // Rows of the input of a product, in both forms that kernels read.
  struct Inputs {
    std::vector<const void*> floats, quantized;  // [T]; quantized only when some product of the operation wants it
    std::vector<std::byte> storage;
  };
  // What one thread needs for itself, so that tasks share nothing they write.
  struct alignas(64) Worker {
    std::vector<const void*> inputs;  // row pointers of one kernel call
    std::vector<float*> outputs;
    std::vector<float> tile;  // outputs of one kernel call
  };
  struct PanelRange {
    int64_t begin, end;
  };
  // One kernel call's weights: panels [begin, end) of a matrix.
  struct Tile {
    const PanelView* w = nullptr;
    int64_t begin = 0, end = 0;
    const std::byte* first() const { return w->panel(begin); }
  };

  bool quantizes(const PanelView& w) const {
    return activations_ == Activations::kInt8 && kernels_.product_int8[static_cast<size_t>(w.format)] != nullptr;
  }
  // Lays out the rows of x, and quantises them when `quantized`.
  void take_inputs(Matrix x, bool quantized, Inputs& in);
  // The product of rows [first, first + rows) of `x`, pointers of the form that `tile.w` wants, into `y`.
  void product(const Tile& tile, const void* const* x, int rows, float* const* y, const void* next) const;
  // Runs on the pool, or on the caller alone when the whole job is too small to be worth waking anybody.
  void run(int tasks, double work, TaskRef task);
  // The tile that task `task` of `tasks` works on, when tiles lie in memory one after the other: there is a share of
  // them for each thread, and while threads keep step each goes on with the tile after its last, tile_of(task + size).
  // What a core's own prefetcher reads past the end of a tile is then what that core wants next; a neighbour's tile
  // would be read twice (60 GB/s of two cores became 70).
  int tile_of(int task, int tasks) const {
    return static_cast<int>(share_begin(task % pool_.size(), tasks)) + task / pool_.size();
  }
  // Where the share of a thread begins, of `count` tiles or panels; that of the thread after the last is the end.
  int64_t share_begin(int64_t thread, int64_t count) const {
    return thread * (count / pool_.size()) + std::min(thread, count % pool_.size());
  }
  // `active_`, `first_`, `row_at_`, `weight_at_` and the slots' inputs from a selection.
  void group_by_expert(Matrix x, const Selection& chosen, std::span<const float> weights, int experts);
  void reserve_tiles(int64_t floats);
  int most_rows() const;  // of an active expert
  void cut_share(int64_t share, int64_t smallest, int64_t largest);
  // The two phases of a gated block over grouped rows; see experts.cc.
  void gate_up(const ExpertWeights& e);
  void gate_up_tile(const ExpertWeights& e, size_t part, int64_t tile, const void* next, int worker);
  void activate(const ExpertWeights& e, int expert, int64_t begin, int64_t end, float* pairs, float* hidden) const;
  void down(const ExpertWeights& e, Matrix out);
  void down_tile(const ExpertWeights& e, PanelRange tile, Matrix out, const void* next, int worker);

  // Rows that one attention task takes: consecutive ones of a sequence, or one with chosen positions, which counts
  // those instead.
  struct Piece {
    int row = 0, rows = 0;
    int chosen = 0;          // positions; 0 = all
    int unseen = 0;          // positions before the first row's window
    int begin = 0, end = 0;  // spans
    int unit = 0;            // spans of the pieces before this one
  };
  struct RowRange {
    int begin, end;
  };
  struct AttentionJob;
  // Adds row t to the last of `pieces_`, if it follows there and that has fewer than `most` rows.
  bool extend_piece(const RowPlaces& places, int t, int most);
  int number_pieces();  // fills in `unit`, returns all spans
  int cut_rows(const AttentionJob& job);
  void attention_by_piece(const AttentionJob& job, double work);
  void attention_by_span(const AttentionJob& job, int spans, double work);
  struct IndexJob;
  void score_positions(const IndexJob& job, RowRange rows);

  ThreadPool pool_;
  const Kernels& kernels_;
  const Activations activations_;
  std::vector<Worker> workers_;

  Inputs inputs_;
  std::vector<Tile> tiles_;        // of all products of a matmul
  std::vector<Matrix> tile_outs_;  // where each tile's matrix goes

  // Slots sorted by expert: those of active_[i] are places [first_[i], first_[i + 1]).
  std::vector<int> active_, first_, cursor_;
  std::vector<int> row_at_;                                    // place -> row of the batch
  std::vector<float> weight_at_;                               // place -> weight of the slot
  std::vector<const void*> slot_floats_, slot_quantized_;      // place -> input row
  std::vector<int64_t> cuts_;                                  // of a thread's share of down's panels: 0, ends
  std::vector<float> hidden_;                                  // [slots, F]
  std::vector<std::byte> hidden_codes_;                        // [slots] quantised rows of F
  std::vector<const void*> hidden_floats_, hidden_quantized_;  // place -> hidden row

  std::vector<Piece> pieces_;             // of the rows of an attention
  std::vector<float> attention_scratch_;  // per worker
  std::vector<float> attention_records_;  // per task and span, when spans are tasks
  std::vector<float> index_scores_;       // per row and position
};

}  // namespace carpool
