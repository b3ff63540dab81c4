// Anthropic's /v1/messages: one message of blocks (thinking, text, tool_use), whole or as named events.
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
    json::object ping;
    ping["type"] = "ping";
    push(ping, out);
  }

  void end(Chunks& out) override {
    if (blocks_ == 0) begin_block(block_object({AnswerPart::Kind::kContent, "", ""}, true), out);  // never none
    end_block(out);
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
    json::array& content = out["content"].emplace_array();
    for (const AnswerPart& p : choice(0).all_parts()) {
      content.push_back(block_object(p, false));
      if (p.kind == AnswerPart::Kind::kCall) ++calls_;
    }
    if (content.empty()) content.push_back(block_object({AnswerPart::Kind::kContent, "", ""}, false));
    add_stop(out);
    out["usage"] = usage();
    out["carpool"] = report();
    return out;
  }

 protected:
  void chunk(int, Chunks& out) override {
    for (const News& piece : news(choice(0))) {
      if (piece.begins) {
        end_block(out);
        const AnswerPart plain{AnswerPart::Kind::kContent, "", ""};
        begin_block(block_object(piece.part ? *piece.part : plain, true), out);
        if (piece.kind == AnswerPart::Kind::kCall) ++calls_;
      }
      json::object object;
      object["type"] = "content_block_delta";
      object["index"] = blocks_ - 1;
      object["delta"] = delta_object(piece);
      push(object, out);
    }
  }

 private:
  static void push(const json::object& object, Chunks& out) {
    out.push_back({json::serialize(object), std::string(object.at("type").as_string())});
  }

  void begin_block(json::object block, Chunks& out) {
    json::object object;
    object["type"] = "content_block_start";
    object["index"] = blocks_++;
    object["content_block"] = std::move(block);
    push(object, out);
  }

  void end_block(Chunks& out) const {
    if (blocks_ == 0) return;
    push({{"type", "content_block_stop"}, {"index", blocks_ - 1}}, out);
  }

  // `empty`: as it begins, to be filled by deltas. Reasoning has no signature: nobody will ask for one here.
  json::object block_object(const AnswerPart& p, bool empty) const {
    const std::string text = empty ? std::string() : p.text;
    switch (p.kind) {
      case AnswerPart::Kind::kReasoning:
        return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}};
      case AnswerPart::Kind::kContent:
        return {{"type", "text"}, {"text", text}};
      case AnswerPart::Kind::kCall:
        break;
    }
    return {{"type", "tool_use"},
            {"id", call_id("toolu_", 0, calls_, p.name)},
            {"name", p.name},
            {"input", empty ? json::value(json::object()) : parse_json(p.text, "arguments")}};
  }

  static json::object delta_object(const News& piece) {
    switch (piece.kind) {
      case AnswerPart::Kind::kReasoning:
        return {{"type", "thinking_delta"}, {"thinking", piece.text}};
      case AnswerPart::Kind::kContent:
        return {{"type", "text_delta"}, {"text", piece.text}};
      case AnswerPart::Kind::kCall:
        break;
    }
    return {{"type", "input_json_delta"}, {"partial_json", piece.text}};
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
    const char* reason = by_string ? "stop_sequence" : by_model ? "end_turn" : "max_tokens";
    out["stop_reason"] = by_model && c.calls() ? "tool_use" : reason;
    out["stop_sequence"] = by_string ? json::value(c.matched) : json::value(nullptr);
  }

  int blocks_ = 0;  // begun, of a stream
  int calls_ = 0;   // told
};

}  // namespace

std::unique_ptr<Reply> messages_reply(Reply::Setup setup) { return std::make_unique<MessagesReply>(std::move(setup)); }

}  // namespace carpool
