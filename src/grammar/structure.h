// What a caller can ask of a text's structure, and the grammar of it.
//
// Owns StructureSpec, plain data that parameters and options are read into, and its compilation within the limits of
// grammar.h: at most 64 KiB of schema, expression or choices, 262,144 nodes, and no states that many texts share.
// Compiling takes milliseconds, at most a second for what is hostile, and belongs on a worker thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/tagged_arguments.h"

namespace carpool {

// A value between fixed texts, such as the frame of a tool call.
struct FramedSchema {
  std::string before, after;  // literally; where they are special tokens of the vocabulary, these may be written
  json::value schema;
  std::string path = {};                       // of the schema, in errors
  std::optional<TaggedArguments> tagged = {};  // the members of an object between tags, instead of JSON
  bool lenient = false;  // where the schema has what the grammar lacks, any JSON object, or any text between tags
};

// What a model may write before a structure: `open`, any text that contains none of `stops`, `close`. A reader of the
// text must not see an end of the reasoning elsewhere, so `stops` are all texts that it would take for one.
struct FreeReasoning {
  std::string open = {}, close = {};
  std::vector<std::string> stops = {};  // at least one
  bool lines = false;                   // up to two line breaks may follow `close`
  // The structure may come at once. Where it is an expression or choices that may begin with a blank or as `open` does,
  // it never does: one could not tell them apart.
  bool optional = false;
  bool unclosed = false;  // the structure may follow without `close`; it begins with one of `stops`
};

struct StructureSpec {
  enum class Kind {
    kJsonObject,  // any JSON object
    kJsonSchema,  // a JSON value that `schema` accepts
    kRegex,       // a text that `regex` matches as a whole
    kChoice,      // one of `choices`
    kFrames,      // `prefix`, then from `min` to `max` of `frames` with `between` between two, then `suffix`
  };
  Kind kind = Kind::kJsonObject;
  std::string path;  // of the field that asks for it, in errors
  json::value schema = nullptr;
  std::string regex = {};
  std::vector<std::string> choices = {};
  std::string prefix = {}, between = {}, suffix = {};
  std::vector<FramedSchema> frames = {};
  int min = 1, max = 1;  // kNoLimit: any number
  std::optional<FreeReasoning> reasoning = {};
  std::vector<std::string> openings = {};  // one of these stands before the structure; none = nothing does
  // Parts of all texts above, but for schemas, expressions and choices, that may be special tokens of the vocabulary.
  std::vector<std::string> tags = {};

  std::string key() const;  // equal for equal grammars
};

// Throws GrammarError.
std::shared_ptr<const Grammar> make_grammar(const StructureSpec& spec);

}  // namespace carpool
