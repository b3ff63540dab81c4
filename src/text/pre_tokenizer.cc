// Loading and running the steps; see pre_tokenizer.h.
#include "text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

namespace carpool {
namespace {

constexpr int kMaxDepth = 8;

SplitBehavior parse_behavior(const JsonObject& object) {
  const std::string name = object.string("behavior");
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  object.fail("behavior", fmt::format("unknown behavior \"{}\"", escape(name)));
}

SplitRegex parse_pattern(const JsonObject& object) {
  const JsonObject pattern = object.object("pattern");
  const std::string path = pattern.where() + ": ";
  if (pattern.has("Regex")) return SplitRegex::from_pattern(pattern.string("Regex"), path + "\"Regex\"");
  if (pattern.has("String")) return SplitRegex::from_literal(pattern.string("String"), path + "\"String\"");
  object.fail("pattern", "has neither \"Regex\" nor \"String\"");
}

}  // namespace

PreTokenizer PreTokenizer::load(const JsonObject& root) {
  PreTokenizer result;
  if (root.has("pre_tokenizer")) result.add(root.object("pre_tokenizer"), 0);
  return result;
}

void PreTokenizer::add(const JsonObject& object, int depth) {
  const std::string type = object.string("type");
  if (byte_level_) object.fail("type", fmt::format("\"{}\" after ByteLevel is not supported", escape(type)));
  if (type == "Sequence") {
    if (depth == kMaxDepth) object.fail("type", fmt::format("Sequence nested deeper than {} levels", kMaxDepth));
    const json::array& list = object.array("pretokenizers");
    for (size_t i = 0; i < list.size(); ++i) {
      add(JsonObject(list[i], fmt::format("{}: \"pretokenizers\"[{}]", object.where(), i)), depth + 1);
    }
  } else if (type == "Split") {
    add_split(parse_pattern(object), parse_behavior(object), object.boolean_or("invert", false));
  } else if (type == "Digits") {
    const bool individual = object.boolean_or("individual_digits", false);
    add_split(SplitRegex::from_pattern("\\p{N}", object.where()),
              individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (object.boolean_or("add_prefix_space", true)) steps_.push_back({Step::Kind::kPrefixSpace, {}});
    if (object.boolean_or("use_regex", true)) {
      add_split(SplitRegex::from_pattern(kGpt2Split, object.where()), SplitBehavior::kIsolated, false);
    }
  } else if (type == "Metaspace") {
    add_metaspace(object);
  } else {
    object.fail("type", fmt::format("pre-tokenizer \"{}\" is not supported", escape(type)));
  }
}

void PreTokenizer::add_metaspace(const JsonObject& object) {
  Step step{Step::Kind::kMetaspace, {}};
  step.space = object.string("replacement");
  if (step.space.empty()) object.fail("replacement", "is empty");
  // Older files say only whether there is a prefix.
  const std::string scheme = object.has("prepend_scheme")                  ? object.string("prepend_scheme")
                             : object.boolean_or("add_prefix_space", true) ? "always"
                                                                           : "never";
  if (scheme == "always") {
    step.prefix = PrefixScheme::kAlways;
  } else if (scheme == "first") {
    step.prefix = PrefixScheme::kFirst;
  } else if (scheme != "never") {
    object.fail("prepend_scheme", fmt::format("unknown scheme \"{}\"", escape(scheme)));
  }
  const SplitRegex at_space = SplitRegex::from_literal(step.space, object.where());
  steps_.push_back(std::move(step));
  if (object.boolean_or("split", true)) add_split(at_space, SplitBehavior::kMergedWithNext, false);
}

void PreTokenizer::add_split(SplitRegex regex, SplitBehavior behavior, bool invert) {
  Step step{Step::Kind::kSplit, {}, behavior, invert};
  step.regex.push_back(std::move(regex));
  steps_.push_back(std::move(step));
}

// Merging needs one pass over the pieces, from the side they merge towards. Where two matches are adjacent only
// the one next to a non-match merges.
void PreTokenizer::apply_behavior(SplitBehavior behavior, std::vector<Piece>& pieces) {
  std::vector<Piece> out;
  bool previous = false;  // was the neighbour already seen a match?
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      std::erase_if(pieces, [](const Piece& p) { return p.match; });
      return;
    case SplitBehavior::kContiguous:
      for (const Piece& p : pieces) {
        if (!out.empty() && p.match == previous) {
          out.back().end = p.end;
        } else {
          out.push_back(p);
        }
        previous = p.match;
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Piece& p : pieces) {
        if (p.match && !previous && !out.empty()) {
          out.back().end = p.end;
        } else {
          out.push_back(p);
        }
        previous = p.match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto p = pieces.rbegin(); p != pieces.rend(); ++p) {
        if (p->match && !previous && !out.empty()) {
          out.back().begin = p->begin;
        } else {
          out.push_back(*p);
        }
        previous = p->match;
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  pieces = std::move(out);
}

void PreTokenizer::run_split(const Step& step, const std::vector<std::string_view>& in,
                             std::vector<std::string_view>& out) {
  SplitRegex::Search search(step.regex.front());
  std::vector<Piece> pieces;
  for (std::string_view text : in) {
    pieces.clear();
    search.start(text);
    size_t done = 0, begin = 0, end = 0;
    while (search.next(begin, end)) {
      if (done != begin) pieces.push_back({done, begin, step.invert});
      pieces.push_back({begin, end, !step.invert});
      done = end;
    }
    if (done != text.size()) pieces.push_back({done, text.size(), step.invert});
    apply_behavior(step.behavior, pieces);
    for (const Piece& p : pieces) {
      if (p.begin != p.end) out.push_back(text.substr(p.begin, p.end - p.begin));
    }
  }
}

// `piece` with its spaces written as the step says, and one more in front where that is called for.
std::string_view PreTokenizer::write_spaces(const Step& step, std::string_view piece, bool at_start,
                                            std::deque<std::string>& storage) {
  const bool wants_prefix = step.prefix == PrefixScheme::kAlways || (step.prefix == PrefixScheme::kFirst && at_start);
  std::string out;
  if (wants_prefix && !piece.starts_with(step.space) && !piece.starts_with(' ')) out = step.space;
  if (out.empty() && piece.find(' ') == std::string_view::npos) return piece;
  for (const char c : piece) {
    if (c == ' ') {
      out += step.space;
    } else {
      out += c;
    }
  }
  return storage.emplace_back(std::move(out));
}

void PreTokenizer::split(std::string_view text, bool at_start, std::vector<std::string_view>& words,
                         std::deque<std::string>& storage) const {
  if (text.empty()) return;
  std::vector<std::string_view> pieces{text}, next;
  for (const Step& step : steps_) {
    next.clear();
    switch (step.kind) {
      case Step::Kind::kPrefixSpace:
        for (std::string_view piece : pieces) {
          next.push_back(piece.starts_with(' ') ? piece : storage.emplace_back(" ").append(piece));
        }
        break;
      case Step::Kind::kMetaspace:
        for (std::string_view piece : pieces) {
          next.push_back(write_spaces(step, piece, at_start && piece.data() == text.data(), storage));
        }
        break;
      case Step::Kind::kSplit:
        run_split(step, pieces, next);
        break;
    }
    pieces.swap(next);
  }
  words.insert(words.end(), pieces.begin(), pieces.end());
}

}  // namespace carpool
