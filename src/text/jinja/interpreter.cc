// See interpreter.h.
#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "text/jinja/builtins.h"

namespace carpool::jinja {
namespace {

constexpr int kMaxMacroDepth = 128;
constexpr int kMaxRecursion = 1000;  // nodes on the stack, macros included
constexpr int64_t kMaxRange = 100'000;

enum class Flow { kNext, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(std::map<std::string, Value, std::less<>> variables, const RunOptions& options)
      : globals_(std::move(variables)), now_(options.now), budget_(options.max_time) {}

  Text run(const std::vector<Statement>& body) {
    try {
      run_body(body);
    } catch (const Failure& failure) {
      throw Error(failure.kind, fmt::format("chat template: line {}: {}", line_, failure.what));
    }
    return std::move(out_);
  }

 private:
  // Bounds the C++ stack.
  struct Nesting {
    explicit Nesting(Interpreter& i) : depth(i.depth_) {
      if (++depth > kMaxRecursion) throw Failure{"the template recurses too deeply"};
    }
    ~Nesting() { --depth; }
    int& depth;
  };

  // ---- names
  const Value* find(std::string_view name) const {
    for (size_t i = locals_.size(); i > base_; --i) {
      if (locals_[i - 1].first == name) return &locals_[i - 1].second;
    }
    const auto found = globals_.find(name);
    return found == globals_.end() ? nullptr : &found->second;
  }

  void set(const std::string& name, Value value) {
    if (!in_scope_) {
      globals_[name] = std::move(value);
      return;
    }
    for (size_t i = locals_.size(); i > scope_; --i) {
      if (locals_[i - 1].first == name) {
        locals_[i - 1].second = std::move(value);
        return;
      }
    }
    locals_.emplace_back(name, std::move(value));
  }

  // A scope that ends with this object; a macro's hides the caller's names.
  struct Scope {
    Scope(Interpreter& i, bool is_macro)
        : it(i), base(i.base_), scope(i.scope_), size(i.locals_.size()), in_scope(i.in_scope_) {
      if (is_macro) it.base_ = size;
      it.scope_ = size;
      it.in_scope_ = true;
    }
    ~Scope() {
      it.locals_.resize(size);
      it.base_ = base, it.scope_ = scope, it.in_scope_ = in_scope;
    }
    Interpreter& it;
    size_t base, scope, size;
    bool in_scope;
  };

  // ---- statements
  void emit(const Text& text) {
    budget_.text(text.bytes.size());
    out_.append(text);
    if (out_.bytes.size() > Budget::kMaxTextBytes) budget_.text(out_.bytes.size());
  }

  // Runs a body into a text of its own.
  Text capture(const std::vector<Statement>& body) {
    Text outer = std::move(out_);
    out_ = Text();
    run_body(body);
    std::swap(outer, out_);
    return outer;
  }

  Flow run_body(const std::vector<Statement>& body) {
    const Nesting nesting(*this);
    for (const Statement& s : body) {
      if (const Flow flow = run_statement(s); flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow run_statement(const Statement& s) {
    line_ = s.line;
    budget_.step();
    switch (s.kind) {
      case StatementKind::kText:
        emit(s.text);
        break;
      case StatementKind::kOutput:
        emit(to_text(eval(*s.expressions[0])));
        break;
      case StatementKind::kIf:
        return run_if(s);
      case StatementKind::kFor:
        return run_for(s);
      case StatementKind::kSet:
        run_set(s);
        break;
      case StatementKind::kSetBlock:
        set(s.names[0], capture(s.bodies[0]));
        break;
      case StatementKind::kMacro:
        set(s.names[0], &s);
        break;
      case StatementKind::kBlock:
        return run_body(s.bodies[0]);
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  Flow run_if(const Statement& s) {
    for (size_t i = 0; i < s.expressions.size(); ++i) {
      if (eval(*s.expressions[i]).truthy()) return run_body(s.bodies[i]);
    }
    return s.bodies.size() > s.expressions.size() ? run_body(s.bodies.back()) : Flow::kNext;
  }

  void bind(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return set(names[0], value);
    if (!value.list() || value.list()->items.size() != names.size()) {
      throw Failure{fmt::format("cannot unpack {} into {} names", value.type_name(), names.size())};
    }
    for (size_t i = 0; i < names.size(); ++i) set(names[i], value.list()->items[i]);
  }

  void run_set(const Statement& s) {
    const Value value = eval(*s.expressions[0]);
    if (!s.flag) return bind(s.names, value);
    const Value* target = find(s.names[0]);
    Namespace* space = target ? target->space() : nullptr;
    if (!space) throw Failure{fmt::format("\"{}\" is not a namespace, so its attributes cannot be set", s.names[0])};
    if (value.space()) throw Failure{"a namespace cannot be put into another namespace"};
    for (auto& [name, item] : space->items) {
      if (name == s.names[1]) {
        item = value;
        return;
      }
    }
    space->items.emplace_back(s.names[1], value);
  }

  Flow run_for(const Statement& s) {
    std::vector<Value> items = iterate(eval(*s.expressions[0]), budget_);
    if (s.expressions[1]) {
      std::vector<Value> kept;
      for (Value& item : items) {
        const Scope scope(*this, false);
        bind(s.names, item);
        if (eval(*s.expressions[1]).truthy()) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty()) return run_body(s.bodies[1]);
    for (size_t i = 0; i < items.size(); ++i) {
      budget_.step();
      const Scope scope(*this, false);
      bind(s.names, items[i]);
      if (s.flag) set("loop", loop_value(items, i));
      if (run_body(s.bodies[0]) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  static Value loop_value(const std::vector<Value>& items, size_t i) {
    const auto index = static_cast<int64_t>(i), size = static_cast<int64_t>(items.size());
    std::vector<std::pair<Text, Value>> loop;
    const auto put = [&](const char* name, Value value) { loop.emplace_back(Text(name, true), std::move(value)); };
    put("index", index + 1);
    put("index0", index);
    put("revindex", size - index);
    put("revindex0", size - index - 1);
    put("first", i == 0);
    put("last", i + 1 == items.size());
    put("length", size);
    if (i > 0) put("previtem", items[i - 1]);
    if (i + 1 < items.size()) put("nextitem", items[i + 1]);
    return Value::dict(std::move(loop));
  }

  // ---- expressions
  Value eval(const Expression& e) {
    const Nesting nesting(*this);
    budget_.step();
    Value value = eval_node(e);
    line_ = e.line;
    return value;
  }
  Value eval_child(const Expression& e, size_t i) { return e.children[i] ? eval(*e.children[i]) : Value(); }

  Value eval_node(const Expression& e) {
    switch (e.kind) {
      case ExpressionKind::kLiteral:
        return e.value;
      case ExpressionKind::kName: {
        const Value* value = find(e.name);
        return value ? *value : Value();
      }
      case ExpressionKind::kList:
        return Value::list(eval_children(e, 0), e.name == "tuple");
      case ExpressionKind::kDict:
        return eval_dict(e);
      case ExpressionKind::kAttribute: {
        const Value object = eval_child(e, 0);
        at(e).step(1 + (object.dict() ? object.dict()->items.size() / 16 : 0));
        return get_attribute(object, e.name);
      }
      case ExpressionKind::kIndex: {
        const Value object = eval_child(e, 0), key = eval_child(e, 1);
        at(e).step(1 + (object.dict() ? object.dict()->items.size() / 16 : 0));
        return get_item(object, key, budget_);
      }
      case ExpressionKind::kSlice: {
        const Value object = eval_child(e, 0), begin = eval_child(e, 1), end = eval_child(e, 2),
                    step = eval_child(e, 3);
        return slice(object, begin, end, step, at(e));
      }
      case ExpressionKind::kCall:
        return eval_call(e);
      case ExpressionKind::kMethod: {
        const Value object = eval_child(e, 0);
        const Arguments arguments = eval_arguments(e, 1);
        return apply_method(e.name, object, arguments, at(e));
      }
      case ExpressionKind::kFilter: {
        const Value input = eval_child(e, 0);
        const Arguments arguments = eval_arguments(e, 1);
        return apply_filter(e.name, input, arguments, at(e));
      }
      case ExpressionKind::kTest: {
        const Value input = eval_child(e, 0);
        if (e.children.size() == 1) return apply_test(e.name, input, nullptr, at(e));
        const Value argument = eval_child(e, 1);
        return apply_test(e.name, input, &argument, at(e));
      }
      case ExpressionKind::kNot:
        return !eval_child(e, 0).truthy();
      case ExpressionKind::kNegate:
        return negate(eval_child(e, 0));
      case ExpressionKind::kBinary: {
        const Value left = eval_child(e, 0), right = eval_child(e, 1);
        at(e);
        return binary(e.name, left, right);
      }
      case ExpressionKind::kCompare:
        return eval_comparison(e);
      case ExpressionKind::kAnd: {
        Value left = eval_child(e, 0);
        return left.truthy() ? eval_child(e, 1) : left;
      }
      case ExpressionKind::kOr: {
        Value left = eval_child(e, 0);
        return left.truthy() ? left : eval_child(e, 1);
      }
      case ExpressionKind::kCondition:
        return eval_child(e, eval_child(e, 1).truthy() ? 0 : 2);
    }
    return Value();
  }

  // The budget, with messages from now on naming this node's line.
  Budget& at(const Expression& e) {
    line_ = e.line;
    return budget_;
  }

  std::vector<Value> eval_children(const Expression& e, size_t from) {
    std::vector<Value> values;
    for (size_t i = from; i < e.children.size(); ++i) values.push_back(eval_child(e, i));
    return values;
  }

  Arguments eval_arguments(const Expression& e, size_t from) {
    Arguments arguments{eval_children(e, from), {}};
    for (const auto& [name, value] : e.keywords) arguments.named.emplace_back(name, eval(*value));
    return arguments;
  }

  Value eval_dict(const Expression& e) {
    std::vector<std::pair<Text, Value>> items;
    for (size_t i = 0; i < e.children.size(); i += 2) {
      const Value key = eval_child(e, i);
      Value value = eval_child(e, i + 1);
      if (!key.text()) throw Failure{fmt::format("the keys of a dict must be strings, not {}", key.type_name())};
      budget_.text(key.text()->bytes.size());
      const auto same = std::find_if(items.begin(), items.end(),
                                     [&](const auto& item) { return item.first.bytes == key.text()->bytes; });
      if (same != items.end()) {
        same->second = std::move(value);
      } else {
        items.emplace_back(*key.text(), std::move(value));
      }
    }
    return Value::dict(std::move(items));
  }

  Value eval_comparison(const Expression& e) {
    Value left = eval_child(e, 0);
    for (size_t i = 0; i < e.operators.size(); ++i) {
      Value right = eval_child(e, i + 1);
      const std::string& op = e.operators[i];
      Budget& budget = at(e);
      bool holds = false;
      if (op == "==" || op == "!=") {
        holds = compare_equal(left, right, budget) == (op == "==");
      } else if (op == "in" || op == "not in") {
        holds = contains(right, left, budget) == (op == "in");
      } else {
        budget.step(1 + std::min(left.weight(), right.weight()) / 256);
        holds = op == "<"    ? less(left, right)
                : op == ">"  ? less(right, left)
                : op == "<=" ? !less(right, left)
                             : !less(left, right);
      }
      if (!holds) return false;
      left = std::move(right);
    }
    return true;
  }

  static Value negate(const Value& value) {
    int64_t i = 0;
    if (value.as_integer(i) && i != INT64_MIN) return -i;
    if (!value.is_number()) throw Failure{fmt::format("cannot negate {}", value.type_name())};
    return -value.as_double();
  }

  Value binary(const std::string& op, const Value& a, const Value& b) {
    if (op == "~" || (op == "+" && a.text() && b.text())) {
      Text text = to_text(a);
      text.append(to_text(b));
      budget_.text(text.bytes.size());
      return text;
    }
    if (op == "+" && a.list() && b.list()) {
      std::vector<Value> items = a.list()->items;
      items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
      budget_.items(items.size());
      return Value::list(std::move(items));
    }
    int64_t i = 0, j = 0;
    if (op == "*" && (a.text() || b.text()) && (a.text() ? b : a).as_integer(i))
      return repeat(a.text() ? *a.text() : *b.text(), i);
    if (!a.is_number() || !b.is_number())
      throw Failure{fmt::format("\"{}\" does not work on {} and {}", op, a.type_name(), b.type_name())};
    return a.as_integer(i) && b.as_integer(j) && op != "/" ? integer_arithmetic(op[0], i, j)
                                                           : float_arithmetic(op, a.as_double(), b.as_double());
  }

  Value repeat(const Text& text, int64_t times) {
    Text out;
    if (times <= 0 || text.bytes.empty()) return out;
    if (static_cast<uint64_t>(times) > Budget::kMaxTextBytes) budget_.text(Budget::kMaxTextBytes + 1);
    budget_.text(text.bytes.size() * static_cast<size_t>(times));
    const size_t size = text.bytes.size() * static_cast<size_t>(times);
    out.append(text);
    while (out.bytes.size() < size) out.append(out, 0, std::min(out.bytes.size(), size - out.bytes.size()));
    return out;
  }

  // `op`: + - * % or / (which stands for //).
  static Value integer_arithmetic(char op, int64_t i, int64_t j) {
    int64_t r = 0;
    bool overflow = false;
    switch (op) {
      case '+':
        overflow = __builtin_add_overflow(i, j, &r);
        break;
      case '-':
        overflow = __builtin_sub_overflow(i, j, &r);
        break;
      case '*':
        overflow = __builtin_mul_overflow(i, j, &r);
        break;
      default:
        if (j == 0) throw Failure{"division by zero"};
        if (j == -1) {
          if (op == '%') return int64_t{0};
          overflow = __builtin_sub_overflow(int64_t{0}, i, &r);
          break;
        }
        const bool round_down = i % j != 0 && (i % j < 0) != (j < 0);  // Python rounds towards minus infinity
        r = op == '/' ? i / j - round_down : i % j + (round_down ? j : 0);
    }
    if (overflow) throw Failure{"an integer grows too large"};
    return r;
  }

  static Value float_arithmetic(const std::string& op, double a, double b) {
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (b == 0) throw Failure{"division by zero"};
    if (op == "/") return a / b;
    if (op == "//") return std::floor(a / b);
    const double r = std::fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  }

  // ---- calls
  Value eval_call(const Expression& e) {
    const Arguments arguments = eval_arguments(e, 0);
    at(e);
    const Value* named = find(e.name);
    if (named && named->macro()) return call_macro(*named->macro(), arguments);
    if (named || !is_function(e.name)) throw Failure{fmt::format("\"{}\" is not a function or macro here", e.name)};
    if (e.name == "range") return range(arguments);
    if (e.name == "raise_exception") {
      arguments.check(e.name, {"message"});
      const Value* message = arguments.get(0, "message");
      throw Failure{message ? escape(to_text(*message).bytes, 1000) : "the template objects to this request",
                    ErrorKind::kUsage};
    }
    if (e.name == "strftime_now") return strftime_now(arguments);
    if (!arguments.positional.empty()) throw Failure{fmt::format("{}: takes named arguments only", e.name)};
    if (e.name == "namespace") {
      auto space = std::make_shared<Namespace>();
      for (const auto& [name, value] : arguments.named) {
        if (value.space()) throw Failure{"a namespace cannot be put into another namespace"};
        space->items.emplace_back(name, value);
      }
      return space;
    }
    std::vector<std::pair<Text, Value>> items;
    for (const auto& [name, value] : arguments.named) items.emplace_back(Text(name, true), value);
    return Value::dict(std::move(items));
  }

  Value call_macro(const Statement& macro, const Arguments& arguments) {
    if (macro_depth_ == kMaxMacroDepth)
      throw Failure{fmt::format("macros call each other over {} levels deep", kMaxMacroDepth)};
    const size_t n = macro.names.size() - 1;
    if (arguments.positional.size() > n)
      throw Failure{fmt::format("the macro \"{}\" takes at most {} arguments", macro.names[0], n)};
    for (const auto& [name, value] : arguments.named) {
      if (std::find(macro.names.begin() + 1, macro.names.end(), name) == macro.names.end()) {
        throw Failure{fmt::format("the macro \"{}\" has no parameter \"{}\"", macro.names[0], name)};
      }
    }
    ++macro_depth_;
    const Scope scope(*this, true);
    for (size_t i = 0; i < n; ++i) {
      const Value* given = arguments.get(i, macro.names[i + 1]);
      set(macro.names[i + 1], given ? *given : macro.expressions[i] ? eval(*macro.expressions[i]) : Value());
    }
    Text text = capture(macro.bodies[0]);
    --macro_depth_;
    return text;
  }

  Value range(const Arguments& arguments) {
    int64_t part[3] = {0, 0, 1};
    const size_t n = arguments.positional.size();
    if (n < 1 || n > 3 || !arguments.named.empty()) throw Failure{"range: takes one to three integers"};
    for (size_t i = 0; i < n; ++i) {
      if (!arguments.positional[i].as_integer(part[n == 1 ? 1 : i]))
        throw Failure{"range: takes one to three integers"};
    }
    if (part[2] == 0) throw Failure{"range: the step is zero"};
    std::vector<Value> items;
    for (int64_t i = part[0]; part[2] > 0 ? i < part[1] : i > part[1];) {
      if (static_cast<int64_t>(items.size()) == kMaxRange)
        throw Failure{fmt::format("range: over {} items", kMaxRange)};
      items.emplace_back(i);
      if (__builtin_add_overflow(i, part[2], &i)) break;
    }
    budget_.items(items.size());
    return Value::list(std::move(items));
  }

  Value strftime_now(const Arguments& arguments) {
    arguments.check("strftime_now", {"format"});
    const Value* format = arguments.get(0, "format");
    if (!format || !format->text() || format->text()->bytes.size() > 64)
      throw Failure{"strftime_now: needs a short format"};
    if (!now_) throw Failure{"strftime_now: no date was given to this rendering"};
    const std::time_t seconds = *now_;
    std::tm parts{};
    if (!gmtime_r(&seconds, &parts)) throw Failure{"strftime_now: the date is out of range"};
    char buffer[512];
    return Text(std::string_view(buffer, std::strftime(buffer, sizeof buffer, format->text()->bytes.c_str(), &parts)),
                true);
  }

  std::map<std::string, Value, std::less<>> globals_;
  std::vector<std::pair<std::string, Value>> locals_;  // of all scopes, innermost last
  size_t base_ = 0, scope_ = 0;                        // where the macro's and the innermost scope's names begin
  bool in_scope_ = false;                              // in a loop or macro, so `set` is local
  std::optional<int64_t> now_;
  Budget budget_;
  Text out_;
  int line_ = 1, depth_ = 0, macro_depth_ = 0;
};

}  // namespace

Text run_template(const std::vector<Statement>& body, std::map<std::string, Value, std::less<>> variables,
                  const RunOptions& options) {
  return Interpreter(std::move(variables), options).run(body);
}

}  // namespace carpool::jinja
