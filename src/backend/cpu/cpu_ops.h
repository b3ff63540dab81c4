// The CPU backend: batch-level operations as tasks of a thread pool over the kernels of one instruction set.
//
// Every output element is computed wholly by one task with a fixed order of sums, so results do not depend on the
// thread count, on how work is cut, or on who shares the batch. Scratch memory grows to the largest batch and longest
// context seen and stays. Files: cpu_ops.cc (dense operations), attention.cc (KV store and attention), experts.cc
// (SwiGLU blocks, routed and dense). Does not know models, layers or policies.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/ops.h"
#include "base/threads.h"
#include "kernels/kernels.h"

namespace carpool {

class CpuOps final : public Ops {
 public:
  CpuOps(int threads, const Kernels& kernels) : pool_(threads), kernels_(kernels) {}

  void embed(const WeightView& table, std::span<const int> tokens, Matrix out) override;
  void rms_norm(Matrix x, std::span<const float> weight, float eps, Matrix out) override;
  void matmul(Matrix x, const WeightView& w, Matrix out) override;
  void add(Matrix x, Matrix out) override;
  void router_logits(Matrix x, const WeightView& gate, std::span<float> logits) override;
  void store_kv(const AttentionShape& shape, const RowPlaces& places, Matrix q, Matrix k, Matrix v,
                KvLayer kv) override;
  void attention(const AttentionShape& shape, const RowPlaces& places, Matrix q, KvLayer kv, Matrix out) override;
  void experts(Matrix x, const ExpertWeights& e, const Selection& chosen, std::span<const float> weights,
               Matrix out) override;
  void dense_mlp(Matrix x, const WeightView& gate, const WeightView& up, const WeightView& down, Matrix out) override;
  double read_seconds(std::span<const std::byte> bytes) override;
  int threads() const override { return pool_.size(); }
  const char* isa() const override { return kernels_.name; }

 private:
  // How the outputs of a weight matrix are cut into tasks.
  struct Tiles {
    int64_t size = 0;  // outputs per task
    int count = 0;
  };
  // `parts` = independent matrices of this shape in the same job.
  Tiles tiles_for(const WeightView& w, int parts) const;
  // Runs on the pool, or on the caller alone when the whole job is too small to be worth waking anybody.
  void run(int tasks, double work, TaskRef task);
  void group_by_expert(const Selection& chosen, int experts, Matrix x);
  // The three phases of a SwiGLU block over grouped rows; see experts.cc.
  void gate_up(std::span<const WeightView> gate, std::span<const WeightView> up, int64_t slots);
  void down(std::span<const WeightView> down, int64_t slots);

  ThreadPool pool_;
  const Kernels& kernels_;

  std::vector<const float*> x_rows_;  // row pointers of the operation under work
  std::vector<float*> y_rows_;

  // Slots sorted by expert: those of active_[i] are [first_[i], first_[i + 1]).
  std::vector<int> active_, first_, cursor_;
  std::vector<int> slot_at_;           // sorted place -> slot of the selection
  std::vector<int> row_places_;        // the sorted places of each row, ascending, laid out as in the selection
  std::vector<const float*> in_rows_;  // by sorted place: input row, hidden row, up row, output row
  std::vector<const float*> hidden_in_;
  std::vector<float*> hidden_rows_, up_rows_, slot_rows_;
  std::vector<float> hidden_, up_, slot_out_;

  std::vector<float> scores_;  // attention: per worker, [heads of a group, longest context]
};

}  // namespace carpool
