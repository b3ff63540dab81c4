// Chats with tools from a scripted model: what is asked, and what comes, whole and streamed, which must say the same.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/scripted_model_test_util.h"

namespace carpool {

inline const json::value& openai_tools() {
  static const json::value tools = json::parse(R"([
    {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
      "city":{"type":"string"},"days":{"type":"integer"}}}}},
    {"type":"function","function":{"name":"now","description":"the time"}}])");
  return tools;
}

inline json::object request(const std::string& script, json::object more = {}) {
  json::object body{{"messages", json::array{json::object{{"role", "user"}, {"content", script_of(script)}}}},
                    {"temperature", 0},
                    {"max_tokens", 2000}};
  for (const auto& entry : more) body[entry.key()] = entry.value();
  return body;
}

inline json::object with_tools(json::object more = {}) {
  more["tools"] = openai_tools();
  return more;
}

inline json::object named(const char* function, json::object more = {}) {
  more["tool_choice"] = json::object{{"type", "function"}, {"function", json::object{{"name", function}}}};
  return with_tools(std::move(more));
}

// The choices that the chunks of a chat stream add up to, in the form of the whole answer.
inline json::array joined(const std::vector<RawEvent>& events, json::object& usage, bool& done) {
  std::map<int64_t, json::object> choices;
  for (const RawEvent& event : events) {
    EXPECT_FALSE(done) << "after the end";
    done = event.data == "[DONE]";
    if (done) continue;
    const json::value chunk = json::parse(event.data);
    if (const json::value* u = chunk.as_object().if_contains("usage"); u && u->is_object()) usage = u->as_object();
    for (const json::value& part : chunk.at("choices").as_array()) {
      json::object& choice = choices[part.at("index").as_int64()];
      json::object& message =
          choice["message"].is_null() ? choice["message"].emplace_object() : choice["message"].as_object();
      for (const auto& [key, value] : part.at("delta").as_object()) {
        if (key == "tool_calls") {
          json::array& calls = message["tool_calls"].is_null() ? message["tool_calls"].emplace_array()
                                                               : message["tool_calls"].as_array();
          for (const json::value& piece : value.as_array()) {
            const auto index = static_cast<size_t>(piece.at("index").as_int64());
            if (index == calls.size()) {
              json::object call = piece.as_object();
              EXPECT_EQ(call.at("function").at("arguments"), "");
              call.erase("index");
              calls.push_back(std::move(call));
              continue;
            }
            EXPECT_EQ(index + 1, calls.size()) << "calls come one after the other";
            EXPECT_FALSE(piece.as_object().contains("id"));
            json::string& arguments = calls.back().at("function").at("arguments").as_string();
            arguments.append(piece.at("function").at("arguments").as_string());
          }
        } else if (key == "role") {
          message["role"] = value;
        } else {
          if (message[key].is_null()) message[key] = "";
          message[key].as_string().append(value.as_string());
        }
      }
      if (!part.at("finish_reason").is_null()) choice["finish_reason"] = part.at("finish_reason");
    }
  }
  json::array out;
  for (auto& [index, choice] : choices) out.push_back(std::move(choice));
  return out;
}

// What a message says, with what is empty left out, and ids, which belong to one answer.
inline json::object essence(json::object message) {
  for (const char* key : {"content", "reasoning_content"}) {
    const json::value* value = message.if_contains(key);
    if (value && (value->is_null() || value->as_string().empty())) message.erase(key);
  }
  if (json::value* calls = message.if_contains("tool_calls")) {
    for (json::value& call : calls->as_array()) call.as_object().erase("id");
  }
  return message;
}

// The message of the first choice; the stream must say the same.
inline json::object chat(const LiveServer& server, json::object body, std::string* reason = nullptr,
                         json::object* usage = nullptr) {
  const json::value whole = server.ask("/v1/chat/completions", body);
  body["stream"] = true;
  body["stream_options"] = json::object{{"include_usage", true}};
  json::object streamed_usage;
  bool done = false;
  const json::array choices = joined(server.stream("/v1/chat/completions", body), streamed_usage, done);
  EXPECT_TRUE(done);
  EXPECT_EQ(choices.size(), whole.at("choices").as_array().size());
  for (size_t i = 0; i < choices.size(); ++i) {
    const json::value& choice = whole.at("choices").at(i);
    EXPECT_EQ(essence(choices[i].at("message").as_object()), essence(choice.at("message").as_object()));
    EXPECT_EQ(choices[i].at("finish_reason"), choice.at("finish_reason"));
  }
  EXPECT_EQ(streamed_usage, whole.at("usage").as_object());
  if (reason) *reason = whole.at("choices").at(0).at("finish_reason").as_string();
  if (usage) *usage = whole.at("usage").as_object();
  return whole.at("choices").at(0).at("message").as_object();
}

}  // namespace carpool
