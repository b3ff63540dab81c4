// POST /tokenize and /detokenize, GET /tokenizer_info: the tokenizer for clients that have none, such as lm-eval.
//
// Unlike prompts of generating endpoints, text here may spell control tokens ("parse_special": false turns that off):
// clients ask this way which id a token has. Shapes are vLLM's; "content" is llama.cpp's name for "prompt".
//
// Answers are written as text on the worker threads, token by token and within a limit: a tree of values would take ten
// times the memory, and writing one down would hold up an I/O thread.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/chat.h"
#include "server/fields.h"
#include "server/reply.h"
#include "server/router.h"

namespace carpool {
namespace {

constexpr size_t kMostIds = size_t{1} << 20;     // of all texts of a request, or twice the context where that is more
constexpr size_t kMostBytes = size_t{16} << 20;  // of an answer

size_t most_ids(const Served& served) {
  return std::max(kMostIds, 2 * static_cast<size_t>(std::max(served.config.context, 0)));
}

void check_count(const char* param, size_t ids, const Served& served) {
  if (ids <= most_ids(served)) return;
  throw bad_request("too_many_items",
                    fmt::format("{} has at least {} tokens, the limit is {}", param, ids, most_ids(served)), param);
}

// JSON in the making.
class AnswerText {
 public:
  // `param` is what is too long when the answer is.
  explicit AnswerText(const char* param) : param_(param) {}
  AnswerText& add(std::string_view piece) {
    if (piece.size() > kMostBytes - text_.size()) {
      throw bad_request("too_many_items",
                        fmt::format("the answer to {} would have more than {} bytes", param_, kMostBytes), param_);
    }
    text_ += piece;
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  const char* param_;
  std::string text_;
};

struct Encoded {
  const char* param;
  std::vector<std::vector<int>> lists;
  bool list = false;
};

Encoded encode_texts(const Fields& fields, const Served& served) {
  const char* name = fields.has("content") && !fields.has("prompt") ? "content" : "prompt";
  const Prompts prompts = read_texts(fields.required(name), name);
  const bool add_special = fields.boolean_or("add_special_tokens", fields.boolean_or("add_special", true));
  const bool parse_special = fields.boolean_or("parse_special", true);
  Encoded out{name, {}, prompts.list};
  size_t ids = 0;
  for (const Prompt& prompt : prompts.items) {
    try {
      out.lists.push_back(served.tokenizer.encode(prompt.text, add_special, parse_special));
    } catch (const Error&) {  // its sentence may quote the text
      throw invalid_value(name, fmt::format("{} cannot be encoded: the tokenizer's expression takes too long", name));
    }
    ids += out.lists.back().size();
    check_count(name, ids, served);
  }
  return out;
}

Encoded encode_any(const json::object& body, const Served& served) {
  if (!Fields(body).has("messages")) return encode_texts(Fields(body), served);
  const Prompt prompt =
      encode_prompt(served.tokenizer, render(served.chat_template, served.tokenizer_config, read_chat_messages(body)));
  check_count("messages", prompt.ids.size(), served);
  return {"messages", {prompt.ids}, false};
}

// What `add_one` writes for one text, a list of that for a list.
template <typename F>
void add_per_text(const Encoded& encoded, AnswerText& out, F add_one) {
  if (!encoded.list) return add_one(encoded.lists[0]);
  const char* before = "[";
  for (const std::vector<int>& ids : encoded.lists) {
    out.add(std::exchange(before, ","));
    add_one(ids);
  }
  out.add("]");
}

// The list of what `text_of` says of each id.
template <typename F>
void add_list(const std::vector<int>& ids, AnswerText& out, F text_of) {
  out.add("[");
  for (size_t i = 0; i < ids.size(); ++i) out.add(i > 0 ? "," : "").add(text_of(ids[i]));
  out.add("]");
}

std::string tokenize(const Call& call, const Served& served) {
  const json::object body = read_body(call.exchange.request().body);
  call.service.check_model(Fields(body).string("model"));
  const bool with_names = Fields(body).boolean_or("return_token_strs", false);
  const Encoded encoded = encode_any(body, served);
  AnswerText out(encoded.param);
  out.add("{\"count\":");
  add_per_text(encoded, out, [&](const std::vector<int>& ids) { out.add(std::to_string(ids.size())); });
  out.add(fmt::format(",\"max_model_len\":{},\"tokens\":", served.config.context));
  add_per_text(encoded, out,
               [&](const std::vector<int>& ids) { add_list(ids, out, [](int id) { return std::to_string(id); }); });
  out.add(",\"token_strs\":");
  if (!with_names) return out.add("null}").take();
  add_per_text(encoded, out, [&](const std::vector<int>& ids) {
    add_list(ids, out, [&](int id) { return json::serialize(token_name(served.tokenizer, id, false)); });
  });
  return out.add("}").take();
}

std::string detokenize(const Call& call, const Served& served) {
  const json::object body = read_body(call.exchange.request().body);
  const Fields fields(body);
  call.service.check_model(fields.string("model"));
  fields.required("tokens");
  const std::vector<int> ids = read_token_ids(*fields.array("tokens", most_ids(served)), "tokens", served.config.vocab);
  // A token may be long, and the text stands twice in the answer: what cannot fit is not decoded.
  AnswerText out("tokens");
  size_t bytes = 0;
  const bool skip_special = fields.boolean_or("skip_special_tokens", false);
  for (const int id : ids) {
    if (skip_special && served.tokenizer.is_special(id)) continue;
    bytes += served.tokenizer.token_bytes(id).size();
    if (2 * bytes > kMostBytes) {
      throw bad_request("too_many_items", fmt::format("the text of tokens has more than {} bytes", kMostBytes / 2),
                        "tokens");
    }
  }
  const std::string text = json::serialize(served.tokenizer.decode(ids, skip_special));
  return out.add("{\"prompt\":").add(text).add(",\"text\":").add(text).add("}").take();
}

using Work = std::string (*)(const Call&, const Served&);

boost::asio::awaitable<void> answer_with(Call& call, Work make) {
  const Served& served = call.service.served();
  auto work = [&call, &served, make] { return make(call, served); };
  Response response;
  response.body = co_await call.service.offload(call.caller, work);
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
