// Anthropic's /v1/messages: one message of one text block, whole or as named events.
//
// Tokens taken from the prefix cache are counted apart (cache_read_input_tokens), as that API does; message_start, sent
// before they are known, counts them as input. `carpool` is in the message, and in message_delta of a stream.
#include "server/reply.h"

namespace carpool {
namespace {

class MessagesReply : public Reply {
 public:
  explicit MessagesReply(Setup setup) : Reply(std::move(setup)) {}

  void start(Chunks& out) override {
    json::object begun;
    begun["type"] = "message_start";
    json::object& message = begun["message"].emplace_object();
    message = head();
    message["content"].emplace_array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = usage();
    push(begun, out);
    json::object block;
    block["type"] = "content_block_start";
    block["index"] = 0;
    block["content_block"] = text_object("text", "");
    push(block, out);
    json::object ping;
    ping["type"] = "ping";
    push(ping, out);
  }

  void end(Chunks& out) override {
    json::object block;
    block["type"] = "content_block_stop";
    block["index"] = 0;
    push(block, out);
    json::object delta;
    delta["type"] = "message_delta";
    add_stop(delta["delta"].emplace_object());
    delta["usage"] = usage();
    delta["carpool"] = report();
    push(delta, out);
    json::object stop;
    stop["type"] = "message_stop";
    push(stop, out);
  }

  json::value whole() override {
    json::object out = head();
    out["content"].emplace_array().push_back(text_object("text", choice(0).text));
    add_stop(out);
    out["usage"] = usage();
    out["carpool"] = report();
    return out;
  }

 protected:
  void chunk(int, Chunks& out) override {
    const std::string text = choice(0).text.substr(choice(0).sent_text);
    if (text.empty()) return;
    json::object object;
    object["type"] = "content_block_delta";
    object["index"] = 0;
    object["delta"] = text_object("text_delta", text);
    push(object, out);
  }

 private:
  static void push(const json::object& object, Chunks& out) {
    out.push_back({json::serialize(object), std::string(object.at("type").as_string())});
  }

  static json::object text_object(const char* type, const std::string& text) {
    json::object out;
    out["type"] = type;
    out["text"] = text;
    return out;
  }

  json::object head() const {
    json::object out;
    out["id"] = setup().head.id;
    out["type"] = "message";
    out["role"] = "assistant";
    out["model"] = setup().head.model;
    return out;
  }

  json::object usage() const {
    const Choice& c = choice(0);
    const size_t prompt = prompt_of(c).ids.size();
    const auto cached = static_cast<size_t>(c.stats.cached_tokens);
    json::object out;
    out["input_tokens"] = prompt - cached;
    out["cache_creation_input_tokens"] = 0;
    out["cache_read_input_tokens"] = cached;
    out["output_tokens"] = c.tokens.size();
    return out;
  }

  // An aborted message ends as one that ran out of tokens: the API has no word of its own.
  void add_stop(json::object& out) const {
    const Choice& c = choice(0);
    const bool by_string = c.finish == FinishReason::kStop && !c.matched.empty();
    const bool by_model = c.finish == FinishReason::kStop && c.matched.empty();
    out["stop_reason"] = by_string ? "stop_sequence" : by_model ? "end_turn" : "max_tokens";
    out["stop_sequence"] = by_string ? json::value(c.matched) : json::value(nullptr);
  }
};

}  // namespace

std::unique_ptr<Reply> messages_reply(Reply::Setup setup) { return std::make_unique<MessagesReply>(std::move(setup)); }

}  // namespace carpool
