// See matcher.h.
#include "grammar/matcher.h"

#include <algorithm>
#include <utility>

namespace carpool {
namespace {

using Kind = GrammarNode::Kind;

size_t mix(size_t hash, size_t value) { return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29); }

}  // namespace

size_t Matcher::FrameHash::operator()(const Frame& f) const {
  const auto word = [](int32_t high, int32_t low) {
    return (static_cast<size_t>(static_cast<uint32_t>(high)) << 32) | static_cast<uint32_t>(low);
  };
  return mix(mix(1, word(f.node, f.after)), word(f.a, f.b));
}

size_t Matcher::KeyHash::operator()(const std::vector<int32_t>& key) const {
  size_t hash = key.size();
  for (const int32_t id : key) hash = mix(hash, static_cast<uint32_t>(id));
  return hash;
}

Matcher::Matcher(const Grammar& grammar, const MatcherLimits& limits) : grammar_(grammar), limits_(limits) {
  frames_.push_back({0, 0, 0, -1});
  depth_.push_back(0);
  seen_.push_back(0);
  open_.push_back(enter(grammar_.root(), 0));
  start_ = close();
}

size_t Matcher::bytes() const {
  size_t out = frames_.size() * 80 + states_.size() * 64;
  for (const State& s : states_) out += s.positions->size() * sizeof(int32_t) + (s.next ? sizeof(Steps) : 0);
  return out;
}

Matcher::Steps& Matcher::next_of(int state) {
  State& s = states_[static_cast<size_t>(state)];
  if (!s.next) {
    s.next = std::make_unique<Steps>();
    s.next->fill(kUnknown);
  }
  return *s.next;
}

int32_t Matcher::frame(const Frame& f) {
  const auto [at, is_new] = frame_ids_.try_emplace(f, static_cast<int32_t>(frames_.size()));
  if (!is_new) return at->second;
  const int32_t depth = depth_[static_cast<size_t>(f.after)] + 1;
  if (depth > limits_.depth || frames_.size() >= 2 * limits_.frames) too_much_ = true;
  frames_.push_back(f);
  depth_.push_back(depth);
  seen_.push_back(0);
  return at->second;
}

int32_t Matcher::enter(NodeId node, int32_t after) {
  const GrammarNode& n = grammar_.node(node);
  if (n.kind == Kind::kEmpty) return after;
  return n.kind == Kind::kRepeat ? frame({node, n.b, n.c, after}) : frame({node, 0, 0, after});
}

// Puts what the frame's node begins with into open_, or the frame itself, when it waits for a byte, into found_.
void Matcher::expand(int32_t id) {
  if (id == 0) {
    found_.push_back(0);
    return;
  }
  const Frame f = frames_[static_cast<size_t>(id)];
  const GrammarNode& n = grammar_.node(f.node);
  if (!n.productive) return;
  switch (n.kind) {
    case Kind::kEmpty:
      open_.push_back(f.after);
      break;
    case Kind::kFail:
      break;
    case Kind::kBytes:
    case Kind::kLiteral:
      found_.push_back(id);
      break;
    case Kind::kSeq: {
      const auto children = grammar_.children(n);
      const int32_t rest = f.a + 1 < n.b ? frame({f.node, f.a + 1, 0, f.after}) : f.after;
      open_.push_back(enter(children[static_cast<size_t>(f.a)], rest));
      break;
    }
    case Kind::kAlt:
      for (const NodeId child : grammar_.children(n)) {
        if (grammar_.node(child).productive) open_.push_back(enter(child, f.after));
      }
      break;
    case Kind::kRepeat: {
      if (f.a == 0) open_.push_back(f.after);
      if (f.b == 0 || !grammar_.node(n.a).productive) break;
      const int32_t allowed = f.b < 0 ? f.b : f.b - 1;
      const int32_t rest = allowed == 0 ? f.after : frame({f.node, std::max(f.a - 1, 0), allowed, f.after});
      open_.push_back(enter(n.a, rest));
      break;
    }
    case Kind::kRule:
      open_.push_back(enter(grammar_.rule(n), f.after));
      break;
  }
}

int Matcher::close() {
  if (++round_ == 0) {
    std::fill(seen_.begin(), seen_.end(), 0);
    round_ = 1;
  }
  found_.clear();
  while (!open_.empty() && !too_much_) {
    const int32_t id = open_.back();
    open_.pop_back();
    uint32_t& seen = seen_[static_cast<size_t>(id)];
    if (seen == round_) continue;
    seen = round_;
    if (++work_ > limits_.work) too_much_ = true;
    expand(id);
    if (static_cast<int>(found_.size()) > limits_.positions) too_much_ = true;
  }
  open_.clear();
  if (std::exchange(too_much_, false)) return kTooMuch;
  return found_.empty() ? kDead : state_of(found_);
}

int Matcher::state_of(std::vector<int32_t> positions) {
  std::sort(positions.begin(), positions.end());
  const auto [at, is_new] = state_ids_.try_emplace(std::move(positions), static_cast<int>(states_.size()));
  if (!is_new) return at->second;
  if (states_.size() >= 2 * limits_.states) {
    state_ids_.erase(at);
    return kTooMuch;
  }
  states_.push_back({&at->first, at->first.front() == 0, nullptr});
  return at->second;
}

int Matcher::find_step(int state, unsigned char byte) {
  const std::vector<int32_t>& from = positions(state);
  work_ += static_cast<int64_t>(from.size()) / 4;  // cheaper than expanding
  for (const int32_t id : from) {
    if (id == 0) continue;
    const Frame f = frames_[static_cast<size_t>(id)];
    const GrammarNode& n = grammar_.node(f.node);
    if (n.kind == Kind::kBytes) {
      if (grammar_.set(n)[byte]) open_.push_back(f.after);
    } else if (grammar_.byte(n, f.a) == byte) {
      open_.push_back(f.a + 1 < n.b ? frame({f.node, f.a + 1, 0, f.after}) : f.after);
    }
  }
  const int next = open_.empty() ? kDead : close();
  if (next != kTooMuch) next_of(state)[byte] = next;  // with less work done before, it may be possible
  return next;
}

// `most` >= 0: with counts beyond it cut to it.
int32_t Matcher::copy_frame(const Matcher& other, int32_t id, int most) {
  std::vector<int32_t> chain;
  while (id != 0 && !copied_.contains(id)) {
    chain.push_back(id);
    id = other.frames_[static_cast<size_t>(id)].after;
  }
  int32_t after = id == 0 ? 0 : copied_.at(id);
  for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
    Frame f = other.frames_[static_cast<size_t>(*at)];
    f.after = after;
    if (most >= 0 && grammar_.node(f.node).kind == Kind::kRepeat) {
      f.a = std::min(f.a, most);
      f.b = std::min(f.b, most);
    }
    after = copied_[*at] = frame(f);
    ++work_;
  }
  return after;
}

int Matcher::copy_state(const Matcher& other, int state, int most) {
  copied_.clear();
  std::vector<int32_t> positions;
  const std::vector<int32_t> from = other.positions(state);
  for (const int32_t id : from) positions.push_back(copy_frame(other, id, most));
  if (std::exchange(too_much_, false)) return kTooMuch;
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return state_of(std::move(positions));
}

int Matcher::shortened(int state, int bytes) {
  if (shortened_bytes_ != bytes) shortened_.clear();
  shortened_bytes_ = bytes;
  const auto known = shortened_.find(state);
  if (known != shortened_.end()) return known->second;
  const int out = copy_state(*this, state, bytes + 1);
  if (out >= 0) shortened_[state] = out;
  return out;
}

int Matcher::import_state(const Matcher& other, int state) { return copy_state(other, state, -1); }

bool can_be_matched_within_limits(const Grammar& grammar) {
  constexpr int kSteps = 512, kLookAround = 32;
  Matcher matcher(grammar);
  int state = matcher.start();
  int best = -1;
  for (int i = 0; i < kSteps && state >= 0; ++i) {
    matcher.start_work();
    int next =
        best >= 0 && i % kLookAround != 0 ? matcher.step(state, static_cast<unsigned char>(best)) : Matcher::kDead;
    if (next == Matcher::kDead) {
      int most = 0;
      for (int b = 0; b < 256; ++b) {
        const int to = matcher.step(state, static_cast<unsigned char>(b));
        if (to == Matcher::kTooMuch) return false;
        if (to < 0 || matcher.n_positions(to) < most) continue;
        most = matcher.n_positions(to);
        best = b;
        next = to;
      }
    }
    if (next == Matcher::kTooMuch) return false;
    state = next;
    if (matcher.full()) return true;
  }
  return state != Matcher::kTooMuch;
}

}  // namespace carpool
