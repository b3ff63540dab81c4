// Recursive descent with Jinja's precedence: or, and, not, comparison, + -, ~, * / // %, sign, filters and tests,
// postfix. See parser.h.
#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"
#include "text/utf8.h"

namespace carpool::jinja {
namespace {

using Kind = ExpressionKind;

constexpr size_t kMaxTemplateBytes = 1 << 20;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  std::vector<Statement> run() {
    std::vector<Statement> body = parse_body({});
    for (const auto& [name, line] : calls_) {
      if (!macros_.contains(name) && !is_function(name))
        fail_at(line, fmt::format("\"{}\" is not a function or macro", name));
    }
    return body;
  }

 private:
  // ---- tokens
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)]; }
  Token take() {
    const Token token = peek();
    if (pos_ + 1 < tokens_.size()) ++pos_;
    return token;
  }
  bool is(TokenKind kind, std::string_view text, size_t ahead = 0) const {
    return peek(ahead).kind == kind && peek(ahead).text == text;
  }
  bool accept(TokenKind kind, std::string_view text) {
    if (!is(kind, text)) return false;
    take();
    return true;
  }
  bool accept_operator(std::string_view text) { return accept(TokenKind::kOperator, text); }
  bool accept_word(std::string_view text) { return accept(TokenKind::kName, text); }
  void expect_operator(std::string_view text) {
    if (!accept_operator(text)) fail_at(peek().line, fmt::format("expected \"{}\" before {}", text, describe(peek())));
  }
  void expect_word(std::string_view text) {
    if (!accept_word(text)) fail_at(peek().line, fmt::format("expected \"{}\" before {}", text, describe(peek())));
  }
  void expect_block_end() {
    if (peek().kind != TokenKind::kBlockEnd)
      fail_at(peek().line, fmt::format("unexpected {} in a tag", describe(peek())));
    take();
  }
  std::string expect_name() {
    static const std::set<std::string_view> kReserved = {"true", "false", "none", "True", "False", "None", "and",
                                                         "or",   "not",   "in",   "is",   "if",    "else"};
    if (peek().kind != TokenKind::kName || kReserved.contains(peek().text)) {
      fail_at(peek().line, fmt::format("expected a name before {}", describe(peek())));
    }
    return take().text;
  }
  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kBlockEnd:
      case TokenKind::kOutputEnd:
        return "the end of the tag";
      case TokenKind::kString:
        return "a string";
      default:
        return fmt::format("\"{}\"", escape(token.text, 40));
    }
  }

  // Guards every recursion of the parser, and so the depth of the tree it builds.
  struct Nesting {
    explicit Nesting(Parser& p) : parser(p) {
      if (++parser.depth_ > kMaxDepth)
        fail_at(parser.peek().line, fmt::format("nested deeper than {} levels", kMaxDepth));
    }
    ~Nesting() { --parser.depth_; }
    Parser& parser;
  };

  // ---- statements
  // Parses up to a tag that begins with one of `ends` (left to the caller, its "{%" taken) or the end of the template.
  std::vector<Statement> parse_body(const std::vector<std::string_view>& ends) {
    const Nesting nesting(*this);
    std::vector<Statement> body;
    while (true) {
      const Token token = take();
      switch (token.kind) {
        case TokenKind::kText: {
          Statement& text = body.emplace_back(Statement{StatementKind::kText, token.line, {}, false, {}, {}, {}});
          text.text = Text(token.text, true);
          break;
        }
        case TokenKind::kOutputBegin: {
          Statement& output = body.emplace_back(Statement{StatementKind::kOutput, token.line, {}, false, {}, {}, {}});
          output.expressions.push_back(parse_expression());
          if (take().kind != TokenKind::kOutputEnd) fail_at(token.line, "an output tag holds more than one expression");
          break;
        }
        case TokenKind::kBlockBegin:
          if (std::find(ends.begin(), ends.end(), peek().text) != ends.end()) return body;
          body.push_back(parse_statement());
          break;
        default:
          if (!ends.empty()) fail_at(token.line, fmt::format("\"{}\" is missing", ends.back()));
          return body;
      }
    }
  }

  Statement parse_statement() {
    const Token word = take();
    Statement s{StatementKind::kText, word.line, {}, false, {}, {}, {}};
    if (word.text == "if") {
      parse_if(s);
    } else if (word.text == "for") {
      parse_for(s);
    } else if (word.text == "set") {
      parse_set(s);
    } else if (word.text == "macro") {
      parse_macro(s);
    } else if (word.text == "generation") {
      s.kind = StatementKind::kBlock;
      parse_block(s, "endgeneration");
    } else if (word.text == "break" || word.text == "continue") {
      if (loops_ == 0) fail_at(word.line, fmt::format("\"{}\" outside a loop", word.text));
      s.kind = word.text == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      expect_block_end();
    } else {
      fail_at(word.line, fmt::format("the tag {} is not supported here", describe(word)));
    }
    return s;
  }

  // The rest of a tag, a body, and the tag that ends it.
  void parse_block(Statement& s, std::string_view end) {
    expect_block_end();
    s.bodies.push_back(parse_body({end}));
    expect_word(end);
    expect_block_end();
  }

  void parse_if(Statement& s) {
    s.kind = StatementKind::kIf;
    s.expressions.push_back(parse_expression());
    while (true) {
      expect_block_end();
      const bool is_else = s.bodies.size() == s.expressions.size();
      s.bodies.push_back(is_else ? parse_body({"endif"}) : parse_body({"elif", "else", "endif"}));
      if (accept_word("elif")) {
        s.expressions.push_back(parse_expression());
      } else if (!accept_word("else")) {
        expect_word("endif");
        return expect_block_end();
      }
    }
  }

  void parse_for(Statement& s) {
    s.kind = StatementKind::kFor;
    const bool parens = accept_operator("(");
    do s.names.push_back(expect_name());
    while (accept_operator(","));
    if (parens) expect_operator(")");
    expect_word("in");
    s.expressions.push_back(parse_or());  // a bare `if` here is the filter, not a conditional expression
    s.expressions.push_back(accept_word("if") ? parse_expression() : nullptr);
    if (is(TokenKind::kName, "recursive")) fail_at(s.line, "recursive loops are not supported");
    const bool outer = uses_loop_;
    uses_loop_ = false;
    ++loops_;
    expect_block_end();
    s.bodies.push_back(parse_body({"else", "endfor"}));
    --loops_;
    s.flag = uses_loop_;
    uses_loop_ = outer;
    s.bodies.emplace_back();
    if (accept_word("else")) {
      expect_block_end();
      s.bodies.back() = parse_body({"endfor"});
    }
    expect_word("endfor");
    expect_block_end();
  }

  void parse_set(Statement& s) {
    s.names.push_back(expect_name());
    if (accept_operator(".")) {
      s.names.push_back(expect_name());
      s.flag = true;
    } else {
      while (accept_operator(",")) s.names.push_back(expect_name());
    }
    if (accept_operator("=")) {
      s.kind = StatementKind::kSet;
      s.expressions.push_back(parse_tuple());
      return expect_block_end();
    }
    if (s.flag || s.names.size() != 1) fail_at(s.line, "a block can only set one name");
    s.kind = StatementKind::kSetBlock;
    parse_block(s, "endset");
  }

  void parse_macro(Statement& s) {
    if (loops_ > 0 || in_macro_) fail_at(s.line, "a macro inside a loop or another macro is not supported");
    s.kind = StatementKind::kMacro;
    s.names.push_back(expect_name());
    macros_.insert(s.names[0]);
    expect_operator("(");
    while (!accept_operator(")")) {
      if (s.names.size() > 1) expect_operator(",");
      if (std::find(s.names.begin() + 1, s.names.end(), peek().text) != s.names.end())
        fail_at(s.line, "a parameter is named twice");
      s.names.push_back(expect_name());
      s.expressions.push_back(accept_operator("=") ? parse_expression() : nullptr);
    }
    in_macro_ = true;
    parse_block(s, "endmacro");
    in_macro_ = false;
  }

  // ---- expressions
  ExpressionPtr make(Kind kind, int line, std::string name = {}) {
    auto e = std::make_unique<Expression>();
    e->kind = kind, e->line = line, e->name = std::move(name);
    return e;
  }
  void adopt(Expression& parent, ExpressionPtr child) {
    if (child) {
      parent.height = std::max(parent.height, child->height + 1);
      if (parent.height > kMaxDepth)
        fail_at(child->line, fmt::format("an expression is nested deeper than {} levels", kMaxDepth));
    }
    parent.children.push_back(std::move(child));
  }
  template <class... Children>
  ExpressionPtr make_with(Kind kind, int line, std::string name, Children... children) {
    ExpressionPtr e = make(kind, line, std::move(name));
    (adopt(*e, std::move(children)), ...);
    return e;
  }

  // An expression, or several separated by commas, which make a list.
  ExpressionPtr parse_tuple() {
    const int line = peek().line;
    ExpressionPtr first = parse_expression();
    if (!is(TokenKind::kOperator, ",")) return first;
    ExpressionPtr list = make_with(Kind::kList, line, "tuple", std::move(first));
    while (accept_operator(",")) {
      if (peek().kind == TokenKind::kBlockEnd || is(TokenKind::kOperator, ")")) break;
      adopt(*list, parse_expression());
    }
    return list;
  }

  ExpressionPtr parse_expression() {
    const Nesting nesting(*this);
    const int line = peek().line;
    ExpressionPtr value = parse_or();
    while (accept_word("if")) {
      ExpressionPtr condition = parse_or();
      ExpressionPtr otherwise = accept_word("else") ? parse_expression() : nullptr;
      value = make_with(Kind::kCondition, line, "", std::move(value), std::move(condition), std::move(otherwise));
    }
    return value;
  }

  ExpressionPtr parse_or() {
    ExpressionPtr left = parse_and();
    while (is(TokenKind::kName, "or")) {
      const int line = take().line;
      ExpressionPtr right = parse_and();
      left = make_with(Kind::kOr, line, "", std::move(left), std::move(right));
    }
    return left;
  }

  ExpressionPtr parse_and() {
    ExpressionPtr left = parse_not();
    while (is(TokenKind::kName, "and")) {
      const int line = take().line;
      ExpressionPtr right = parse_not();
      left = make_with(Kind::kAnd, line, "", std::move(left), std::move(right));
    }
    return left;
  }

  ExpressionPtr parse_not() {
    if (!is(TokenKind::kName, "not")) return parse_comparison();
    const Nesting nesting(*this);
    const int line = take().line;
    return make_with(Kind::kNot, line, "", parse_not());
  }

  ExpressionPtr parse_comparison() {
    static const std::set<std::string_view> kOperators = {"==", "!=", "<", "<=", ">", ">="};
    const int line = peek().line;
    ExpressionPtr first = parse_sum();
    ExpressionPtr compare;
    while (true) {
      std::string name;
      if (peek().kind == TokenKind::kOperator && kOperators.contains(peek().text)) {
        name = take().text;
      } else if (accept_word("in")) {
        name = "in";
      } else if (is(TokenKind::kName, "not") && is(TokenKind::kName, "in", 1)) {
        take(), take();
        name = "not in";
      } else {
        return compare ? std::move(compare) : std::move(first);
      }
      if (!compare) compare = make_with(Kind::kCompare, line, "", std::move(first));
      compare->operators.push_back(std::move(name));
      adopt(*compare, parse_sum());
    }
  }

  template <class Next>
  ExpressionPtr parse_binary(std::initializer_list<std::string_view> operators, const Next& next) {
    ExpressionPtr left = next();
    while (peek().kind == TokenKind::kOperator &&
           std::find(operators.begin(), operators.end(), peek().text) != operators.end()) {
      const Token op = take();
      ExpressionPtr right = next();
      left = make_with(Kind::kBinary, op.line, op.text, std::move(left), std::move(right));
    }
    return left;
  }
  ExpressionPtr parse_sum() {
    return parse_binary({"+", "-"}, [this] { return parse_concatenation(); });
  }
  ExpressionPtr parse_concatenation() {
    return parse_binary({"~"}, [this] { return parse_product(); });
  }
  ExpressionPtr parse_product() {
    return parse_binary({"*", "/", "//", "%"}, [this] { return parse_unary(true); });
  }

  ExpressionPtr parse_unary(bool with_filters) {
    const Nesting nesting(*this);
    const Token token = peek();
    ExpressionPtr e;
    if (accept_operator("-")) {
      e = make_with(Kind::kNegate, token.line, "", parse_unary(false));
    } else if (accept_operator("+")) {
      e = parse_unary(false);
    } else {
      e = parse_postfix(parse_primary());
    }
    if (is(TokenKind::kOperator, "**")) fail_at(token.line, "the operator ** is not supported");
    while (with_filters) {
      if (accept_operator("|")) {
        e = parse_filter(std::move(e));
      } else if (is(TokenKind::kName, "is")) {
        e = parse_test(std::move(e));
      } else {
        break;
      }
    }
    return e;
  }

  ExpressionPtr parse_filter(ExpressionPtr input) {
    const Token name = take();
    if (name.kind != TokenKind::kName || !is_filter(name.text))
      fail_at(name.line, fmt::format("the filter {} is not supported", describe(name)));
    ExpressionPtr e = make_with(Kind::kFilter, name.line, name.text, std::move(input));
    if (accept_operator("(")) parse_arguments(*e);
    return e;
  }

  ExpressionPtr parse_test(ExpressionPtr input) {
    take();
    const bool negated = accept_word("not");
    const Token name = take();
    if (name.kind != TokenKind::kName || !is_test(name.text)) {
      fail_at(name.line, fmt::format("the test {} is not supported", describe(name)));
    }
    ExpressionPtr e = make_with(Kind::kTest, name.line, name.text, std::move(input));
    if (accept_operator("(")) {
      parse_arguments(*e);
    } else if (test_takes_argument(name.text)) {
      adopt(*e, parse_postfix(parse_primary()));
    }
    if (!e->keywords.empty() || e->children.size() != (test_takes_argument(name.text) ? 2u : 1u)) {
      fail_at(name.line, fmt::format("the test \"{}\" has a wrong number of arguments", name.text));
    }
    return negated ? make_with(Kind::kNot, name.line, "", std::move(e)) : std::move(e);
  }

  // Behind "(": arguments, named ones last, and ")".
  void parse_arguments(Expression& call) {
    bool first = true;
    while (!accept_operator(")")) {
      if (!first) {
        expect_operator(",");
        if (accept_operator(")")) return;
      }
      first = false;
      if (peek().kind == TokenKind::kName && is(TokenKind::kOperator, "=", 1)) {
        const std::string name = take().text;
        take();
        call.keywords.emplace_back(name, parse_expression());
        call.height = std::max(call.height, call.keywords.back().second->height + 1);
        if (call.height > kMaxDepth)
          fail_at(call.line, fmt::format("an expression is nested deeper than {} levels", kMaxDepth));
      } else {
        if (!call.keywords.empty()) fail_at(call.line, "a positional argument follows a named one");
        adopt(call, parse_expression());
      }
    }
  }

  ExpressionPtr parse_postfix(ExpressionPtr e) {
    while (true) {
      const int line = peek().line;
      if (accept_operator(".")) {
        if (peek().kind == TokenKind::kInteger) {
          ExpressionPtr index = parse_primary();
          e = make_with(Kind::kIndex, line, "", std::move(e), std::move(index));
          continue;
        }
        if (peek().kind != TokenKind::kName) fail_at(line, "expected a name after \".\"");
        const std::string name = take().text;
        if (accept_operator("(")) {
          if (!is_method(name)) fail_at(line, fmt::format("the method \"{}\" is not supported", name));
          e = make_with(Kind::kMethod, line, name, std::move(e));
          parse_arguments(*e);
        } else {
          e = make_with(Kind::kAttribute, line, name, std::move(e));
        }
      } else if (accept_operator("[")) {
        e = parse_subscript(std::move(e), line);
      } else if (accept_operator("(")) {
        if (e->kind != Kind::kName) fail_at(line, "only functions, macros and methods can be called");
        calls_.emplace_back(e->name, line);
        ExpressionPtr call = make(Kind::kCall, line, e->name);
        parse_arguments(*call);
        e = std::move(call);
      } else {
        return e;
      }
    }
  }

  ExpressionPtr parse_subscript(ExpressionPtr object, int line) {
    const auto ends_part = [&] { return is(TokenKind::kOperator, ":") || is(TokenKind::kOperator, "]"); };
    ExpressionPtr parts[3];
    parts[0] = ends_part() ? nullptr : parse_tuple();
    if (!is(TokenKind::kOperator, ":")) {
      expect_operator("]");
      if (!parts[0]) fail_at(line, "an index is missing");
      return make_with(Kind::kIndex, line, "", std::move(object), std::move(parts[0]));
    }
    for (int i = 1; i < 3 && accept_operator(":"); ++i) parts[i] = ends_part() ? nullptr : parse_expression();
    expect_operator("]");
    return make_with(Kind::kSlice, line, "", std::move(object), std::move(parts[0]), std::move(parts[1]),
                     std::move(parts[2]));
  }

  ExpressionPtr parse_primary() {
    const Token token = take();
    switch (token.kind) {
      case TokenKind::kName:
        return parse_name(token);
      case TokenKind::kString: {
        std::string text = token.text;
        while (peek().kind == TokenKind::kString) text += take().text;
        return literal(token.line, Text(text, true));
      }
      case TokenKind::kInteger: {
        int64_t value = 0;
        const char* end = token.text.data() + token.text.size();
        if (std::from_chars(token.text.data(), end, value).ec != std::errc())
          fail_at(token.line, "an integer is too large");
        return literal(token.line, value);
      }
      case TokenKind::kFloat: {
        double value = 0;
        const char* end = token.text.data() + token.text.size();
        if (std::from_chars(token.text.data(), end, value).ec != std::errc())
          fail_at(token.line, "a number is too large");
        return literal(token.line, value);
      }
      case TokenKind::kOperator:
        if (token.text == "(") {
          if (accept_operator(")")) return make(Kind::kList, token.line, "tuple");
          ExpressionPtr inner = parse_tuple();
          expect_operator(")");
          return inner;
        }
        if (token.text == "[") return parse_list(token.line);
        if (token.text == "{") return parse_dict(token.line);
        break;
      default:
        break;
    }
    fail_at(token.line, fmt::format("expected an expression before {}", describe(token)));
  }

  ExpressionPtr parse_name(const Token& token) {
    const std::string& name = token.text;
    if (name == "true" || name == "True") return literal(token.line, true);
    if (name == "false" || name == "False") return literal(token.line, false);
    if (name == "none" || name == "None") return literal(token.line, Value::None{});
    --pos_;
    if (name == "loop") uses_loop_ = true;
    return make(Kind::kName, token.line, expect_name());
  }

  ExpressionPtr literal(int line, Value value) {
    ExpressionPtr e = make(Kind::kLiteral, line);
    e->value = std::move(value);
    return e;
  }

  ExpressionPtr parse_list(int line) {
    ExpressionPtr list = make(Kind::kList, line);
    while (!accept_operator("]")) {
      if (!list->children.empty()) {
        expect_operator(",");
        if (accept_operator("]")) break;
      }
      adopt(*list, parse_expression());
    }
    return list;
  }

  ExpressionPtr parse_dict(int line) {
    ExpressionPtr dict = make(Kind::kDict, line);
    while (!accept_operator("}")) {
      if (!dict->children.empty()) {
        expect_operator(",");
        if (accept_operator("}")) break;
      }
      adopt(*dict, parse_expression());
      expect_operator(":");
      adopt(*dict, parse_expression());
    }
    return dict;
  }

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int depth_ = 0, loops_ = 0;
  bool in_macro_ = false;
  bool uses_loop_ = false;  // has the innermost loop's body (or one inside it) named `loop`?
  std::set<std::string> macros_;
  std::vector<std::pair<std::string, int>> calls_;  // checked when all macros are known
};

}  // namespace

std::vector<Statement> parse_template(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) fail_at(1, fmt::format("the template is over {} bytes", kMaxTemplateBytes));
  return Parser(sanitize_utf8(source)).run();
}

}  // namespace carpool::jinja
