// Where in a grammar a text stands: sets of positions, found and remembered byte by byte.
//
// Owns Matcher. A position is a stack of nodes that are still to be matched; stacks share their tails and equal ones
// are one, so a state, a set of positions, is a few numbers. States and where each byte leads are remembered, which
// makes the common case one look into a table. Counted repetitions hold what is still needed and what is still allowed.
// All work is bounded; what passes a bound ends the match (Step::kTooMuch), it never lets a byte through. Read next:
// constraint.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"

namespace carpool {

struct MatcherLimits {
  int positions = 1024;             // of one state
  int depth = 4096;                 // of one stack
  int64_t work = int64_t{4} << 20;  // positions looked at between two calls of start_work()
  size_t states = 1 << 12;
  size_t frames = 1 << 16;
};

// Not thread-safe. The grammar must outlive it.
class Matcher {
 public:
  static constexpr int kDead = -1;     // no text of the grammar begins so
  static constexpr int kTooMuch = -2;  // a limit was passed

  explicit Matcher(const Grammar& grammar, const MatcherLimits& limits = {});

  int start() { return start_; }  // kTooMuch when even that is too much
  int step(int state, unsigned char byte) {
    const int known = next_of(state)[byte];
    return known == kUnknown ? find_step(state, byte) : known;
  }
  // A text may end here.
  bool accepting(int state) const { return states_[static_cast<size_t>(state)].accepting; }
  // It must end here.
  bool complete(int state) const { return accepting(state) && positions(state).size() == 1; }
  int n_positions(int state) const { return static_cast<int>(positions(state).size()); }
  // A state that leads where `state` does as long as no more than `bytes` bytes follow, the same for many: counts
  // beyond that are cut.
  int shortened(int state, int bytes);
  // The state of `other`, a matcher of the same grammar, in this one.
  int import_state(const Matcher& other, int state);

  void start_work() { work_ = 0; }
  bool full() const { return states_.size() >= limits_.states || frames_.size() >= limits_.frames; }
  size_t n_states() const { return states_.size(); }
  size_t bytes() const;  // of memory, about

 private:
  static constexpr int kUnknown = -3;
  using Steps = std::array<int32_t, 256>;

  // The node that is to be matched, how far it is, and what comes after it. a: bytes of a literal or children of a
  // sequence that are done, or rounds of a repetition that are needed; b: rounds that are allowed, -1 for any number.
  struct Frame {
    int32_t node, a, b, after;
    bool operator==(const Frame&) const = default;
  };
  struct FrameHash {
    size_t operator()(const Frame& f) const;
  };
  struct KeyHash {
    size_t operator()(const std::vector<int32_t>& key) const;
  };
  struct State {
    const std::vector<int32_t>* positions;  // frames of bytes and literals, and 0 for the end; sorted
    bool accepting;
    std::unique_ptr<Steps> next;
  };

  const std::vector<int32_t>& positions(int state) const { return *states_[static_cast<size_t>(state)].positions; }
  Steps& next_of(int state);
  int find_step(int state, unsigned char byte);
  int32_t frame(const Frame& f);
  int32_t enter(NodeId node, int32_t after);
  void expand(int32_t id);
  int close();  // the state of what is in open_
  int state_of(std::vector<int32_t> positions);
  int32_t copy_frame(const Matcher& other, int32_t id, int most);
  int copy_state(const Matcher& other, int state, int most);

  const Grammar& grammar_;
  const MatcherLimits limits_;
  std::vector<Frame> frames_;   // 0: the end of the text
  std::vector<int32_t> depth_;  // by frame
  std::vector<uint32_t> seen_;  // by frame: the round it was expanded in
  std::unordered_map<Frame, int32_t, FrameHash> frame_ids_;
  std::vector<State> states_;
  std::unordered_map<std::vector<int32_t>, int, KeyHash> state_ids_;
  std::unordered_map<int, int> shortened_;
  int shortened_bytes_ = -1;
  std::vector<int32_t> open_, found_;
  std::unordered_map<int32_t, int32_t> copied_;
  uint32_t round_ = 0;
  int64_t work_ = 0;
  bool too_much_ = false;
  int start_ = kTooMuch;
};

// Walks into the grammar where its states are largest. False when a limit is passed on the way.
bool can_be_matched_within_limits(const Grammar& grammar);

}  // namespace carpool
