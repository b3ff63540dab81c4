// See structure.h.
#include "grammar/structure.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/regex.h"
#include "text/utf8.h"

namespace carpool {
namespace {

NodeId choice_node(GrammarBuilder& b, const StructureSpec& spec) {
  size_t bytes = 0;
  for (const std::string& choice : spec.choices) bytes += choice.size();
  if (spec.choices.empty()) throw GrammarError(spec.path, false, fmt::format("{} has no choices", spec.path));
  if (bytes > kMaxGrammarBytes || spec.choices.size() > kMaxGrammarBytes) {
    throw GrammarError(spec.path, false, fmt::format("{} has more than {} bytes", spec.path, kMaxGrammarBytes));
  }
  for (const std::string& choice : spec.choices) {
    if (choice.empty() || !is_valid_utf8(choice)) {
      throw GrammarError(spec.path, false, fmt::format("a choice of {} is empty or not UTF-8", spec.path));
    }
  }
  return b.one_of(spec.choices);
}

// A text in which the spec's tags may be tokens of their own.
NodeId spelled(GrammarBuilder& b, const StructureSpec& spec, std::string_view text) {
  if (spec.tags.empty() || text.empty()) return b.special(text);
  std::vector<NodeId> parts;
  while (!text.empty()) {
    size_t first = std::string_view::npos, size = 0;
    for (const std::string& tag : spec.tags) {
      const size_t at = text.find(tag);
      if (at < first) first = at, size = tag.size();
    }
    if (first > 0) parts.push_back(b.literal(text.substr(0, first)));
    if (size > 0) parts.push_back(b.special(text.substr(first, size)));
    text.remove_prefix(std::min(text.size(), first == std::string_view::npos ? first : first + size));
  }
  return b.seq(parts);
}

NodeId framed_value(GrammarBuilder& b, const FramedSchema& frame, const std::string& path) {
  if (frame.tagged) return tagged_arguments_node(b, frame.schema, *frame.tagged, frame.lenient, path);
  try {
    return json_schema_node(b, frame.schema, path);
  } catch (const GrammarError&) {
    if (!frame.lenient) throw;
  }
  return json_object_node(b);
}

NodeId frames_node(GrammarBuilder& b, const StructureSpec& spec) {
  std::vector<NodeId> options;
  for (const FramedSchema& frame : spec.frames) {
    const NodeId value = framed_value(b, frame, frame.path.empty() ? spec.path : frame.path);
    options.push_back(b.seq({spelled(b, spec, frame.before), value, spelled(b, spec, frame.after)}));
  }
  const NodeId one = b.alt(options);
  const bool open = spec.max == kNoLimit;
  const NodeId more = b.repeat(b.seq({spelled(b, spec, spec.between), one}), std::max(spec.min - 1, 0),
                               open ? kNoLimit : std::max(spec.max - 1, 0));
  const NodeId some = b.seq({one, more});
  return b.seq({spelled(b, spec, spec.prefix), spec.min == 0 ? b.optional(some) : some, spelled(b, spec, spec.suffix)});
}

NodeId node_of(GrammarBuilder& b, const StructureSpec& spec) {
  switch (spec.kind) {
    case StructureSpec::Kind::kJsonObject:
      return json_object_node(b);
    case StructureSpec::Kind::kJsonSchema:
      return json_schema_node(b, spec.schema, spec.path);
    case StructureSpec::Kind::kRegex:
      return regex_node(b, spec.regex, spec.path);
    case StructureSpec::Kind::kChoice:
      return choice_node(b, spec);
    case StructureSpec::Kind::kFrames:
      return frames_node(b, spec);
  }
  return b.fail();
}

// Whether a text of the structure may begin so that a reader could take it for reasoning.
bool begins_like_reasoning(const StructureSpec& spec) {
  using Kind = StructureSpec::Kind;
  if ((spec.kind != Kind::kRegex && spec.kind != Kind::kChoice) || !spec.openings.empty()) return false;
  StructureSpec alone = spec;
  alone.reasoning.reset();
  const std::shared_ptr<const Grammar> grammar = make_grammar(alone);
  Matcher matcher(*grammar);
  const std::string firsts = " \t\r\n" + spec.reasoning->open.substr(0, 1);
  return std::any_of(firsts.begin(), firsts.end(),
                     [&](char c) { return matcher.step(matcher.start(), static_cast<unsigned char>(c)) >= 0; });
}

NodeId behind_reasoning(GrammarBuilder& b, const StructureSpec& spec, NodeId root) {
  const FreeReasoning& free = *spec.reasoning;
  const NodeId lines = free.lines ? b.repeat(b.literal("\n"), 0, 2) : b.empty();
  const NodeId close = b.seq({spelled(b, spec, free.close), lines});
  const NodeId reasoned =
      b.seq({spelled(b, spec, free.open), b.text_without(free.stops), free.unclosed ? b.optional(close) : close, root});
  return free.optional && !begins_like_reasoning(spec) ? b.alt({root, reasoned}) : reasoned;
}

}  // namespace

std::string StructureSpec::key() const {
  json::array list;
  for (const FramedSchema& f : frames) {
    const TaggedArguments tagged = f.tagged.value_or(TaggedArguments{});
    list.push_back({f.before, f.after, f.schema, tagged.key_open, tagged.value_open, tagged.value_close, f.lenient});
  }
  json::array free;
  if (reasoning) {
    free = {reasoning->open,  reasoning->close,    json::array(reasoning->stops.begin(), reasoning->stops.end()),
            reasoning->lines, reasoning->optional, reasoning->unclosed};
  }
  const json::array all{static_cast<int>(kind),
                        schema,
                        regex,
                        json::array(choices.begin(), choices.end()),
                        prefix,
                        between,
                        suffix,
                        std::move(list),
                        min,
                        max,
                        std::move(free),
                        json::array(openings.begin(), openings.end()),
                        json::array(tags.begin(), tags.end())};
  return json::serialize(all);
}

std::shared_ptr<const Grammar> make_grammar(const StructureSpec& spec) {
  try {
    GrammarBuilder builder;
    NodeId root = node_of(builder, spec);
    if (!spec.openings.empty()) {
      std::vector<NodeId> openings;
      for (const std::string& opening : spec.openings) openings.push_back(spelled(builder, spec, opening));
      root = builder.seq({builder.alt(openings), root});
    }
    if (spec.reasoning) root = behind_reasoning(builder, spec, root);
    std::shared_ptr<const Grammar> grammar = builder.finish(root);
    if (!can_be_matched_within_limits(*grammar)) {
      throw GrammarError("", false, "too many of its texts must be told apart at once: make it less ambiguous");
    }
    return grammar;
  } catch (const GrammarError& error) {
    if (!error.path().empty()) throw;
    throw GrammarError(spec.path, error.unsupported(), fmt::format("{}: {}", spec.path, error.what()));
  }
}

}  // namespace carpool
