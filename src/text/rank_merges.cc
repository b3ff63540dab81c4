// See rank_merges.h.
#include "text/rank_merges.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "text/utf8.h"

namespace carpool {

std::vector<RankedMerge> merges_of_ranks(const StringMap<int>& vocab, const std::vector<int64_t>& ranks) {
  const auto rank_of = [&](int id) {
    const auto i = static_cast<size_t>(id);
    return i < ranks.size() ? ranks[i] : -1;
  };
  const auto part = [&](std::string_view text) {
    const auto found = vocab.find(text);
    return found != vocab.end() && rank_of(found->second) >= 0 ? found->second : -1;
  };
  std::vector<RankedMerge> merges;
  for (const auto& [token, id] : vocab) {
    if (rank_of(id) < 0) continue;
    const std::string_view text = token;
    for (size_t pos = 0; pos < text.size();) {
      read_code_point(text, pos);
      if (pos == text.size()) break;
      const int left = part(text.substr(0, pos)), right = left < 0 ? -1 : part(text.substr(pos));
      if (right >= 0) merges.push_back({left, right, id, static_cast<uint32_t>(rank_of(id))});
    }
  }
  std::sort(merges.begin(), merges.end(), [](const RankedMerge& a, const RankedMerge& b) {
    return std::tie(a.rank, a.left, a.right) < std::tie(b.rank, b.left, b.right);
  });
  return merges;
}

void list_merges(json::value& tokenizer) {
  json::object& model = tokenizer.at("model").as_object();
  const json::value* list = model.if_contains("ranks");
  if (!list) return;
  std::vector<int64_t> ranks;
  for (const json::value& rank : list->as_array()) ranks.push_back(rank.is_null() ? -1 : rank.to_number<int64_t>());
  StringMap<int> vocab;
  std::vector<std::string_view> tokens(ranks.size());
  for (const auto& [token, id] : model.at("vocab").as_object()) {
    const auto i = id.to_number<size_t>();
    vocab.emplace(token, static_cast<int>(i));
    if (i < tokens.size()) tokens[i] = token;
  }
  json::array merges;
  for (const RankedMerge& m : merges_of_ranks(vocab, ranks)) {
    merges.push_back(json::array{tokens[static_cast<size_t>(m.left)], tokens[static_cast<size_t>(m.right)]});
  }
  model.erase("ranks");
  model["merges"] = std::move(merges);
}

}  // namespace carpool
