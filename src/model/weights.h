// The tensors of a model, as views into mapped files or private copies.
//
// Owns Weights (one named field per tensor), TensorReader (takes tensors by name and shape and reports what is missing,
// misshapen or left over together, so that one look at the message is enough), and the cold copies that benches rotate
// through so that small models are read from memory rather than from cache. Read next: family.h, forward.cc.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/ops.h"
#include "io/weight_source.h"
#include "model/config.h"
#include "tensor/format.h"

namespace carpool {

// The routed experts of a layer, or one dense block as a set of one.
struct ExpertSet {
  std::vector<WeightView> gate, up, down;  // [E]
  ExpertWeights view() const { return {gate, up, down}; }
};

struct LayerWeights {
  std::vector<float> input_norm, post_norm;  // [D]
  WeightView q, k, v, o;                     // [H*hd, D], [G*hd, D], [G*hd, D], [D, H*hd]
  std::vector<float> q_bias, k_bias, v_bias, o_bias;
  std::vector<float> q_norm, k_norm;  // [head_dim]
  std::vector<float> router;          // [E, D], float32 always
  Scoring scoring;
  ExpertSet experts;                            // MoE layers
  WeightView dense_gate, dense_up, dense_down;  // dense layers
};

struct Weights {
  WeightView embed, head;
  std::vector<float> final_norm;
  std::vector<LayerWeights> layers;

  // cold[c][l]: private copies of all routed experts, used in rotation instead of layers[l].experts when not empty.
  std::vector<std::vector<ExpertSet>> cold;
  std::vector<std::vector<std::byte>> storage;  // what views point into, besides the source
  std::unique_ptr<WeightSource> source;

  size_t expert_bytes() const;          // all routed experts together
  size_t bytes_per_expert() const;      // of the first MoE layer; 0 without one
  size_t dense_bytes_per_step() const;  // every weight that each step reads whatever was routed, embedding rows apart
  // Makes `n` private copies of the routed experts; 0 drops them. Error{kNoMemory} with both numbers when they cannot
  // fit.
  void set_cold_copies(int n);
};

class TensorReader {
 public:
  static constexpr size_t kListed = 10;    // problems that the message spells out
  static constexpr size_t kGiveUp = 1000;  // problems after which the file is not of this model; take throws then

  // `check_finite` scans every tensor taken for NaN and Inf.
  TensorReader(const WeightSource& source, bool check_finite) : source_(source), check_finite_(check_finite) {}

  WeightView matrix(const std::string& name, int64_t rows, int64_t cols);
  std::vector<float> vector(const std::string& name, int64_t n);                       // as float32
  std::vector<float> matrix_f32(const std::string& name, int64_t rows, int64_t cols);  // as float32
  // Throws Error{kMalformed}: the first ten of the missing, misshapen, non-finite or unexpected tensors, and their
  // number.
  void finish();
  std::function<void(double share)> progress;  // of the bytes taken so far, if set

 private:
  const TensorInfo* take(const std::string& name, const std::vector<int64_t>& shape);
  void report(const std::string& problem);
  [[noreturn]] void fail() const;
  const WeightSource& source_;
  bool check_finite_;
  std::set<std::string> taken_;
  std::vector<std::string> first_problems_;  // at most kListed
  size_t problems_ = 0;
  size_t bytes_taken_ = 0;
};

}  // namespace carpool
