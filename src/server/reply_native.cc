// SGLang's /generate: text, output_ids and meta_info; the text of a stream is cumulative, as its bench_serving expects.
//
// What repeats itself in every chunk grows with the square of the tokens. So the prompt's scores are in the first and
// the last chunk of a choice alone, and behind kFreely bytes a chunk comes with every sixteenth more tokens: from there
// on all chunks together have at most 17 times the bytes of the last.
#include <algorithm>

#include "base/time.h"
#include "server/reply.h"

namespace carpool {
namespace {

constexpr size_t kFreely = size_t{64} << 20;  // bytes of a stream: about 5000 tokens, one by one and without scores
constexpr size_t kGrowth = 16;

class NativeReply : public Reply {
 public:
  NativeReply(Setup setup, NativeOptions options) : Reply(std::move(setup)), options_(std::move(options)) {}

  void end(Chunks& out) override { out.push_back({"[DONE]"}); }
  bool cumulative() const override { return true; }

  json::value whole() override {
    json::array list;
    for (int i = 0; i < choices(); ++i) {
      json::object object = object_of(i);
      object["carpool"] = report();
      list.push_back(std::move(object));
    }
    if (!options_.list) return list[0];
    return list;
  }

 protected:
  void chunk(int index, Chunks& out) override {
    json::object object = object_of(index);
    if (options_.list) object["index"] = index;
    bool last = finished();
    for (int i = 0; i < choices(); ++i) last = last && (i == index || choice(i).ended);
    if (last) object["carpool"] = report();
    out.push_back({json::serialize(object)});
    said_ += out.back().data.size();
  }
  bool due(const Choice& c) const override {
    return said_ < kFreely || (c.tokens.size() - c.sent_tokens) * kGrowth >= c.tokens.size();
  }

 private:
  json::object object_of(int index) const {
    const Choice& c = choice(index);
    json::object out;
    out["text"] = c.text;
    out["output_ids"] = json::array(c.tokens.begin(), c.tokens.end());
    json::object& meta = out["meta_info"].emplace_object();
    meta["id"] = options_.ids[static_cast<size_t>(index)];
    meta["finish_reason"] = finish(c);
    meta["prompt_tokens"] = prompt_of(c).ids.size();
    meta["completion_tokens"] = c.tokens.size();
    meta["cached_tokens"] = c.stats.cached_tokens;
    meta["reasoning_tokens"] = 0;
    meta["weight_version"] = "default";
    meta["num_retractions"] = c.stats.preemptions;
    if (c.finished()) meta["e2e_latency"] = now_seconds() - setup().head.received;
    if (options_.return_logprob) add_logprobs(c, meta, !c.started || c.finished());
    return out;
  }

  static json::value finish(const Choice& c) {
    json::object out;
    switch (c.finish) {
      case FinishReason::kStop:
        out["type"] = "stop";
        out["matched"] = !c.matched.empty()     ? json::value(c.matched)
                         : c.matched_token >= 0 ? json::value(c.matched_token)
                                                : json::value(nullptr);  // the structure was whole
        return out;
      case FinishReason::kLength:
        out["type"] = "length";
        out["length"] = c.tokens.size();
        return out;
      case FinishReason::kCancelled:
        out["type"] = "abort";
        out["message"] = "aborted";
        return out;
      case FinishReason::kNone:
      case FinishReason::kNumericalError:
      case FinishReason::kConstraintError:
        break;
    }
    return nullptr;
  }

  // [logprob, id, text or null]
  json::array triple(const TokenScore& score, bool has_score) const {
    json::array out;
    out.push_back(has_score ? json::value(finite_logprob(score.logprob)) : json::value(nullptr));
    out.push_back(score.token);
    out.push_back(options_.return_text ? json::value(token_name(setup().tokenizer, score.token, false))
                                       : json::value(nullptr));
    return out;
  }

  void append(const TokenLogprobs& scores, bool has_score, json::array& chosen, json::array& top) const {
    chosen.push_back(triple(scores.chosen, has_score));
    if (options_.top_logprobs == 0) return;
    if (!has_score) {
      top.push_back(nullptr);
      return;
    }
    json::array best;
    const size_t n = std::min(scores.top.size(), static_cast<size_t>(options_.top_logprobs));
    for (size_t i = 0; i < n; ++i) best.push_back(triple(scores.top[i], true));
    top.push_back(std::move(best));
  }

  void add_logprobs(const Choice& c, json::object& meta, bool with_prompt) const {
    json::array input, input_top, output, output_top;
    if (with_prompt && c.prompt_logprobs && options_.logprob_start >= 0) {
      const std::vector<TokenLogprobs>& scores = *c.prompt_logprobs;
      for (auto i = static_cast<size_t>(options_.logprob_start); i < scores.size(); ++i) {
        append(scores[i], i > 0, input, input_top);
      }
    }
    for (const auto& scores : c.logprobs) append(*scores, true, output, output_top);
    if (with_prompt) meta["input_token_logprobs"] = std::move(input);
    meta["output_token_logprobs"] = std::move(output);
    if (options_.top_logprobs == 0) return;
    if (with_prompt) meta["input_top_logprobs"] = std::move(input_top);
    meta["output_top_logprobs"] = std::move(output_top);
  }

  const NativeOptions options_;
  size_t said_ = 0;  // bytes of all chunks
};

}  // namespace

std::unique_ptr<Reply> native_reply(Reply::Setup setup, NativeOptions options) {
  return std::make_unique<NativeReply>(std::move(setup), std::move(options));
}

}  // namespace carpool
