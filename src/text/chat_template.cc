// See chat_template.h.
#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace carpool {
namespace {

using jinja::Text;
using jinja::Value;

bool is_usual_role(std::string_view role) {
  static constexpr std::string_view kRoles[] = {"system",   "user",        "assistant", "tool", "developer",
                                                "function", "observation", "ipython",   "model"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

// A message with its role trusted, if it is a usual one.
Value from_message(const json::value& message) {
  const Value value = Value::from_json(message, false);
  const auto* dict = value.dict();
  const Value* role = dict ? dict->find("role") : nullptr;
  if (!role || !role->text() || !is_usual_role(role->text()->bytes)) return value;
  auto items = dict->items;
  for (auto& [key, item] : items) {
    if (key.bytes == "role") item = Text(role->text()->bytes, true);
  }
  return Value::dict(std::move(items));
}

std::map<std::string, Value, std::less<>> make_variables(const ChatInput& input) {
  const json::array* messages = input.messages.if_array();
  if (!messages) throw Error(ErrorKind::kUsage, "chat template: the messages must be a list");
  std::map<std::string, Value, std::less<>> variables;
  try {
    for (const auto& [key, value] : input.variables) variables[key] = Value::from_json(value, false);
    for (const auto& [key, value] : input.trusted_variables) variables[key] = Value::from_json(value, true);
    std::vector<Value> list;
    for (const json::value& message : *messages) list.push_back(from_message(message));
    variables["messages"] = Value::list(std::move(list));
  } catch (const jinja::Failure& failure) {
    throw Error(ErrorKind::kUsage, fmt::format("chat template: {}", failure.what));
  }
  variables["add_generation_prompt"] = input.add_generation_prompt;
  return variables;
}

}  // namespace

struct ChatTemplate::State {
  std::vector<jinja::Statement> body;
};

ChatTemplate ChatTemplate::parse(std::string_view source) {
  auto state = std::make_shared<State>();
  state->body = jinja::parse_template(source);
  return ChatTemplate(std::move(state));
}

std::vector<Piece> ChatTemplate::render(const ChatInput& input) const {
  const Text text = jinja::run_template(state_->body, make_variables(input), {input.now, input.max_time});
  std::vector<Piece> pieces;
  for (size_t begin = 0; begin < text.bytes.size();) {
    const size_t end = std::min(text.marks.find_first_not_of(text.marks[begin], begin), text.bytes.size());
    pieces.push_back({text.bytes.substr(begin, end - begin), text.marks[begin] == 't'});
    begin = end;
  }
  return pieces;
}

std::string join(const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& piece : pieces) text += piece.text;
  return text;
}

std::vector<int> encode_chat(const Tokenizer& tokenizer, const std::vector<Piece>& pieces) {
  return tokenizer.encode(pieces, false);
}

}  // namespace carpool
