// See stop_texts.h.
#include "grammar/stop_texts.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "text/utf8.h"

namespace carpool {

StopTexts::StopTexts(std::span<const std::string> stops) : states_(1) {
  CARPOOL_CHECK(!stops.empty());
  std::set<uint32_t> alphabet;
  for (const std::string& stop : stops) {
    CARPOOL_CHECK(!stop.empty() && is_valid_utf8(stop));
    int state = 0;
    for (size_t pos = 0; pos < stop.size();) {
      const auto c = static_cast<uint32_t>(read_code_point(stop, pos));
      alphabet.insert(c);
      const auto [at, is_new] =
          states_[static_cast<size_t>(state)].next.try_emplace(c, static_cast<int>(states_.size()));
      state = at->second;
      if (is_new) states_.emplace_back();
    }
    states_[static_cast<size_t>(state)].stopped = true;
  }
  for (const uint32_t c : alphabet) alphabet_.add(c);
  // Shorter beginnings first: the longest proper suffix of each that is a beginning, too, is then complete.
  std::vector<int> order = {0}, suffix(states_.size(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    const auto at = static_cast<size_t>(order[i]);
    const auto behind = static_cast<size_t>(suffix[at]);
    State& state = states_[at];
    state.stopped = state.stopped || states_[behind].stopped;
    for (const uint32_t c : alphabet) {
      const auto child = state.next.find(c);
      const auto known = at == 0 ? states_[0].next.end() : states_[behind].next.find(c);
      const int shorter = at == 0 ? 0 : known->second;
      if (child == state.next.end()) {
        state.next[c] = shorter;
      } else {
        suffix[static_cast<size_t>(child->second)] = shorter;
        order.push_back(child->second);
      }
    }
  }
}

}  // namespace carpool
