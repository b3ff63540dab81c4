// How many prompt rows fit into a step that must not take too long.
//
// Owns running estimates of what a decode step and a prompt row cost, fed with the seconds of every step. Decode rows
// are always run; prompt rows are cut so that their neighbours' next token is expected within the target.
#pragma once

namespace carpool {

class Pacer {
 public:
  static constexpr int kLeastRows = 16;  // so that prompts get on whatever the target is

  explicit Pacer(double target_seconds) : target_(target_seconds) {}  // 0 = nothing is cut

  // Most prompt rows, of up to `chunk`, beside `decode_rows` rows.
  int prompt_rows(int decode_rows, int chunk) const;
  // What a step took.
  void observe(int decode_rows, int prompt_rows, double seconds);

 private:
  double target_;
  double decode_seconds_ = 0;  // of a step without prompt rows
  double row_seconds_ = 0;     // of one prompt row more; 0 = not known yet
};

}  // namespace carpool
