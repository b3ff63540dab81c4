// The syntax tree of a template: two node types, each with a kind and generic children.
//
// Built by parser.cc, walked by interpreter.cc. Every node knows its line, for messages. Trees are at most
// kMaxDepth high, so walking and destroying them recursively is safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace carpool::jinja {

enum class ExpressionKind {
  kLiteral,    // value
  kName,       // name
  kList,       // children: items; name = "tuple" or empty
  kDict,       // children: key, value, key, value ...
  kAttribute,  // children: object; name
  kIndex,      // children: object, index
  kSlice,      // children: object, begin, end, step (each may be null)
  kCall,       // name = function or macro, or kMethod's; children: arguments; keywords
  kMethod,     // children: object, arguments; name; keywords
  kFilter,     // children: input, arguments; name; keywords
  kTest,       // children: input, arguments; name
  kNot,        // children: one
  kNegate,     // children: one
  kBinary,     // children: left, right; name = operator
  kCompare,    // children: operands; names in `operators`
  kAnd,        // children: left, right
  kOr,         // children: left, right
  kCondition,  // children: value, condition, otherwise (may be null)
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  ExpressionKind kind;
  int line;
  int height = 1;
  Value value;
  std::string name;
  std::vector<std::string> operators;
  std::vector<ExpressionPtr> children;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
};

enum class StatementKind {
  kText,      // text
  kOutput,    // expressions: what to print
  kIf,        // expressions: conditions; bodies: one each, and one more for else
  kFor,       // names: targets; expressions: iterable, filter (may be null); bodies: loop, else; flag: uses `loop`
  kSet,       // names: targets, or a namespace and its attribute if flag; expressions: value
  kSetBlock,  // names: target; bodies: one
  kMacro,     // names: the macro, then its parameters; expressions: defaults (may be null); bodies: one
  kBlock,     // bodies: one (a block that only marks text, such as generation)
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind;
  int line;
  Text text;
  bool flag = false;
  std::vector<std::string> names;
  std::vector<ExpressionPtr> expressions;
  std::vector<std::vector<Statement>> bodies;
};

}  // namespace carpool::jinja
