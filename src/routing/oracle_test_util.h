// The routing policies once more, as slowly and plainly as they can be written: the oracle of the tests.
//
// Sorts all experts of a row, keeps sets in std::set, and follows the paper's loop instead of the closed form. Shares
// no code with the implementation (only its types) and reads specs with a parser of its own. Used by tests only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "routing/types.h"

namespace carpool::oracle {

struct Answer {
  std::vector<std::vector<int>> rows;  // [T] experts, best first
  std::vector<PlainReason> reasons;    // [T]
};

// "oea:k0=2,p=0.5" -> {"": "oea", "k0": "2", "p": "0.5"}
using Settings = std::map<std::string, std::string>;
inline Settings parse(const std::string& spec) {
  Settings settings;
  const size_t colon = spec.find(':');
  settings[""] = spec.substr(0, colon);
  for (size_t at = colon; at != std::string::npos;) {
    const size_t equals = spec.find('=', at);
    const size_t comma = spec.find(',', equals);
    settings[spec.substr(at + 1, equals - at - 1)] = spec.substr(equals + 1, comma - equals - 1);
    at = comma;
  }
  return settings;
}
inline std::string get(const Settings& settings, const std::string& key, const std::string& fallback) {
  const auto found = settings.find(key);
  return found == settings.end() ? fallback : found->second;
}
inline int get_int(const Settings& settings, const std::string& key, int fallback) {
  return std::stoi(get(settings, key, std::to_string(fallback)));
}

// All choosable experts of row t, best first: pairs (-score, id) in rising order. With `reversed_ties`, (-score, -id).
inline std::vector<int> ranked(const RouterInput& in, int t, bool reversed_ties = false) {
  std::vector<std::pair<float, int>> keys;
  for (int e = 0; e < in.n_experts; ++e) {
    const float s = in.rank_row(t)[static_cast<size_t>(e)];
    const bool forbidden = std::isnan(s) || (std::isinf(s) && s < 0);
    if (!forbidden) keys.emplace_back(-s, reversed_ties ? -e : e);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<int> ids;
  for (const auto& key : keys) ids.push_back(std::abs(key.second));
  return ids;
}

inline std::vector<int> first(std::vector<int> ids, size_t n) {
  if (ids.size() > n) ids.resize(n);
  return ids;
}

inline std::vector<int> plain_row(const RouterInput& in, int t) {
  if (in.tokens[static_cast<size_t>(t)].phase == Phase::kPad) return {};
  return first(ranked(in, t), static_cast<size_t>(in.top_k));
}

// The first min(k0, t(p)) ranks, t(p) being the smallest count whose weights reach the share p of the whole row.
inline std::vector<int> base_set(const RouterInput& in, int t, int k0, double p) {
  std::vector<int> base = first(ranked(in, t), static_cast<size_t>(k0));
  if (p >= 1) return base;
  const auto weights = in.weight_row(t);
  const auto weight = [&](int e) {
    const float w = weights[static_cast<size_t>(e)];
    return std::isnan(w) || w < 0 ? 0.0 : static_cast<double>(w);
  };
  double total = 0;
  for (int e = 0; e < in.n_experts; ++e) total += weight(e);
  double mass = 0;
  for (size_t n = 0; n < base.size(); ++n) {
    mass += weight(base[n]);
    if (mass >= p * total) return first(base, n + 1);
  }
  return base;
}

// Deliberate faults, to show that the contract test has power.
enum class Fault {
  kNone,
  kEverythingIsInUnion,
  kNothingIsInUnion,
  kPadsLend,
  kIsolatedLends,
  kTiesToHigherId,
  kDropsBest,
  kRepeatsBest,
  kReroutesPrefill,
  kFirstRowOnlyLends,
  kIgnoresGroups,
  kForgetsSecondBase,
};

inline bool eligible(const TokenInfo& token, Fault fault) {
  if (token.phase == Phase::kPrefill && fault == Fault::kReroutesPrefill) return !token.isolated;
  return token.phase == Phase::kDecode && !token.isolated;
}

inline bool lends(const TokenInfo& token, const Settings& s, Fault fault) {
  if (token.phase == Phase::kPad) return fault == Fault::kPadsLend;
  if (token.isolated) return fault == Fault::kIsolatedLends;
  return eligible(token, fault) || (token.phase == Phase::kPrefill && get(s, "lend", "none") == "prefill");
}

// Why row t stays plain under OEA with settings `s`, `used` being its group's union; kApplied when it does not.
inline PlainReason reason(const RouterInput& in, int t, const Settings& s, const std::set<int>& used, Fault fault) {
  const TokenInfo& token = in.tokens[static_cast<size_t>(t)];
  if (token.phase == Phase::kPad) return PlainReason::kPhase;
  if (get_int(s, "k0", 0) == 0) return PlainReason::kPolicy;
  if (token.isolated) return PlainReason::kIsolated;
  if (!eligible(token, fault)) return PlainReason::kPhase;
  int in_group = 0, in_step = 0;
  for (const TokenInfo& other : in.tokens) {
    in_group += eligible(other, fault) && other.group == token.group ? 1 : 0;
    in_step += other.phase != Phase::kPad ? 1 : 0;
  }
  if (in_group < get_int(s, "min_batch", 2)) return PlainReason::kMinBatch;
  if (s.count("max_rows") && in_step > get_int(s, "max_rows", 0)) return PlainReason::kMaxRows;
  const bool guard = get(s, "guard", "on") == "on";
  if (guard && static_cast<int>(used.size()) < in.top_k) return PlainReason::kUnion;
  return PlainReason::kApplied;
}

// Phase 2 of algorithm 2: start with the base set, walk the further ranks, add what is in the union.
inline std::vector<int> walk(const RouterInput& in, int t, const Settings& s, const std::set<int>& used, Fault fault) {
  const size_t k_max = static_cast<size_t>(get_int(s, "k_max", in.top_k));
  const size_t max_p = static_cast<size_t>(get_int(s, "max_p", in.n_experts));
  const std::vector<int> order = ranked(in, t, fault == Fault::kTiesToHigherId);
  std::vector<int> chosen = base_set(in, t, get_int(s, "k0", 0), std::stod(get(s, "p", "1")));
  if (fault == Fault::kTiesToHigherId) chosen = first(order, chosen.size());
  for (size_t rank = chosen.size(); rank < order.size() && rank < max_p && chosen.size() < k_max; ++rank) {
    bool in_union = used.count(order[rank]) != 0;
    if (fault == Fault::kEverythingIsInUnion) in_union = true;
    if (fault == Fault::kNothingIsInUnion) in_union = false;
    if (in_union) chosen.push_back(order[rank]);
  }
  if (fault == Fault::kDropsBest && chosen.size() > 1) chosen.erase(chosen.begin());
  if (fault == Fault::kRepeatsBest && !chosen.empty()) chosen.back() = chosen.front();
  if (fault == Fault::kForgetsSecondBase && chosen.size() > 2) chosen.erase(chosen.begin() + 1);
  return chosen;
}

inline Answer oea(const RouterInput& in, const Settings& s, Fault fault = Fault::kNone) {
  std::map<int, std::set<int>> unions;
  std::set<int> started;
  for (int t = 0; t < in.rows(); ++t) {
    const TokenInfo& token = in.tokens[static_cast<size_t>(t)];
    if (!lends(token, s, fault)) continue;
    const int group = fault == Fault::kIgnoresGroups ? 0 : token.group;
    if (fault == Fault::kFirstRowOnlyLends && !started.insert(group).second) continue;
    for (int e : base_set(in, t, get_int(s, "k0", 0), std::stod(get(s, "p", "1")))) unions[group].insert(e);
  }
  Answer answer;
  for (int t = 0; t < in.rows(); ++t) {
    const int group = fault == Fault::kIgnoresGroups ? 0 : in.tokens[static_cast<size_t>(t)].group;
    PlainReason why = reason(in, t, s, unions[group], fault);
    std::vector<int> row = plain_row(in, t);
    if (why == PlainReason::kApplied) {
      const std::vector<int> filled = walk(in, t, s, unions[group], fault);
      const int full = std::min(in.top_k, get_int(s, "k_max", in.top_k));
      const bool keep = get(s, "underfill", "fewer") == "keep" && static_cast<int>(filled.size()) < full;
      if (keep) why = PlainReason::kUnion;
      if (!keep) row = filled;
    }
    answer.rows.push_back(row);
    answer.reasons.push_back(why);
  }
  return answer;
}

inline Answer prune(const RouterInput& in, const Settings& s) {
  Answer answer;
  const int k0 = get_int(s, "k0", 0);
  for (int t = 0; t < in.rows(); ++t) {
    const TokenInfo& token = in.tokens[static_cast<size_t>(t)];
    std::vector<int> row = plain_row(in, t);
    PlainReason why = PlainReason::kApplied;
    if (token.phase == Phase::kPad) {
      why = PlainReason::kPhase;
    } else if (k0 == 0) {
      why = PlainReason::kPolicy;
    } else if (token.isolated) {
      why = PlainReason::kIsolated;
    } else if (token.phase == Phase::kPrefill) {
      why = PlainReason::kPhase;
    } else {
      row = base_set(in, t, k0, std::stod(get(s, "p", "1")));
    }
    answer.rows.push_back(row);
    answer.reasons.push_back(why);
  }
  return answer;
}

inline Answer topk(const RouterInput& in) {
  Answer answer;
  for (int t = 0; t < in.rows(); ++t) {
    const bool pad = in.tokens[static_cast<size_t>(t)].phase == Phase::kPad;
    answer.rows.push_back(plain_row(in, t));
    answer.reasons.push_back(pad ? PlainReason::kPhase : PlainReason::kPolicy);
  }
  return answer;
}

}  // namespace carpool::oracle
