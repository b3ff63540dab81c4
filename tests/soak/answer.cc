// Read first: answer.h.
#include "soak/answer.h"

#include <fmt/format.h>

#include <algorithm>

namespace carpool::soak {
namespace {

constexpr size_t kMostMessage = 300;

// Member by member; null when there is none of that name.
const json::value* at(const json::value* value, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (!value || !value->is_object()) return nullptr;
    value = value->get_object().if_contains(key);
  }
  return value;
}

std::string text_at(const json::value* value) {
  return value && value->is_string() ? std::string(value->get_string()) : std::string();
}

int number_at(const json::value* value, int fallback) {
  return value && value->is_int64() ? static_cast<int>(value->get_int64()) : fallback;
}

const json::value* first(const json::value* list) {
  return list && list->is_array() && !list->get_array().empty() ? &list->get_array()[0] : nullptr;
}

void take_usage(const json::value& root, Answer& answer) {
  answer.prompt_tokens = number_at(at(&root, {"usage", "prompt_tokens"}), answer.prompt_tokens);
  answer.completion_tokens = number_at(at(&root, {"usage", "completion_tokens"}), answer.completion_tokens);
}

void take_openai(Api api, const json::value& root, bool whole, Answer& answer) {
  take_usage(root, answer);
  const json::value* choice = first(at(&root, {"choices"}));
  if (!choice) return;
  const char* holder = whole ? "message" : "delta";
  const json::value* text = api == Api::kChat ? at(choice, {holder, "content"}) : at(choice, {"text"});
  const std::string piece = text_at(text);
  answer.text += piece;
  if (!piece.empty()) ++answer.pieces;
  if (const std::string finish = text_at(at(choice, {"finish_reason"})); !finish.empty()) answer.finish = finish;
  const bool silent = piece.empty() && answer.finish.empty() && !at(choice, {"delta", "role"});
  if (!whole && silent) answer.broken = "a piece of the stream without text";
}

// Cumulative: each event holds all text so far.
void take_generate(const json::value& root, bool whole, Answer& answer) {
  const std::string text = text_at(at(&root, {"text"}));
  if (text.compare(0, answer.text.size(), answer.text) != 0) answer.broken = "a stream took back what it had said";
  const bool grew = text.size() > answer.text.size();
  if (grew) ++answer.pieces;
  answer.text = text;
  answer.ids.clear();
  if (const json::value* ids = at(&root, {"output_ids"}); ids && ids->is_array()) {
    for (const json::value& id : ids->get_array()) answer.ids.push_back(number_at(&id, -1));
  }
  answer.prompt_tokens = number_at(at(&root, {"meta_info", "prompt_tokens"}), -1);
  answer.completion_tokens = number_at(at(&root, {"meta_info", "completion_tokens"}), -1);
  answer.finish = text_at(at(&root, {"meta_info", "finish_reason", "type"}));
  if (!whole && !grew && answer.finish.empty()) answer.broken = "a piece of the stream without text";
}

void take_messages_usage(const json::value* usage, Answer& answer) {
  const int input = number_at(at(usage, {"input_tokens"}), -1);
  if (input >= 0) answer.prompt_tokens = input + number_at(at(usage, {"cache_read_input_tokens"}), 0);
  answer.completion_tokens = number_at(at(usage, {"output_tokens"}), answer.completion_tokens);
}

void take_messages_event(const json::value& root, Answer& answer) {
  const std::string type = text_at(at(&root, {"type"}));
  if (type == "content_block_delta") {
    const std::string piece = text_at(at(&root, {"delta", "text"}));
    if (piece.empty()) answer.broken = "a piece of the stream without text";
    answer.text += piece;
    ++answer.pieces;
  } else if (type == "message_delta") {
    answer.finish = text_at(at(&root, {"delta", "stop_reason"}));
    take_messages_usage(at(&root, {"usage"}), answer);
  } else if (type == "message_stop") {
    answer.done = true;
  }
}

std::string excerpt(const std::string& text, size_t at) {
  return fmt::format("\"{}\" at {}", text.substr(std::min(at, text.size()), 24), at);
}

}  // namespace

void take_whole(Api api, const std::string& body, Answer& answer) {
  try {
    const json::value root = parse_json(body, "answer");
    if (api == Api::kGenerate) {
      take_generate(root, true, answer);
    } else if (api == Api::kMessages) {
      answer.text = text_at(at(first(at(&root, {"content"})), {"text"}));
      answer.finish = text_at(at(&root, {"stop_reason"}));
      take_messages_usage(at(&root, {"usage"}), answer);
    } else {
      take_openai(api, root, true, answer);
    }
  } catch (const JsonError& e) {
    answer.broken = e.what();
  }
}

void take_event(Api api, const std::string& data, Answer& answer) {
  if (answer.done) answer.broken = "an event behind the end of the stream";
  if (data == "[DONE]") {
    if (!answer.error_code.empty()) answer.broken = "[DONE] behind an error";
    answer.done = true;
    return;
  }
  try {
    const json::value root = parse_json(data, "event");
    if (const json::value* error = at(&root, {"error"})) {
      answer.error_code = text_at(at(error, {"code"}));
      if (answer.error_code.empty()) answer.broken = "an error event without code";
    } else if (api == Api::kGenerate) {
      take_generate(root, false, answer);
    } else if (api == Api::kMessages) {
      take_messages_event(root, answer);
    } else {
      take_openai(api, root, false, answer);
    }
  } catch (const JsonError& e) {
    answer.broken = e.what();
  }
}

std::string wrong(const Case& c, const Answer& answer, bool streamed, bool cut) {
  if (!answer.broken.empty()) return answer.broken;
  if (!answer.error_code.empty()) return "the stream ended with the error " + answer.error_code;
  if (streamed && !answer.done) return "the stream ended without saying so";
  const bool aborted = answer.finish == "abort" || (c.api == Api::kMessages && answer.text.size() < c.text.size());
  if (aborted && cut) {
    if (c.text.compare(0, answer.text.size(), answer.text) == 0) return "";
  } else if (answer.text == c.text) {
    if (!c.ids.empty() && !answer.ids.empty() && answer.ids != c.ids) return "right text from other tokens";
    if (answer.finish != c.finish) return fmt::format("finish reason \"{}\", not {}", answer.finish, c.finish);
    if (answer.completion_tokens >= 0 && answer.completion_tokens != c.tokens) {
      return fmt::format("usage says {} generated tokens, not {}", answer.completion_tokens, c.tokens);
    }
    if (c.prompt_tokens > 0 && answer.prompt_tokens >= 0 && answer.prompt_tokens != c.prompt_tokens) {
      return fmt::format("usage says {} prompt tokens, not {}", answer.prompt_tokens, c.prompt_tokens);
    }
    return "";
  }
  const auto [mine, theirs] = std::mismatch(c.text.begin(), c.text.end(), answer.text.begin(), answer.text.end());
  const auto place = static_cast<size_t>(mine - c.text.begin());
  return fmt::format("wrong text: {} of {} bytes, {} in place of {}", answer.text.size(), c.text.size(),
                     excerpt(answer.text, place), excerpt(c.text, place));
}

std::string wrong_error(const std::string& body, std::string& code) {
  try {
    const json::value root = parse_json(body, "error");
    const json::value* error = at(&root, {"error"});
    code = text_at(at(error, {"code"}));
    const std::string message = text_at(at(error, {"message"}));
    if (code.empty() || text_at(at(error, {"type"})).empty() || message.empty()) return "an error without its fields";
    if (!error->get_object().contains("param")) return "an error without param";
    if (message.size() > kMostMessage) return "an error message that is too long";
  } catch (const JsonError& e) {
    return e.what();
  }
  return "";
}

}  // namespace carpool::soak
