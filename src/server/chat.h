// Chats as requests give them: checked messages, and their way through the model's chat template.
//
// Owns reading of OpenAI's and Anthropic's messages into one form, and rendering. What a template gets is role,
// content, name, reasoning_content, tool_calls and tool_call_id of each message, the tools, and chat_template_kwargs;
// templates come from the model, never from a request. Rendering and encoding belong on a worker thread. Images are
// refused.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/prompt.h"
#include "server/tools.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace carpool {

struct Chat {
  json::array messages;  // {"role", "content": a string, ...}
  json::object variables;
  bool add_generation_prompt = true;
  bool continue_final = false;  // the last message, an assistant's, is left open for more
  ToolWish tools;
  int past_calls = 0;  // of tools, in the messages
};

inline constexpr int kMaxMessageCalls = 128;  // of one message

// From the body of a request: messages, tools, add_generation_prompt, continue_final_message, chat_template_kwargs,
// reasoning_effort (which also turns thinking on or off for templates that ask). ApiError 400 with the path of what is
// wrong.
Chat read_chat_messages(const json::object& body);
// Anthropic's: system, messages, tools, thinking; a last message by the assistant is continued. Results of tools become
// messages of their own, before the text of the message that brings them.
Chat read_anthropic_messages(const json::object& body);

// Arguments of calls reach the template as objects, and as text when it fails on objects. ApiError 400 when there is no
// template, or when it refuses or fails on these messages.
std::vector<Piece> render(const std::optional<ChatTemplate>& chat_template, const TokenizerConfig& config,
                          const Chat& chat);
// The tokens of a rendered chat; ApiError 400 when there are none or it cannot be encoded.
Prompt encode_prompt(const Tokenizer& tokenizer, const std::vector<Piece>& pieces);

}  // namespace carpool
