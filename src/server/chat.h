// Chats as requests give them: checked messages, and their way through the model's chat template.
//
// Owns reading of OpenAI's and Anthropic's messages into one form, and rendering. What a template gets is only role,
// content, name and reasoning_content of each message and chat_template_kwargs; templates come from the model, never
// from a request. Rendering and encoding belong on a worker thread. Tools and images are refused (docs/server.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/prompt.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace carpool {

struct Chat {
  json::array messages;  // {"role", "content": a string, ...}
  json::object variables;
  bool add_generation_prompt = true;
  bool continue_final = false;  // the last message, an assistant's, is left open for more
};

// From the body of a request: messages, add_generation_prompt, continue_final_message, chat_template_kwargs,
// reasoning_effort. ApiError 400 with the path of what is wrong.
Chat read_chat_messages(const json::object& body);
// Anthropic's: system and messages; a last message by the assistant is continued.
Chat read_anthropic_messages(const json::object& body);

// ApiError 400 when there is no template, or when it refuses or fails on these messages.
std::vector<Piece> render(const std::optional<ChatTemplate>& chat_template, const TokenizerConfig& config,
                          const Chat& chat);
// The tokens of a rendered chat; ApiError 400 when there are none or it cannot be encoded.
Prompt encode_prompt(const Tokenizer& tokenizer, const std::vector<Piece>& pieces);

}  // namespace carpool
