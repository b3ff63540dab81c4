#include "server/reply_openai.h"

#include <fmt/format.h>

#include <algorithm>

namespace carpool {

json::array id_list(std::span<const int> ids) { return json::array(ids.begin(), ids.end()); }

json::object OpenAiReply::frame(const char* object) const {
  const ReplyHead& head = setup().head;
  json::object out;
  out["id"] = head.id;
  out["object"] = object;
  out["created"] = head.created;
  out["model"] = head.model;
  out["system_fingerprint"] = head.fingerprint;
  return out;
}

json::object OpenAiReply::usage() const {
  size_t prompt = 0, completion = 0;
  int64_t cached = 0;
  for (const Prompt& p : setup().prompts) prompt += p.ids.size();
  for (int i = 0; i < choices(); ++i) {
    completion += choice(i).tokens.size();
    if (i % generation().n == 0) cached += choice(i).stats.cached_tokens;
  }
  json::object out;
  out["prompt_tokens"] = prompt;
  out["completion_tokens"] = completion;
  out["total_tokens"] = prompt + completion;
  out["prompt_tokens_details"] = json::object{{"cached_tokens", cached}};
  if (splits_reasoning()) {
    int64_t reasoning = 0;
    for (int i = 0; i < choices(); ++i) reasoning += choice(i).reasoning_tokens;
    out["completion_tokens_details"] = json::object{{"reasoning_tokens", reasoning}};
  }
  return out;
}

bool OpenAiReply::ends_stream(int index) const {
  for (int i = 0; i < choices(); ++i) {
    if (i != index && !choice(i).ended) return false;
  }
  return choice(index).finished();
}

void OpenAiReply::push(json::object choice_object, bool last, Chunks& out) const {
  json::object object = frame(part_name_);
  object["choices"].emplace_array().push_back(std::move(choice_object));
  if (generation().continuous_usage) {
    object["usage"] = usage();
  } else if (generation().include_usage) {
    object["usage"] = nullptr;
  }
  if (last && !generation().include_usage) object["carpool"] = report();
  out.push_back({json::serialize(object)});
}

void OpenAiReply::end(Chunks& out) {
  if (generation().include_usage) {
    json::object last = frame(part_name_);
    last["choices"].emplace_array();
    last["usage"] = usage();
    last["carpool"] = report();
    out.push_back({json::serialize(last)});
  }
  out.push_back({"[DONE]"});
}

json::value OpenAiReply::whole_of(json::array list) const {
  json::object out = frame(whole_name_);
  out["choices"] = std::move(list);
  out["usage"] = usage();
  out["carpool"] = report();
  return out;
}

void OpenAiReply::add_reasons(const Choice& c, json::object& out) const {
  out["finish_reason"] = finish_reason(c);
  out["stop_reason"] = stop_reason(c);
}

void OpenAiReply::add_token_ids(const Choice& c, json::object& out) const {
  if (!generation().return_token_ids) return;
  out["token_ids"] = id_list(std::span(c.tokens).subspan(c.sent_tokens));
  if (!c.started) out["prompt_token_ids"] = id_list(prompt_of(c).ids);
}

json::value OpenAiReply::stop_reason(const Choice& c) const {
  if (!c.matched.empty()) return json::value(c.matched);
  const std::vector<int>& asked = generation().request.stop_ids;
  const bool by_request = std::find(asked.begin(), asked.end(), c.matched_token) != asked.end();
  return by_request ? json::value(c.matched_token) : json::value(nullptr);
}

json::value OpenAiReply::prompt_logprobs(const Choice& c) const {
  if (generation().prompt_logprobs < 0 || !c.prompt_logprobs) return nullptr;
  json::array out;
  for (const TokenLogprobs& scores : *c.prompt_logprobs) {
    if (out.empty()) {  // nothing comes before the first token
      out.push_back(nullptr);
      continue;
    }
    json::object entry;
    const auto put = [&](const TokenScore& score, json::value rank) {
      json::object value;
      value["logprob"] = finite_logprob(score.logprob);
      value["rank"] = std::move(rank);
      value["decoded_token"] = token_name(setup().tokenizer, score.token, false);
      entry.emplace(fmt::format("{}", score.token), std::move(value));
    };
    const size_t n = std::min(scores.top.size(), static_cast<size_t>(generation().prompt_logprobs));
    for (size_t i = 0; i < n; ++i) put(scores.top[i], i + 1);
    put(scores.chosen, nullptr);
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace carpool
