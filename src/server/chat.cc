#include "server/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

#include "server/fields.h"

namespace carpool {
namespace {

// A list of parts of which only text is served; parts are joined by line breaks, as other servers do.
std::string join_parts(const json::array& parts, const std::string& path) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", path, i);
    const Fields part = Fields::of(parts[i], here);
    part.required("type");
    const std::string type = *part.string("type");
    if (type != "text" && type != "input_text") {
      throw unsupported(here + ".type", fmt::format("{}: only parts of type text are supported", here));
    }
    part.required("text");
    if (i > 0) text += '\n';
    text += *part.string("text");
  }
  return text;
}

std::string read_content(const json::value& value, const std::string& path) {
  if (value.is_string()) return std::string(value.get_string());
  if (!value.is_array()) throw invalid_value(path, fmt::format("{} must be a string or a list of parts", path));
  return join_parts(value.get_array(), path);
}

// `roles` maps what the API allows to what templates know.
struct Role {
  const char* name;
  const char* as;
};
constexpr Role kOpenAiRoles[] = {
    {"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}, {"tool", "tool"}};
constexpr Role kAnthropicRoles[] = {{"user", "user"}, {"assistant", "assistant"}};

const char* read_role(const Fields& message, std::span<const Role> roles) {
  message.required("role");
  const std::string role = *message.string("role");
  for (const Role& known : roles) {
    if (role == known.name) return known.as;
  }
  const std::string path = message.path("role");
  if (role == "function") throw unsupported(path, fmt::format("{}: results of tools have the role tool", path));
  std::string list;
  for (const Role& known : roles) list += fmt::format("{}{}", list.empty() ? "" : ", ", known.name);
  throw invalid_value(path, fmt::format("{} must be one of {}", path, list));
}

json::object make_call(const std::string& id, const std::string& name, json::object arguments) {
  json::object call;
  if (!id.empty()) call["id"] = id;
  call["type"] = "function";
  json::object& function = call["function"].emplace_object();
  function["name"] = name;
  function["arguments"] = std::move(arguments);
  return call;
}

// The text of a JSON object, as answers have it; nothing at all counts as no arguments.
json::object read_arguments(const Fields& function) {
  const json::value* value = function.find("arguments");
  if (!value) return {};
  if (value->is_object()) return value->get_object();
  const std::string path = function.path("arguments"), text = *function.string("arguments");
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return {};
  try {
    json::value parsed = parse_json(text, "arguments");
    if (parsed.is_object()) return std::move(parsed.as_object());
  } catch (const JsonError&) {  // its sentence may quote the text
  }
  throw invalid_value(path, fmt::format("{} must be the text of a JSON object", path));
}

json::array read_calls(const Fields& message) {
  json::array calls;
  const json::array* list = message.array("tool_calls", kMaxMessageCalls);
  for (size_t i = 0; list && i < list->size(); ++i) {
    const Fields call = Fields::of((*list)[i], fmt::format("{}[{}]", message.path("tool_calls"), i));
    if (call.string("type").value_or("function") != "function") {
      throw unsupported(call.path("type"), fmt::format("{} other than function is not supported", call.path("type")));
    }
    call.required("function");
    const Fields function = *call.object("function");
    calls.push_back(make_call(call.string("id").value_or(""), read_function_name(function), read_arguments(function)));
  }
  return calls;
}

json::object read_message(const json::value& value, const std::string& path) {
  const Fields message = Fields::of(value, path);
  const std::string role = read_role(message, kOpenAiRoles);
  json::object out;
  out["role"] = role;
  const bool assistant = role == "assistant";
  const json::value* old_call = message.find("function_call");
  if (old_call && !(old_call->is_object() && old_call->get_object().empty())) {
    throw unsupported(message.path("function_call"), fmt::format("{}: calls are in tool_calls", path));
  }
  json::array calls = read_calls(message);
  if (!assistant && !calls.empty()) {
    throw invalid_value(message.path("tool_calls"), fmt::format("{}: only an assistant calls tools", path));
  }
  const json::value* content = message.find("content");
  const bool may_be_null = assistant && (message.raw().contains("content") || !calls.empty());
  if (!content && !may_be_null) message.required("content");
  out["content"] = content ? read_content(*content, message.path("content")) : std::string();
  for (const char* extra : {"name", "reasoning_content", "tool_call_id"}) {
    if (const std::optional<std::string> text = message.string(extra)) out[extra] = *text;
  }
  if (const std::optional<std::string> text = message.string("reasoning"); text && !out.contains("reasoning_content")) {
    out["reasoning_content"] = *text;
  }
  if (!calls.empty()) out["tool_calls"] = std::move(calls);
  return out;
}

// The blocks of one of Anthropic's messages, sorted out.
struct Blocks {
  std::string text, thinking;
  bool has_text = false;
  json::array calls;
  std::vector<json::object> results;  // messages
};

void read_block(const Fields& block, bool assistant, Blocks& out) {
  block.required("type");
  const std::string type = *block.string("type");
  const std::string path = block.path("type");
  if (type == "text") {
    block.required("text");
    if (std::exchange(out.has_text, true)) out.text += '\n';
    out.text += *block.string("text");
  } else if (type == "tool_result" && !assistant) {
    block.required("tool_use_id");
    const json::value* content = block.find("content");
    out.results.push_back({{"role", "tool"},
                           {"content", content ? read_content(*content, block.path("content")) : std::string()},
                           {"tool_call_id", *block.string("tool_use_id")}});
    block.boolean("is_error");
  } else if (type == "tool_use" && assistant) {
    const std::optional<Fields> input = block.object("input");
    if (out.calls.size() >= kMaxMessageCalls) throw too_many_items(path, out.calls.size() + 1, kMaxMessageCalls);
    out.calls.push_back(
        make_call(block.string("id").value_or(""), read_function_name(block), input ? input->raw() : json::object()));
  } else if (type == "thinking" && assistant) {
    block.required("thinking");
    out.thinking += *block.string("thinking");
  } else if (type != "redacted_thinking" || !assistant) {
    throw unsupported(path, fmt::format("{}: blocks of this type are not supported here", path));
  }
}

void read_anthropic_message(const json::value& value, const std::string& path, json::array& messages) {
  const Fields message = Fields::of(value, path);
  const std::string role = read_role(message, kAnthropicRoles);
  const json::value& content = message.required("content");
  const std::string where = message.path("content");
  Blocks blocks;
  if (const json::array* list = content.if_array()) {
    for (size_t i = 0; i < list->size(); ++i) {
      read_block(Fields::of((*list)[i], fmt::format("{}[{}]", where, i)), role == "assistant", blocks);
    }
  } else {
    blocks.text = read_content(content, where);
    blocks.has_text = true;
  }
  for (json::object& result : blocks.results) messages.push_back(std::move(result));
  if (!blocks.results.empty() && !blocks.has_text) return;
  json::object out{{"role", role}, {"content", blocks.text}};
  if (!blocks.thinking.empty()) out["reasoning_content"] = blocks.thinking;
  if (!blocks.calls.empty()) out["tool_calls"] = std::move(blocks.calls);
  messages.push_back(std::move(out));
}

// `read` appends what one message becomes.
template <class F>
json::array read_messages_list(const Fields& fields, F read) {
  const json::value& value = fields.required("messages");
  if (!value.is_array()) throw invalid_value("messages", "messages must be a list");
  if (value.get_array().empty()) throw invalid_value("messages", "messages is an empty list");
  json::array messages;
  size_t index = 0;
  for (const json::value& message : value.get_array()) read(message, fmt::format("messages[{}]", index++), messages);
  return messages;
}

int count_calls(const json::array& messages) {
  size_t calls = 0;
  for (const json::value& message : messages) {
    if (const json::value* list = message.as_object().if_contains("tool_calls")) calls += list->as_array().size();
  }
  return static_cast<int>(calls);
}

bool ends_with_assistant(const Chat& chat) {
  return chat.messages.back().as_object().at("role").get_string() == "assistant";
}

// Both names that templates have for it.
void set_thinking(bool on, json::object& variables) {
  variables["enable_thinking"] = on;
  variables["thinking"] = on;
}

void read_effort(const Fields& fields, json::object& variables) {
  static constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const std::optional<std::string> effort = fields.string("reasoning_effort");
  if (!effort) return;
  if (std::find(std::begin(kEfforts), std::end(kEfforts), *effort) == std::end(kEfforts)) {
    throw invalid_value("reasoning_effort",
                        "reasoning_effort must be one of none, minimal, low, medium, high, xhigh, max");
  }
  set_thinking(*effort != "none", variables);
  if (*effort != "none") variables["reasoning_effort"] = *effort;
}

// An answer goes on behind its content, and calls stand behind that.
void refuse_to_continue_calls(const Chat& chat, const char* param) {
  if (!chat.messages.back().as_object().contains("tool_calls")) return;
  throw invalid_value(param, "a last message that calls tools cannot be continued; their results come next");
}

json::object read_variables(const Fields& fields) {
  json::object variables;
  read_effort(fields, variables);
  const std::optional<Fields> kwargs = fields.object("chat_template_kwargs");
  if (!kwargs) return variables;
  if (kwargs->raw().size() > 64) throw too_many_items("chat_template_kwargs", kwargs->raw().size(), 64);
  static constexpr std::string_view kReserved[] = {"messages", "chat_template", "tools", "documents",
                                                   "add_generation_prompt"};
  for (const auto& [key, value] : kwargs->raw()) {
    if (std::find(std::begin(kReserved), std::end(kReserved), key) != std::end(kReserved)) {
      throw unsupported("chat_template_kwargs", "chat_template_kwargs may not set what the server sets itself");
    }
    variables[key] = value;
  }
  return variables;
}

// How many tokens a model may think is its own affair: budget_tokens is checked, and no limit.
void read_thinking(const Fields& fields, json::object& variables) {
  const std::optional<Fields> thinking = fields.object("thinking");
  if (!thinking) return;
  thinking->required("type");
  const std::string type = *thinking->string("type");
  if (type == "enabled") {
    thinking->integer("budget_tokens", 1, INT32_MAX);
  } else if (type != "disabled" && type != "adaptive") {
    throw invalid_value("thinking.type", "thinking.type must be enabled, disabled or adaptive");
  }
  if (type != "adaptive") set_thinking(type == "enabled", variables);
}

// A word that no message contains by accident.
std::string fresh_mark() {
  std::random_device device;
  std::string mark = "carpool";
  for (int i = 0; i < 4; ++i) mark += fmt::format("{:08x}", device());
  return mark;
}

// Cuts `pieces` where `mark` last stands.
void cut_at(const std::string& mark, std::vector<Piece>& pieces) {
  for (size_t i = pieces.size(); i-- > 0;) {
    const size_t at = pieces[i].text.rfind(mark);
    if (at == std::string::npos) continue;
    pieces[i].text.resize(at);
    pieces.resize(at > 0 ? i + 1 : i);
    return;
  }
  throw invalid_value("messages", "the chat template drops the last message, so it cannot be continued");
}

// gpt-oss calls it thinking, and allows it or content beside calls, not both.
void rename_reasoning(json::array& messages) {
  for (json::value& value : messages) {
    json::object& message = value.as_object();
    const json::value* reasoning = message.if_contains("reasoning_content");
    if (!reasoning) continue;
    const bool crowded = message.contains("tool_calls") && !message.at("content").as_string().empty();
    if (!crowded) message["thinking"] = *reasoning;
    message.erase("reasoning_content");
  }
}

void spell_arguments(json::array& messages) {
  for (json::value& message : messages) {
    json::value* calls = message.as_object().if_contains("tool_calls");
    if (!calls) continue;
    for (json::value& call : calls->as_array()) {
      json::value& arguments = call.as_object().at("function").as_object().at("arguments");
      arguments = json::serialize(arguments);
    }
  }
}

// Some templates put arguments together as text.
std::vector<Piece> render_calls(const ChatTemplate& chat_template, bool calls, ChatInput& input) {
  try {
    return chat_template.render(input);
  } catch (const Error& error) {
    if (!calls || error.kind() == ErrorKind::kUsage) throw;
  }
  spell_arguments(input.messages.as_array());
  return chat_template.render(input);
}

}  // namespace

Chat read_chat_messages(const json::object& body) {
  const Fields fields(body);
  Chat chat;
  if (fields.has("chat_template")) {
    throw unsupported("chat_template", "chat templates come with the model, not with a request");
  }
  chat.tools = read_openai_tools(fields);
  chat.messages = read_messages_list(fields, [](const json::value& message, const std::string& path, json::array& out) {
    out.push_back(read_message(message, path));
  });
  chat.past_calls = count_calls(chat.messages);
  chat.variables = read_variables(fields);
  chat.continue_final = fields.boolean_or("continue_final_message", false);
  const std::optional<bool> prompt = fields.boolean("add_generation_prompt");
  if (chat.continue_final && prompt.value_or(false)) {
    throw invalid_value("continue_final_message",
                        "continue_final_message and add_generation_prompt exclude each other");
  }
  if (chat.continue_final && !ends_with_assistant(chat)) {
    throw invalid_value("continue_final_message", "continue_final_message needs a last message by the assistant");
  }
  if (chat.continue_final) refuse_to_continue_calls(chat, "continue_final_message");
  chat.add_generation_prompt = prompt.value_or(!chat.continue_final);
  return chat;
}

Chat read_anthropic_messages(const json::object& body) {
  const Fields fields(body);
  Chat chat;
  chat.tools = read_anthropic_tools(fields);
  chat.messages = read_messages_list(fields, read_anthropic_message);
  chat.past_calls = count_calls(chat.messages);
  read_thinking(fields, chat.variables);
  if (const json::value* system = fields.find("system")) {
    const std::string text = read_content(*system, "system");
    json::object message{{"role", "system"}, {"content", text}};
    if (!text.empty()) chat.messages.insert(chat.messages.begin(), std::move(message));
  }
  chat.continue_final = ends_with_assistant(chat);
  if (chat.continue_final) refuse_to_continue_calls(chat, "messages");
  chat.add_generation_prompt = !chat.continue_final;
  return chat;
}

std::vector<Piece> render(const std::optional<ChatTemplate>& chat_template, const TokenizerConfig& config,
                          const Chat& chat) {
  if (!chat_template) throw unsupported("messages", "the model has no chat template; use /v1/completions");
  ChatInput input;
  input.messages = chat.messages;
  input.add_generation_prompt = chat.add_generation_prompt;
  input.variables = chat.variables;
  input.now = std::time(nullptr);
  if (config.bos_token) input.trusted_variables["bos_token"] = *config.bos_token;
  if (config.eos_token) input.trusted_variables["eos_token"] = *config.eos_token;
  if (chat.tools.wanted()) input.variables["tools"] = chat.tools.tools;
  const bool thinking_by_name =
      config.chat_template && config.chat_template->find("message.thinking") != std::string::npos;
  if (thinking_by_name) rename_reasoning(input.messages.as_array());
  std::string mark;
  if (chat.continue_final) {
    mark = fresh_mark();
    json::string& content = input.messages.as_array().back().as_object()["content"].as_string();
    content.append(mark);
  }
  try {
    std::vector<Piece> pieces = render_calls(*chat_template, chat.past_calls > 0, input);
    if (chat.continue_final) cut_at(mark, pieces);
    return pieces;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kUsage) throw invalid_value("messages", error.what());
    throw invalid_value("messages", "the model's chat template fails on these messages");
  }
}

Prompt encode_prompt(const Tokenizer& tokenizer, const std::vector<Piece>& pieces) {
  Prompt prompt;
  try {
    prompt.ids = encode_chat(tokenizer, pieces);
  } catch (const Error&) {  // its sentence may quote the text
    throw invalid_value("messages", "messages cannot be encoded: the tokenizer's expression takes too long");
  }
  if (prompt.ids.empty()) throw invalid_value("messages", "messages have no tokens");
  return prompt;
}

}  // namespace carpool
