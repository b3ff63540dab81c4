// POST /tokenize and /detokenize, GET /tokenizer_info: the tokenizer for clients that have none, such as lm-eval.
//
// Unlike prompts of generating endpoints, text here may spell control tokens ("parse_special": false turns that off):
// clients ask this way which id a token has. Shapes are vLLM's; "content" is llama.cpp's name for "prompt".
#include <fmt/format.h>

#include "server/chat.h"
#include "server/fields.h"
#include "server/reply.h"
#include "server/router.h"

namespace carpool {
namespace {

struct Encoded {
  std::vector<std::vector<int>> lists;
  bool list = false;
};

Encoded encode_texts(const Fields& fields, const Served& served) {
  const char* name = fields.has("content") && !fields.has("prompt") ? "content" : "prompt";
  const Prompts prompts = read_texts(fields.required(name), name);
  const bool add_special = fields.boolean_or("add_special_tokens", fields.boolean_or("add_special", true));
  const bool parse_special = fields.boolean_or("parse_special", true);
  Encoded out{{}, prompts.list};
  for (const Prompt& prompt : prompts.items) {
    try {
      out.lists.push_back(served.tokenizer.encode(prompt.text, add_special, parse_special));
    } catch (const Error&) {  // its sentence may quote the text
      throw invalid_value(name, fmt::format("{} cannot be encoded: the tokenizer's expression takes too long", name));
    }
  }
  return out;
}

Encoded encode_any(const json::object& body, const Served& served) {
  if (!Fields(body).has("messages")) return encode_texts(Fields(body), served);
  return {
      {encode_prompt(served.tokenizer, render(served.chat_template, served.tokenizer_config, read_chat_messages(body)))
           .ids},
      false};
}

// One value for one text, a list of them for a list.
template <typename F>
json::value per_text(const Encoded& encoded, F make) {
  if (!encoded.list) return make(encoded.lists[0]);
  json::array out;
  for (const std::vector<int>& ids : encoded.lists) out.push_back(make(ids));
  return out;
}

json::object tokenize(const Call& call, const Served& served) {
  const json::object body = read_body(call.exchange.request().body);
  call.service.check_model(Fields(body).string("model"));
  const Encoded encoded = encode_any(body, served);
  json::object out;
  out["count"] = per_text(encoded, [](const std::vector<int>& ids) { return json::value(ids.size()); });
  out["max_model_len"] = served.config.context;
  out["tokens"] =
      per_text(encoded, [](const std::vector<int>& ids) { return json::value(json::array(ids.begin(), ids.end())); });
  out["token_strs"] = nullptr;
  if (Fields(body).boolean_or("return_token_strs", false)) {
    out["token_strs"] = per_text(encoded, [&](const std::vector<int>& ids) {
      json::array names;
      for (const int id : ids) names.emplace_back(token_name(served.tokenizer, id, false));
      return json::value(std::move(names));
    });
  }
  return out;
}

json::object detokenize(const Call& call, const Served& served) {
  const json::object body = read_body(call.exchange.request().body);
  const Fields fields(body);
  call.service.check_model(fields.string("model"));
  fields.required("tokens");
  const std::vector<int> ids = read_token_ids(*fields.array("tokens", SIZE_MAX), "tokens", served.config.vocab);
  const std::string text = served.tokenizer.decode(ids, fields.boolean_or("skip_special_tokens", false));
  json::object out;
  out["prompt"] = text;
  out["text"] = text;
  return out;
}

using Work = json::object (*)(const Call&, const Served&);

boost::asio::awaitable<void> answer_with(Call& call, Work make) {
  const Served& served = call.service.served();
  auto work = [&call, &served, make] { return make(call, served); };
  const json::object out = co_await call.service.offload(call.caller, work);
  Response response = json_response(out);
  co_await call.exchange.respond(std::move(response));
}

json::value or_null(const std::optional<std::string>& text) { return text ? json::value(*text) : json::value(nullptr); }

}  // namespace

boost::asio::awaitable<void> post_tokenize(Call& call) { co_await answer_with(call, tokenize); }

boost::asio::awaitable<void> post_detokenize(Call& call) { co_await answer_with(call, detokenize); }

boost::asio::awaitable<void> get_tokenizer_info(Call& call) {
  const Served& served = call.service.served();
  const TokenizerConfig& config = served.tokenizer_config;
  json::object out;
  out["tokenizer_class"] = "PreTrainedTokenizerFast";
  out["vocab_size"] = served.tokenizer.vocab_size();
  out["model_max_length"] = served.config.context;
  out["bos_token"] = or_null(config.bos_token);
  out["eos_token"] = or_null(config.eos_token);
  out["pad_token"] = or_null(config.eos_token);
  out["chat_template"] = or_null(config.chat_template);
  Response response = json_response(out);
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
