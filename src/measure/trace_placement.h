// Which machine an expert lives on, and what a step then waits for: the rank with the most distinct experts.
//
// Owns ExpertPlacement and three ways to make one. With copies, all tokens of an expert go to one of them: the rank
// that is least busy when the expert's turn comes, experts with fewest copies first (METRO, arXiv 2512.09277).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carpool {

class ExpertPlacement {
 public:
  // "round_robin": expert e on rank e mod ranks. "greedy": by falling load, each to the least loaded rank that has
  // room. "replicated:N": greedy, and the N experts of most load per copy get one copy more. Error{kConfig}.
  static ExpertPlacement make(std::string_view kind, int ranks, std::span<const double> load);

  int ranks() const { return ranks_; }
  // Experts that each rank runs when these are loaded; `counts` gets `ranks` entries.
  void count(std::span<const int> loaded, std::vector<int>& counts) const;
  const std::vector<int>& homes(int expert) const { return homes_[static_cast<size_t>(expert)]; }

 private:
  int ranks_ = 0;
  std::vector<std::vector<int>> homes_;  // [E] ranks that have the expert
};

}  // namespace carpool
