// The tree of computed blocks. See prefix_cache.h.
#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/error.h"

namespace carpool {
namespace {

constexpr int kBlock = KvCache::kBlockTokens;

using BlockTokens = std::array<int, kBlock>;

BlockTokens block_tokens(std::span<const int> tokens, int block) {
  BlockTokens out;
  std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(block) * kBlock, kBlock, out.begin());
  return out;
}

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 33);
}

uint64_t path_hash(uint64_t parent, const BlockTokens& tokens) {
  for (const int t : tokens) parent = mix(parent, static_cast<uint64_t>(t));
  return parent;
}

}  // namespace

struct PrefixCache::Node {
  Node* parent = nullptr;  // null for a root
  BlockTokens tokens{};
  int tenant = 0;
  int block = -1;
  int holds = 0;  // sequences whose path goes through this node
  uint64_t used = 0;
  uint64_t hash = 0;  // of all tokens of the path
  std::map<BlockTokens, std::unique_ptr<Node>> children;
};

PrefixCache::PrefixCache(KvCache& kv) : kv_(kv), most_evicted_(static_cast<size_t>(kv.total_blocks())) {}
PrefixCache::~PrefixCache() = default;

PrefixCache::Node& PrefixCache::root(int tenant) {
  std::unique_ptr<Node>& out = roots_[tenant];
  if (!out) {
    out = std::make_unique<Node>();
    out->tenant = tenant;
  }
  return *out;
}

void PrefixCache::hold_child(Node& child, Hold& hold) {
  if (child.holds++ == 0) {
    --unheld_;
    if (child.children.empty()) idle_.erase({child.used, &child});
  }
  hold.node = &child;
  ++hold.blocks;
}

PrefixReason PrefixCache::match(int tenant, std::span<const int> tokens, Hold& hold, std::vector<int>& table) {
  Node* at = hold.node ? hold.node : &root(tenant);
  const int whole = static_cast<int>(tokens.size()) / kBlock;
  std::vector<int> replaced;
  while (hold.blocks < whole) {
    const auto child = at->children.find(block_tokens(tokens, hold.blocks));
    if (child == at->children.end()) break;
    at = child->second.get();
    const auto i = static_cast<size_t>(hold.blocks);
    hold_child(*at, hold);
    if (i < table.size()) {
      replaced.push_back(table[i]);
      table[i] = at->block;
    } else {
      table.push_back(at->block);
    }
  }
  kv_.give_back(replaced);
  return reason(tenant, tokens, hold);
}

PrefixReason PrefixCache::reason(int tenant, std::span<const int> tokens, const Hold& hold) const {
  if (hold.blocks == static_cast<int>(tokens.size()) / kBlock)
    return hold.blocks > 0 ? PrefixReason::kWhole : PrefixReason::kNoMatch;
  const uint64_t next = path_hash(hold.node ? hold.node->hash : 0, block_tokens(tokens, hold.blocks));
  if (evicted_.contains(mix(next, static_cast<uint64_t>(tenant)))) return PrefixReason::kEvicted;
  if (present_.contains(next)) return PrefixReason::kOtherTenant;
  return hold.blocks > 0 ? PrefixReason::kDiverged : PrefixReason::kNoMatch;
}

void PrefixCache::insert(int tenant, std::span<const int> tokens, Hold& hold, std::vector<int>& table) {
  Node* at = hold.node ? hold.node : &root(tenant);
  const int whole = static_cast<int>(tokens.size()) / kBlock;
  CARPOOL_CHECK(whole <= static_cast<int>(table.size()));
  std::vector<int> duplicates;
  while (hold.blocks < whole) {
    const auto i = static_cast<size_t>(hold.blocks);
    auto [child, is_new] = at->children.try_emplace(block_tokens(tokens, hold.blocks));
    if (is_new) {
      child->second = std::make_unique<Node>();
      Node& node = *child->second;
      node.parent = at;
      node.tokens = child->first;
      node.tenant = tenant;
      node.block = table[i];
      node.hash = path_hash(at->hash, node.tokens);
      ++present_[node.hash];
      evicted_.erase(mix(node.hash, static_cast<uint64_t>(tenant)));
      ++blocks_;
      node.holds = 1;
      hold.node = &node;
      ++hold.blocks;
    } else {
      duplicates.push_back(table[i]);
      table[i] = child->second->block;
      hold_child(*child->second, hold);
    }
    at = hold.node;
  }
  kv_.give_back(duplicates);
}

void PrefixCache::release(Hold& hold, std::vector<int>& table) {
  std::vector<int> own(table.begin() + hold.blocks, table.end());
  kv_.give_back(own);
  // From the deepest node upwards, so that of one path the end counts as used less recently than its beginning.
  for (Node* n = hold.node; n && n->parent; n = n->parent) {
    CARPOOL_CHECK(n->holds > 0);
    if (--n->holds > 0) continue;
    n->used = ++clock_;
    ++unheld_;
    if (n->children.empty()) idle_.insert({n->used, n});
  }
  hold = {};
  table.clear();
}

bool PrefixCache::take(int64_t n, std::vector<int>& table) {
  if (n > available()) return false;
  while (kv_.free_blocks() < n) evict(*idle_.begin()->second);
  return kv_.take(n, table);
}

void PrefixCache::evict(Node& leaf) {
  CARPOOL_CHECK(leaf.holds == 0 && leaf.children.empty() && leaf.parent);
  idle_.erase({leaf.used, &leaf});
  std::vector<int> block{leaf.block};
  kv_.give_back(block);
  --blocks_;
  --unheld_;
  if (const auto p = present_.find(leaf.hash); --p->second == 0) present_.erase(p);
  const uint64_t ghost = mix(leaf.hash, static_cast<uint64_t>(leaf.tenant));
  if (evicted_.insert(ghost).second) {
    evicted_order_.push_back(ghost);
    if (evicted_order_.size() > most_evicted_) {
      evicted_.erase(evicted_order_.front());
      evicted_order_.pop_front();
    }
  }
  Node& parent = *leaf.parent;
  const BlockTokens key = leaf.tokens;
  parent.children.erase(key);
  if (parent.parent && parent.holds == 0 && parent.children.empty()) idle_.insert({parent.used, &parent});
}

void PrefixCache::flush() {
  while (!idle_.empty()) evict(*idle_.begin()->second);
  evicted_.clear();
  evicted_order_.clear();
}

}  // namespace carpool
