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

NodeId frames_node(GrammarBuilder& b, const StructureSpec& spec) {
  std::vector<NodeId> options;
  for (const FramedSchema& frame : spec.frames) {
    const NodeId value = json_schema_node(b, frame.schema, frame.path.empty() ? spec.path : frame.path);
    options.push_back(b.seq({b.special(frame.before), value, b.special(frame.after)}));
  }
  const NodeId one = b.alt(options);
  const bool open = spec.max == kNoLimit;
  const NodeId more = b.repeat(b.seq({b.special(spec.between), one}), std::max(spec.min - 1, 0),
                               open ? kNoLimit : std::max(spec.max - 1, 0));
  const NodeId some = b.seq({one, more});
  return b.seq({b.special(spec.prefix), spec.min == 0 ? b.optional(some) : some, b.special(spec.suffix)});
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

}  // namespace

std::string StructureSpec::key() const {
  json::array list;
  for (const FramedSchema& f : frames) list.push_back(json::array{f.before, f.after, f.schema});
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
                        reasoning_end};
  return json::serialize(all);
}

std::shared_ptr<const Grammar> make_grammar(const StructureSpec& spec) {
  try {
    GrammarBuilder builder;
    NodeId root = node_of(builder, spec);
    if (!spec.reasoning_end.empty()) {
      const NodeId lines = builder.repeat(builder.literal("\n"), 0, 2);
      root = builder.seq({builder.text_without(spec.reasoning_end), builder.special(spec.reasoning_end), lines, root});
    }
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
