// What a text may be, byte by byte: the one form that schemas, regular expressions and choices become.
//
// Owns Grammar, an immutable graph of nodes over bytes (a recursive transition network: sequences, alternatives,
// counted repetitions, rules that may call themselves), and GrammarBuilder, which makes it within fixed limits.
// Repetitions are counted, not unrolled, and lists of words share their beginnings, so a grammar is about as large as
// what describes it. Matching is constraint.h; json_schema.h and regex.h build. Read next: constraint.h.
#pragma once

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace carpool {

// A grammar that cannot be made: `path` names the place in what the caller gave ("response_format.json_schema.schema
// .properties.age"), `unsupported` tells what we lack from what is wrong in itself.
class GrammarError : public Error {
 public:
  GrammarError(std::string path, bool unsupported, const std::string& sentence)
      : Error(ErrorKind::kUsage, sentence), path_(std::move(path)), unsupported_(unsupported) {}
  const std::string& path() const { return path_; }
  bool unsupported() const { return unsupported_; }

 private:
  std::string path_;
  bool unsupported_;
};

class CharSet;  // char_set.h
enum class CharForm { kRaw, kJson };
using NodeId = int32_t;
using ByteSet = std::bitset<256>;

struct GrammarNode {
  enum class Kind : uint8_t {
    kEmpty,    // the empty text
    kFail,     // no text
    kBytes,    // one byte of set a
    kLiteral,  // b bytes of the text pool from a on, b > 0
    kSeq,      // the b nodes of the list pool from a on, one after the other
    kAlt,      // any of them
    kRepeat,   // node a, b to c times; c = -1: no bound. It never matches the empty text
    kRule,     // the node that rule a was defined as
  };
  Kind kind = Kind::kFail;
  bool nullable = false;    // may be the empty text
  bool productive = false;  // some finite text matches
  int32_t a = 0, b = 0, c = 0;
};

// Safe to share between threads.
class Grammar {
 public:
  NodeId root() const { return root_; }
  const GrammarNode& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  std::span<const NodeId> children(const GrammarNode& n) const {
    return std::span(lists_).subspan(static_cast<size_t>(n.a), static_cast<size_t>(n.b));
  }
  const ByteSet& set(const GrammarNode& n) const { return sets_[static_cast<size_t>(n.a)]; }
  unsigned char byte(const GrammarNode& literal, int at) const {
    return static_cast<unsigned char>(text_[static_cast<size_t>(literal.a + at)]);
  }
  NodeId rule(const GrammarNode& n) const { return rules_[static_cast<size_t>(n.a)]; }
  // Special tokens, by their content, that may be written where their content matches.
  const std::vector<std::string>& spoken_specials() const { return specials_; }
  size_t size() const { return nodes_.size(); }
  size_t bytes() const;  // of memory, about

 private:
  friend class GrammarBuilder;
  std::vector<GrammarNode> nodes_;
  std::vector<NodeId> lists_, rules_;
  std::vector<ByteSet> sets_;
  std::string text_;
  std::vector<std::string> specials_;
  NodeId root_ = 0;
};

inline constexpr int kNoLimit = -1;
inline constexpr int kMaxRepetitions = 65535;  // of one repetition, and of nested ones multiplied
inline constexpr size_t kMaxNodes = 1 << 18;   // of a grammar
inline constexpr int kMaxGrammarDepth = 128;   // of what it is made from
inline constexpr size_t kMaxGrammarBytes = 64 << 10;

// Nodes are made bottom up and may be used more than once. Not thread-safe. Throws GrammarError (path "", to be filled
// in by who knows it) when a limit is passed.
class GrammarBuilder {
 public:
  GrammarBuilder();

  NodeId empty() const { return 0; }
  NodeId fail() const { return 1; }
  NodeId bytes(const ByteSet& set);  // equal sets are one node
  NodeId bytes(unsigned char first, unsigned char last);
  NodeId literal(std::string_view text);
  // A literal that may be spelled with the special token of this very content where the vocabulary has one.
  NodeId special(std::string_view text);
  NodeId seq(std::span<const NodeId> parts);
  NodeId seq(std::initializer_list<NodeId> parts) { return seq(std::span(parts.begin(), parts.size())); }
  NodeId alt(std::span<const NodeId> options);
  NodeId alt(std::initializer_list<NodeId> options) { return alt(std::span(options.begin(), options.size())); }
  NodeId one_of(std::vector<std::string> texts);  // as a tree of their common beginnings
  // 0 <= min <= max, or max = kNoLimit. Of a node that may be empty: the same language, told without empty rounds.
  NodeId repeat(NodeId node, int min, int max);
  NodeId optional(NodeId node) { return alt({node, empty()}); }

  // A rule may be used before it is defined, and in its own definition. Not within repeat() when it may be empty.
  int new_rule();
  NodeId rule(int rule);
  void define(int rule, NodeId node);

  // Any UTF-8 text that contains none of `stops` (UTF-8, at least one, none empty): what stands before a closing tag.
  NodeId text_without(std::span<const std::string> stops);
  // The same of characters of `chars`, among them all of the stops, and of texts of `more`, which hold no character
  // that a stop begins with: the contents of a JSON string, with its escapes.
  NodeId text_without(std::span<const std::string> stops, const CharSet& chars, NodeId more);

  // Throws GrammarError when no text matches. The builder is used up.
  std::shared_ptr<const Grammar> finish(NodeId root);

 private:
  NodeId add(GrammarNode node);
  NodeId list(GrammarNode::Kind kind, std::span<const NodeId> nodes, bool nullable);
  NodeId tree(std::span<const std::string> sorted, size_t depth);
  NodeId nonempty(NodeId id);
  bool settle(GrammarNode& node);
  void settle_all();  // nullable and productive of all nodes, rules included

  friend NodeId char_node(GrammarBuilder& builder, const CharSet& set, CharForm form);

  std::shared_ptr<Grammar> grammar_;
  std::vector<NodeId> nonempty_;  // by node; -1 where not made yet
  std::unordered_map<ByteSet, NodeId> byte_sets_;
  std::map<std::pair<CharForm, std::vector<std::pair<uint32_t, uint32_t>>>, NodeId> char_sets_;  // char_set.h
};

}  // namespace carpool
