#include "server/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>

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
    {"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}};
constexpr Role kAnthropicRoles[] = {{"user", "user"}, {"assistant", "assistant"}};

const char* read_role(const Fields& message, std::span<const Role> roles) {
  message.required("role");
  const std::string role = *message.string("role");
  for (const Role& known : roles) {
    if (role == known.name) return known.as;
  }
  const std::string path = message.path("role");
  if (role == "tool" || role == "function") {
    throw unsupported(path, fmt::format("{}: tools are not supported by this server", path));
  }
  std::string list;
  for (const Role& known : roles) list += fmt::format("{}{}", list.empty() ? "" : ", ", known.name);
  throw invalid_value(path, fmt::format("{} must be one of {}", path, list));
}

json::object read_message(const json::value& value, const std::string& path, std::span<const Role> roles) {
  const Fields message = Fields::of(value, path);
  const char* role = read_role(message, roles);
  for (const char* tools : {"tool_calls", "function_call"}) {
    const json::value* calls = message.find(tools);
    if (!calls || (calls->is_array() && calls->get_array().empty())) continue;
    throw unsupported(message.path(tools), fmt::format("{}: tools are not supported by this server", path));
  }
  json::object out;
  out["role"] = role;
  const json::value* content = message.find("content");
  const bool may_be_null = out["role"].get_string() == "assistant" && message.raw().contains("content");
  if (!content && !may_be_null) message.required("content");
  out["content"] = content ? read_content(*content, message.path("content")) : std::string();
  for (const char* extra : {"name", "reasoning_content"}) {
    if (const std::optional<std::string> text = message.string(extra)) out[extra] = *text;
  }
  return out;
}

json::array read_messages_list(const Fields& fields, std::span<const Role> roles) {
  const json::value& value = fields.required("messages");
  if (!value.is_array()) throw invalid_value("messages", "messages must be a list");
  if (value.get_array().empty()) throw invalid_value("messages", "messages is an empty list");
  json::array messages;
  for (const json::value& message : value.get_array()) {
    messages.push_back(read_message(message, fmt::format("messages[{}]", messages.size()), roles));
  }
  return messages;
}

bool ends_with_assistant(const Chat& chat) {
  return chat.messages.back().as_object().at("role").get_string() == "assistant";
}

json::object read_variables(const Fields& fields) {
  json::object variables;
  if (const std::optional<std::string> effort = fields.string("reasoning_effort")) {
    variables["reasoning_effort"] = *effort;
  }
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

}  // namespace

Chat read_chat_messages(const json::object& body) {
  const Fields fields(body);
  Chat chat;
  if (fields.has("chat_template")) {
    throw unsupported("chat_template", "chat templates come with the model, not with a request");
  }
  chat.messages = read_messages_list(fields, kOpenAiRoles);
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
  chat.add_generation_prompt = prompt.value_or(!chat.continue_final);
  return chat;
}

Chat read_anthropic_messages(const json::object& body) {
  const Fields fields(body);
  Chat chat;
  chat.messages = read_messages_list(fields, kAnthropicRoles);
  if (const json::value* system = fields.find("system")) {
    const std::string text = read_content(*system, "system");
    json::object message{{"role", "system"}, {"content", text}};
    if (!text.empty()) chat.messages.insert(chat.messages.begin(), std::move(message));
  }
  chat.continue_final = ends_with_assistant(chat);
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
  std::string mark;
  if (chat.continue_final) {
    mark = fresh_mark();
    json::string& content = input.messages.as_array().back().as_object()["content"].as_string();
    content.append(mark);
  }
  try {
    std::vector<Piece> pieces = chat_template->render(input);
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
