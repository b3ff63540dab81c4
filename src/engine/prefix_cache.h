// Computed key-value blocks of prompts, kept for the next request that begins with the same tokens.
//
// Owns a tree of full blocks per tenant. A node is one block and compares its 16 tokens one by one, so that no hash has
// to be trusted; its path from the root is the whole text before it. Sequences hold the path they use; what nobody
// holds is evicted, least recently used leaf first, when the pool needs room. Which blocks may come in is the
// scheduler's decision: only those whose every position was computed by plain rows. Tenants never see each other's
// blocks.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "model/kv_cache.h"

namespace carpool {

class PrefixCache {
 public:
  struct Node;
  // The part of a block table that belongs to the tree: its first `blocks` entries, held until release().
  struct Hold {
    Node* node = nullptr;  // the deepest one; null = nothing is held
    int blocks = 0;
  };

  explicit PrefixCache(KvCache& kv);
  ~PrefixCache();

  // Extends `hold` over as many further blocks of `tokens` as the tree has. They replace entries of `table` beyond the
  // hold, which go back to the pool, or are appended. Says why it was not more; kOtherTenant is for the operator
  // alone, since it speaks of other people's prompts.
  PrefixReason match(int tenant, std::span<const int> tokens, Hold& hold, std::vector<int>& table);
  // The tree takes the blocks of `table` that `tokens` fill, and `hold` covers them all from now on. Where it already
  // had one, the table's own goes back to the pool and the tree's takes its place: they hold the same bits.
  void insert(int tenant, std::span<const int> tokens, Hold& hold, std::vector<int>& table);
  // Ends the hold and returns the other blocks of `table` to the pool. Empties both.
  void release(Hold& hold, std::vector<int>& table);

  // Takes `n` blocks, evicting what nobody holds where fewer are free. False, and nothing done, when even that would
  // not be enough.
  bool take(int64_t n, std::vector<int>& table);
  int64_t available() const { return int64_t{kv_.free_blocks()} + unheld_; }
  int unheld() const { return unheld_; }  // blocks of the tree that no sequence uses
  int blocks() const { return blocks_; }  // of the tree
  // Evicts all that nobody holds.
  void flush();

 private:
  Node& root(int tenant);
  void hold_child(Node& child, Hold& hold);
  void evict(Node& leaf);
  PrefixReason reason(int tenant, std::span<const int> tokens, const Hold& hold) const;

  KvCache& kv_;
  std::map<int, std::unique_ptr<Node>> roots_;  // by tenant
  int blocks_ = 0, unheld_ = 0;
  uint64_t clock_ = 0;                         // counts releases of nodes: the order of use
  std::set<std::pair<uint64_t, Node*>> idle_;  // leaves that nobody holds, least recently used first
  // For the reasons only: hashes of the paths that some tenant has, with their number, and of those evicted last.
  std::unordered_map<uint64_t, int> present_;
  std::unordered_set<uint64_t> evicted_;
  std::deque<uint64_t> evicted_order_;
  size_t most_evicted_;
};

}  // namespace carpool
