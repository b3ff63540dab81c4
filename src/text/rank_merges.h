// Merges of a vocabulary that ranks its tokens instead of listing merges: SentencePiece's scores, tiktoken's ranks.
//
// There, any two neighbours whose texts together are a token may be joined, the token of lowest rank first, the
// leftmost pair of equal ones. So every way to cut a token into two others is a merge, and all ways have its rank.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "text/string_map.h"

namespace carpool {

struct RankedMerge {
  int left, right, result;
  uint32_t rank;
};

// `vocab`: token to id, spelled so that every character is a symbol (valid UTF-8). `ranks`: by id; a token whose rank
// is negative or absent is neither result nor part. In ascending order of rank, then of the ids of the parts.
std::vector<RankedMerge> merges_of_ranks(const StringMap<int>& vocab, const std::vector<int64_t>& ranks);

// Writes the "ranks" of the model of a tokenizer.json, which are carpool's own (bpe.h), as the "merges" that other
// programs read. They differ where the parts of two equal tokens overlap: a list has an order for each pair.
void list_merges(json::value& tokenizer);

}  // namespace carpool
