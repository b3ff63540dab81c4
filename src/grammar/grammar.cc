// See grammar.h. Nodes come after their children, except through rules, so that passes over all nodes settle fast.
#include "grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "grammar/char_set.h"
#include "grammar/stop_texts.h"

namespace carpool {
namespace {

using Kind = GrammarNode::Kind;

}  // namespace

size_t Grammar::bytes() const {
  return nodes_.size() * sizeof(GrammarNode) + (lists_.size() + rules_.size()) * sizeof(NodeId) +
         sets_.size() * sizeof(ByteSet) + text_.size();
}

GrammarBuilder::GrammarBuilder() : grammar_(std::make_shared<Grammar>()) {
  add({Kind::kEmpty, true, true});
  add({Kind::kFail});
}

NodeId GrammarBuilder::add(GrammarNode node) {
  Grammar& g = *grammar_;
  if (g.nodes_.size() >= kMaxNodes || g.lists_.size() > 4 * kMaxNodes) {
    throw GrammarError("", false, fmt::format("it needs a grammar of more than {} nodes", kMaxNodes));
  }
  g.nodes_.push_back(node);
  nonempty_.push_back(-1);
  return static_cast<NodeId>(g.nodes_.size() - 1);
}

NodeId GrammarBuilder::bytes(const ByteSet& set) {
  if (set.none()) return fail();
  const auto [known, is_new] = byte_sets_.try_emplace(set, fail());
  if (is_new) {
    grammar_->sets_.push_back(set);
    known->second = add({Kind::kBytes, false, true, static_cast<int32_t>(grammar_->sets_.size() - 1)});
  }
  return known->second;
}

NodeId GrammarBuilder::bytes(unsigned char first, unsigned char last) {
  ByteSet set;
  for (int b = first; b <= last; ++b) set.set(static_cast<size_t>(b));
  return bytes(set);
}

NodeId GrammarBuilder::literal(std::string_view text) {
  if (text.empty()) return empty();
  const size_t at = grammar_->text_.size();
  if (at + text.size() > (size_t{16} << 20)) throw GrammarError("", false, "its texts are longer than 16 MiB");
  grammar_->text_ += text;
  return add({Kind::kLiteral, false, true, static_cast<int32_t>(at), static_cast<int32_t>(text.size())});
}

NodeId GrammarBuilder::special(std::string_view text) {
  auto& all = grammar_->specials_;
  if (std::find(all.begin(), all.end(), text) == all.end()) all.emplace_back(text);
  return literal(text);
}

NodeId GrammarBuilder::list(Kind kind, std::span<const NodeId> nodes, bool nullable) {
  Grammar& g = *grammar_;
  const size_t at = g.lists_.size();
  g.lists_.insert(g.lists_.end(), nodes.begin(), nodes.end());
  return add({kind, nullable, false, static_cast<int32_t>(at), static_cast<int32_t>(nodes.size())});
}

NodeId GrammarBuilder::seq(std::span<const NodeId> parts) {
  std::vector<NodeId> kept;
  bool nullable = true;
  for (const NodeId part : parts) {
    if (part == fail()) return fail();
    if (part == empty()) continue;
    kept.push_back(part);
    nullable = nullable && grammar_->node(part).nullable;
  }
  if (kept.empty()) return empty();
  return kept.size() == 1 ? kept[0] : list(Kind::kSeq, kept, nullable);
}

NodeId GrammarBuilder::alt(std::span<const NodeId> options) {
  std::vector<NodeId> kept;
  bool nullable = false;
  for (const NodeId option : options) {
    if (option == fail()) continue;
    kept.push_back(option);
    nullable = nullable || grammar_->node(option).nullable;
  }
  if (kept.empty()) return fail();
  return kept.size() == 1 ? kept[0] : list(Kind::kAlt, kept, nullable);
}

NodeId GrammarBuilder::one_of(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return texts.empty() ? fail() : tree(texts, 0);
}

// All of `sorted` agree in their first `depth` bytes. Every level of the recursion needs one more text that is longer
// than the last, so kMaxGrammarBytes of texts go a few hundred levels deep.
NodeId GrammarBuilder::tree(std::span<const std::string> sorted, size_t depth) {
  const std::string &first = sorted.front(), &last = sorted.back();
  size_t common = depth;
  while (common < first.size() && common < last.size() && first[common] == last[common]) ++common;
  const NodeId head = literal(std::string_view(first).substr(depth, common - depth));
  if (sorted.size() == 1) return head;
  std::vector<NodeId> options;
  size_t begin = 0;
  if (first.size() == common) {
    options.push_back(empty());
    begin = 1;
  }
  while (begin < sorted.size()) {
    size_t end = begin + 1;
    while (end < sorted.size() && sorted[end][common] == sorted[begin][common]) ++end;
    options.push_back(tree(sorted.subspan(begin, end - begin), common));
    begin = end;
  }
  return seq({head, alt(options)});
}

NodeId GrammarBuilder::repeat(NodeId node, int min, int max) {
  CARPOOL_CHECK(min >= 0 && (max == kNoLimit || max >= min));
  if (max == 0) return empty();
  if (grammar_->node(node).nullable) {
    node = nonempty(node);
    min = 0;
  }
  if (node == fail()) return min == 0 ? empty() : fail();
  if (min == 1 && max == 1) return node;
  return add({Kind::kRepeat, min == 0, false, node, min, max});
}

// The texts of a node without the empty one.
NodeId GrammarBuilder::nonempty(NodeId id) {
  const GrammarNode n = grammar_->node(id);
  if (!n.nullable) return id;
  if (NodeId made = nonempty_[static_cast<size_t>(id)]; made >= 0) return made;
  NodeId out = fail();
  if (n.kind == Kind::kRepeat) {  // its least count is 0
    out = n.c == 1 ? n.a : add({Kind::kRepeat, false, false, n.a, 1, n.c});
  } else if (n.kind == Kind::kAlt || n.kind == Kind::kSeq) {
    const std::span<const NodeId> span = grammar_->children(n);
    const std::vector<NodeId> children(span.begin(), span.end());
    std::vector<NodeId> options;
    for (size_t i = 0; i < children.size(); ++i) {
      const NodeId head = nonempty(children[i]);
      if (n.kind == Kind::kAlt || i + 1 == children.size()) {
        options.push_back(head);
      } else if (head != fail()) {
        // The parts before it are empty; those after it are a part of the same list.
        const NodeId rest =
            add({Kind::kSeq, true, false, n.a + static_cast<int32_t>(i + 1), n.b - static_cast<int32_t>(i + 1)});
        options.push_back(seq({head, rest}));
      }
    }
    out = alt(options);
  }
  nonempty_[static_cast<size_t>(id)] = out;
  return out;
}

int GrammarBuilder::new_rule() {
  grammar_->rules_.push_back(fail());
  return static_cast<int>(grammar_->rules_.size() - 1);
}

NodeId GrammarBuilder::rule(int rule) { return add({Kind::kRule, false, false, rule}); }

void GrammarBuilder::define(int rule, NodeId node) { grammar_->rules_[static_cast<size_t>(rule)] = node; }

NodeId GrammarBuilder::text_without(std::span<const std::string> stops) {
  return text_without(stops, CharSet().complement(), fail());
}

// One state for each beginning of a stop that the text ends with, as Aho and Corasick match (1975), over characters.
NodeId GrammarBuilder::text_without(std::span<const std::string> stops, const CharSet& chars, NodeId more) {
  const StopTexts automaton(stops);
  std::vector<int> rules(automaton.states().size(), -1);
  for (size_t s = 0; s < rules.size(); ++s) {
    if (!automaton.states()[s].stopped) rules[s] = new_rule();
  }
  const NodeId other = alt({char_node(*this, chars.without(automaton.alphabet()), CharForm::kRaw), more});
  for (size_t s = 0; s < rules.size(); ++s) {
    const StopTexts::State& state = automaton.states()[s];
    if (state.stopped) continue;
    std::map<int, CharSet> next;  // where the characters lead
    for (const auto& [c, to] : state.next) {
      if (rules[static_cast<size_t>(to)] >= 0) next[rules[static_cast<size_t>(to)]].add(c);
    }
    std::vector<NodeId> options = {empty(), seq({other, rule(rules[0])})};
    for (const auto& [to, set] : next) options.push_back(seq({char_node(*this, set, CharForm::kRaw), rule(to)}));
    define(rules[s], alt(options));
  }
  return rule(rules[0]);
}

// Sets what follows for a node from its children; true when that is news.
bool GrammarBuilder::settle(GrammarNode& n) {
  const Grammar& g = *grammar_;
  bool nullable = n.nullable, productive = n.productive;
  const auto is_nullable = [&](NodeId c) { return g.node(c).nullable; };
  const auto is_productive = [&](NodeId c) { return g.node(c).productive; };
  if (n.kind == Kind::kSeq) {
    const auto children = g.children(n);
    nullable = std::all_of(children.begin(), children.end(), is_nullable);
    productive = std::all_of(children.begin(), children.end(), is_productive);
  } else if (n.kind == Kind::kAlt) {
    const auto children = g.children(n);
    nullable = std::any_of(children.begin(), children.end(), is_nullable);
    productive = std::any_of(children.begin(), children.end(), is_productive);
  } else if (n.kind == Kind::kRepeat) {
    productive = n.b == 0 || is_productive(n.a);
  } else if (n.kind == Kind::kRule) {
    nullable = is_nullable(g.rule(n));
    productive = is_productive(g.rule(n));
  }
  const bool news = nullable != n.nullable || productive != n.productive;
  n.nullable = nullable;
  n.productive = productive;
  return news;
}

// One pass settles all that rules do not delay; what they do goes from child to parents. Both properties only ever turn
// true, so this ends.
void GrammarBuilder::settle_all() {
  Grammar& g = *grammar_;
  const auto index = [](NodeId id) { return static_cast<size_t>(id); };
  std::vector<std::vector<NodeId>> parents(g.nodes_.size());
  for (NodeId id = 0; id < static_cast<NodeId>(g.nodes_.size()); ++id) {
    GrammarNode& n = g.nodes_[index(id)];
    settle(n);
    if (n.kind == Kind::kSeq || n.kind == Kind::kAlt) {
      for (const NodeId child : g.children(n)) parents[index(child)].push_back(id);
    } else if (n.kind == Kind::kRepeat) {
      parents[index(n.a)].push_back(id);
    } else if (n.kind == Kind::kRule) {
      parents[index(g.rule(n))].push_back(id);
    }
  }
  std::vector<NodeId> work;
  for (NodeId id = 0; id < static_cast<NodeId>(g.nodes_.size()); ++id) {
    if (settle(g.nodes_[index(id)])) work.push_back(id);
  }
  while (!work.empty()) {
    const NodeId id = work.back();
    work.pop_back();
    for (const NodeId parent : parents[index(id)]) {
      if (settle(g.nodes_[index(parent)])) work.push_back(parent);
    }
  }
  for (const GrammarNode& n : g.nodes_) CARPOOL_CHECK(n.kind != Kind::kRepeat || !g.node(n.a).nullable);
}

std::shared_ptr<const Grammar> GrammarBuilder::finish(NodeId root) {
  grammar_->root_ = root;
  grammar_->nodes_.shrink_to_fit();
  grammar_->lists_.shrink_to_fit();
  settle_all();
  if (!grammar_->node(root).productive) throw GrammarError("", false, "no text can satisfy it");
  return std::move(grammar_);
}

}  // namespace carpool
