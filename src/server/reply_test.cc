// Answers of the four APIs from made-up events: that a stream says what the whole says, and the shapes clients read.
#include "server/reply.h"

#include <gtest/gtest.h>

#include <random>

#include "server/api_error.h"
#include "text/dummy_tokenizer.h"
#include "text/stream_decoder.h"

namespace carpool {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer made = make_dummy_tokenizer(300);
  return made;
}

std::vector<int> bytes_of(const std::string& text) {
  return tokenizer().encode(text, /*add_special=*/false, /*parse_special=*/false);
}

std::shared_ptr<const TokenLogprobs> scores_of(int token) {
  TokenLogprobs s{{token, -0.25f * static_cast<float>(token % 7)}, {}};
  for (int i = 0; i < 3; ++i) s.top.push_back({(token + i) % 256, -0.125f * static_cast<float>(i + 1)});
  return std::make_shared<TokenLogprobs>(s);
}

// The events of a request that says `text`, byte by byte, and ends as `last` says.
std::vector<Event> events_of(const std::string& text, bool logprobs, const std::vector<int>& scored_prompt,
                             Event last) {
  std::vector<Event> events;
  StreamDecoder decoder(tokenizer(), true);
  for (const int token : bytes_of(text)) {
    Event e;
    e.token = token;
    e.text = decoder.push(token);
    if (logprobs) e.logprobs = scores_of(token);
    events.push_back(std::move(e));
  }
  if (last.token >= 0 && logprobs) last.logprobs = scores_of(last.token);
  last.text += decoder.finish();
  auto stats = std::make_shared<RequestStats>();
  stats->cached_tokens = 2;
  stats->rerouted = 5;
  last.stats = stats;
  events.push_back(std::move(last));
  if (!scored_prompt.empty()) {
    auto scores = std::make_shared<std::vector<TokenLogprobs>>();
    for (const int token : scored_prompt) scores->push_back(*scores_of(token));
    events.front().prompt_logprobs = scores;
  }
  return events;
}

Event end_of(FinishReason reason, int token = -1, const std::string& matched = "", int matched_token = -1) {
  Event e;
  e.finish = reason;
  e.token = token;
  e.matched = matched;
  e.matched_token = matched_token;
  return e;
}

struct Case {
  Generation generation;
  std::vector<std::string> prompts = {"Hi \xc3\xa9"};
  std::vector<std::vector<Event>> events;  // of each choice
};

Reply::Setup setup_of(const Case& c) {
  Reply::Setup setup{{"id-1", "m", "fp", 1700000000, 0}, tokenizer(), c.generation, {}, {}};
  for (const std::string& text : c.prompts) setup.prompts.push_back({true, text, bytes_of(text)});
  setup.report = [](const RequestStats& stats) { return json::object{{"rerouted", stats.rerouted}}; };
  return setup;
}

using Maker = std::function<std::unique_ptr<Reply>(Reply::Setup)>;

json::value whole(const Maker& make, const Case& c) {
  const auto reply = make(setup_of(c));
  for (size_t i = 0; i < c.events.size(); ++i) reply->take(static_cast<int>(i), c.events[i]);
  EXPECT_TRUE(reply->finished());
  return reply->whole();
}

// The chunks when the events of all choices come in portions that `seed` decides.
Chunks streamed(const Maker& make, const Case& c, unsigned seed) {
  std::mt19937 random(seed);
  const auto reply = make(setup_of(c));
  Chunks chunks;
  reply->start(chunks);
  std::vector<size_t> taken(c.events.size(), 0);
  while (!reply->finished()) {
    const size_t i = random() % c.events.size();
    const size_t n = std::min<size_t>(random() % 4 + (seed == 0 ? 1000 : 0), c.events[i].size() - taken[i]);
    reply->take(static_cast<int>(i), std::span(c.events[i]).subspan(taken[i], n));
    taken[i] += n;
    reply->flush(static_cast<int>(i), chunks);
  }
  reply->end(chunks);
  return chunks;
}

std::vector<json::object> objects(const Chunks& chunks) {
  std::vector<json::object> out;
  for (const Chunk& chunk : chunks) {
    if (chunk.data != "[DONE]") out.push_back(json::parse(chunk.data).as_object());
  }
  return out;
}

void append(const json::value& from, json::value& to) {
  if (from.is_array()) {
    if (!to.is_array()) to.emplace_array();
    for (const json::value& v : from.get_array()) to.get_array().push_back(v);
  } else if (from.is_object()) {
    if (!to.is_object()) to.emplace_object();
    for (const auto& [key, v] : from.get_object()) append(v, to.get_object()[key]);
  }
}

// What a client of OpenAI's streams puts together: {index: {text, logprobs, finish_reason, ...}} and the rest.
json::object put_together(const Chunks& chunks, bool chat) {
  json::object out;
  for (const json::object& object : objects(chunks)) {
    for (const json::value& value : object.at("choices").as_array()) {
      const json::object& choice = value.as_object();
      json::object& sum = [&]() -> json::object& {
        json::value& v = out[std::to_string(choice.at("index").as_int64())];
        if (!v.is_object()) v.emplace_object()["text"] = "";
        return v.get_object();
      }();
      const json::object& delta = chat ? choice.at("delta").as_object() : choice;
      const char* name = chat ? "content" : "text";
      if (const json::value* text = delta.if_contains(name)) {
        sum["text"] = std::string(sum["text"].as_string()) + std::string(text->as_string());
      }
      append(choice.at("logprobs"), sum["logprobs"]);
      for (const char* key : {"token_ids", "prompt_token_ids"}) {
        if (const json::value* ids = choice.if_contains(key)) append(*ids, sum[key]);
      }
      if (!choice.at("finish_reason").is_null()) {
        EXPECT_FALSE(sum.contains("finish_reason")) << "two ends";
        sum["finish_reason"] = choice.at("finish_reason");
        sum["stop_reason"] = choice.at("stop_reason");
      }
    }
    if (const json::value* usage = object.if_contains("usage"); usage && !usage->is_null()) out["usage"] = *usage;
    EXPECT_FALSE(out.contains("carpool")) << "something after the last chunk";
    if (const json::value* report = object.if_contains("carpool")) out["carpool"] = *report;
  }
  return out;
}

json::object put_together(const json::value& whole, bool chat) {
  json::object out;
  for (const json::value& value : whole.at("choices").as_array()) {
    const json::object& choice = value.as_object();
    json::object sum;
    sum["text"] = chat ? choice.at("message").at("content") : choice.at("text");
    sum["logprobs"] = choice.at("logprobs");
    for (const char* key : {"finish_reason", "stop_reason", "token_ids", "prompt_token_ids"}) {
      if (const json::value* v = choice.if_contains(key)) sum[key] = *v;
    }
    out[std::to_string(choice.at("index").as_int64())] = sum;
  }
  out["usage"] = whole.at("usage");
  out["carpool"] = whole.at("carpool");
  return out;
}

Case everything() {
  Case c;
  c.generation.n = 2;
  c.generation.stream = true;
  c.generation.include_usage = true;
  c.generation.logprobs = 2;
  c.generation.request.stop_ids = {17};
  c.generation.return_token_ids = true;
  c.prompts = {"Hi \xc3\xa9", "two"};
  for (const std::string& p : c.prompts) {
    c.events.push_back(events_of("gr\xc3\xbc\xc3\x9f dich \xe4\xbd\xa0\xf0\x9f\x98\x80!", true, bytes_of(p),
                                 end_of(FinishReason::kStop, 17, "", 17)));
    c.events.push_back(events_of("half \xe4\xbd", true, bytes_of(p), end_of(FinishReason::kLength)));
  }
  return c;
}

TEST(Reply, AStreamSaysWhatTheWholeSaysForEveryBatchingOfEvents) {
  for (const bool chat : {false, true}) {
    Case c = everything();
    c.generation.echo = !chat;
    const Maker make = chat ? Maker(chat_reply) : Maker(completion_reply);
    const json::object expected = put_together(whole(make, c), chat);
    for (unsigned seed = 0; seed < 50; ++seed) {
      const json::object got = put_together(streamed(make, c, seed), chat);
      ASSERT_EQ(got, expected) << json::serialize(got) << "\n" << json::serialize(expected);
    }
  }
}

TEST(Reply, EveryChunkBringsTextUnlessItEndsAChoice) {
  for (const bool chat : {false, true}) {
    Case c = everything();
    for (const json::object& object : objects(streamed(chat ? Maker(chat_reply) : Maker(completion_reply), c, 1))) {
      for (const json::value& value : object.at("choices").as_array()) {
        if (!value.at("finish_reason").is_null()) continue;
        const json::value& text = chat ? value.at("delta").at("content") : value.at("text");
        const bool role = chat && value.at("delta").as_object().contains("role");
        EXPECT_EQ(text.as_string().empty(), role) << json::serialize(object);
      }
    }
  }
}

TEST(Reply, EchoHasTheLegacyShapeThatHarnessesSumUp) {
  Case c;
  c.generation.echo = true;
  c.generation.logprobs = 1;
  c.generation.request.max_tokens = 1;
  c.prompts = {"a\xc3\xa9"};
  c.events = {events_of("b", true, bytes_of("a\xc3\xa9"), end_of(FinishReason::kLength))};
  const json::value object = whole(completion_reply, c);
  const json::value& choice = object.at("choices").at(0);
  EXPECT_EQ(choice.at("text"),
            "a\xc3\xa9"
            "b");
  const json::object& logprobs = choice.at("logprobs").as_object();
  EXPECT_EQ(logprobs.at("tokens"), json::parse(R"(["a","bytes:\\xc3","bytes:\\xa9","b"])"));
  EXPECT_EQ(logprobs.at("text_offset"), json::parse("[0,1,2,2]"));
  const json::array& chosen = logprobs.at("token_logprobs").as_array();
  const json::array& top = logprobs.at("top_logprobs").as_array();
  ASSERT_EQ(chosen.size(), 4u);
  ASSERT_EQ(top.size(), 4u);
  EXPECT_TRUE(chosen[0].is_null());
  EXPECT_TRUE(top[0].is_null());
  for (size_t i = 1; i < 4; ++i) {
    const json::object& dict = top[i].as_object();
    EXPECT_LE(dict.size(), 2u) << "one alternative and the chosen token";
    EXPECT_TRUE(dict.contains(logprobs.at("tokens").at(i).as_string()));
  }
  EXPECT_EQ(object.at("usage").at("prompt_tokens"), 3);
  EXPECT_EQ(object.at("usage").at("completion_tokens"), 1);
}

TEST(Reply, AScoredPromptWithoutGenerationIsWhole) {
  Case c;
  c.generation.echo = true;
  c.generation.logprobs = 0;
  c.generation.request.max_tokens = 0;
  c.prompts = {"abc"};
  c.events = {events_of("", true, bytes_of("abc"), end_of(FinishReason::kLength))};
  const json::value choice = whole(completion_reply, c).at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "abc");
  EXPECT_EQ(choice.at("logprobs").at("tokens").as_array().size(), 3u);
  EXPECT_EQ(choice.at("finish_reason"), "length");
}

TEST(Reply, ChoicesAreInOrderAndCountTheirPromptOnce) {
  Case c = everything();
  const json::value object = whole(completion_reply, c);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(object.at("choices").at(static_cast<size_t>(i)).at("index"), i);
  const auto prompt = bytes_of(c.prompts[0]).size() + bytes_of(c.prompts[1]).size();
  EXPECT_EQ(object.at("usage").at("prompt_tokens"), prompt);
  EXPECT_EQ(object.at("usage").at("prompt_tokens_details").at("cached_tokens"), 4);
  EXPECT_EQ(object.at("carpool").at("rerouted"), 20) << "of all requests";
  EXPECT_EQ(object.at("choices").at(0).at("stop_reason"), 17);
  EXPECT_EQ(object.at("system_fingerprint"), "fp");
}

TEST(Reply, ChatHasTheStreamShapeOfOpenAi) {
  Case c;
  c.generation.stream = true;
  c.generation.include_usage = true;
  c.events = {events_of("ok", false, {}, end_of(FinishReason::kStop, 256, "", 256))};
  const Chunks chunks = streamed(chat_reply, c, 1);
  const std::vector<json::object> o = objects(chunks);
  EXPECT_EQ(chunks.back().data, "[DONE]");
  EXPECT_EQ(o.front().at("object"), "chat.completion.chunk");
  EXPECT_EQ(o.front().at("choices").at(0).at("delta"), json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_TRUE(o.front().at("usage").is_null());
  const json::object& finish = o[o.size() - 2];
  EXPECT_EQ(finish.at("choices").at(0).at("delta"), json::object());
  EXPECT_EQ(finish.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_TRUE(finish.at("choices").at(0).at("stop_reason").is_null()) << "the model's own end";
  EXPECT_TRUE(o.back().at("choices").as_array().empty());
  EXPECT_EQ(o.back().at("usage").at("completion_tokens"), 3) << "with the end token";
  EXPECT_EQ(o.back().at("carpool").at("rerouted"), 5);
}

TEST(Reply, ChatLogprobsHaveBytes) {
  Case c;
  c.generation.logprobs = 2;
  c.events = {events_of("\xc3\xa9", true, {}, end_of(FinishReason::kLength))};
  const json::value object = whole(chat_reply, c);
  const json::array& content = object.at("choices").at(0).at("logprobs").at("content").as_array();
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0].at("bytes"), json::parse("[195]"));
  EXPECT_EQ(content[0].at("token"), "bytes:\\xc3");
  EXPECT_EQ(content[0].at("top_logprobs").as_array().size(), 2u);
}

TEST(Reply, ImpossibleTokensHaveAFiniteLogprob) {
  EXPECT_EQ(finite_logprob(-std::numeric_limits<float>::infinity()), -9999.0);
  EXPECT_EQ(finite_logprob(-1.5f), -1.5);
}

TEST(Reply, NumericalErrorsAreThatRequestsError) {
  Case c;
  const auto reply = chat_reply(setup_of(c));
  try {
    reply->take(0, std::vector<Event>{end_of(FinishReason::kNumericalError)});
    ADD_FAILURE();
  } catch (const ApiError& e) {
    EXPECT_EQ(e.status(), 500);
    EXPECT_EQ(e.code(), "numerical_error");
  }
}

TEST(Reply, NativeTextIsCumulativeAndNoChunkButTheLastRepeatsIt) {
  Case c;
  c.generation.stream = true;
  c.events = {events_of("gr\xc3\xbc\xc3\x9f", false, {}, end_of(FinishReason::kLength))};
  const Maker make = [](Reply::Setup s) { return native_reply(std::move(s), {{"rid-1"}}); };
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Chunks chunks = streamed(make, c, seed);
    EXPECT_EQ(chunks.back().data, "[DONE]");
    std::string before;
    const std::vector<json::object> all = objects(chunks);
    for (size_t i = 0; i < all.size(); ++i) {
      const std::string text(all[i].at("text").as_string());
      EXPECT_EQ(text.substr(0, before.size()), before);
      EXPECT_TRUE(i + 1 == all.size() || text.size() > before.size());
      EXPECT_EQ(all[i].at("meta_info").at("finish_reason").is_null(), i + 1 < all.size());
      EXPECT_EQ(all[i].contains("carpool"), i + 1 == all.size());
      before = text;
    }
    EXPECT_EQ(before, "gr\xc3\xbc\xc3\x9f");
    json::object last = all.back();
    json::object complete = whole(make, c).as_object();
    for (json::object* o : {&last, &complete}) o->at("meta_info").as_object().erase("e2e_latency");
    EXPECT_EQ(last, complete);
  }
}

TEST(Reply, NativeMetaInfoIsThatOfSglang) {
  Case c;
  c.generation.n = 2;
  c.events = {events_of("ab", true, bytes_of(c.prompts[0]), end_of(FinishReason::kStop, -1, "x")),
              events_of("cd", true, bytes_of(c.prompts[0]), end_of(FinishReason::kStop, 256, "", 256))};
  NativeOptions options{{"a", "b"}, true, true, 1, 2, true};
  const json::value list = whole([&](Reply::Setup s) { return native_reply(std::move(s), options); }, c);
  ASSERT_EQ(list.as_array().size(), 2u);
  const json::value& meta = list.at(0).at("meta_info");
  EXPECT_EQ(meta.at("id"), "a");
  EXPECT_EQ(meta.at("finish_reason"), json::parse(R"({"type":"stop","matched":"x"})"));
  EXPECT_EQ(list.at(1).at("meta_info").at("finish_reason"), json::parse(R"({"type":"stop","matched":256})"));
  EXPECT_EQ(meta.at("prompt_tokens"), bytes_of(c.prompts[0]).size());
  EXPECT_EQ(meta.at("completion_tokens"), 2);
  EXPECT_EQ(meta.at("input_token_logprobs").as_array().size(), bytes_of(c.prompts[0]).size() - 2);
  EXPECT_EQ(meta.at("output_token_logprobs").at(1).at(1), 'b');
  EXPECT_EQ(meta.at("output_token_logprobs").at(1).at(2), "b");
  EXPECT_EQ(meta.at("output_top_logprobs").at(0).as_array().size(), 1u);
  EXPECT_GE(meta.at("e2e_latency").as_double(), 0);
}

TEST(Reply, NativeStreamsSayThePromptsScoresInTheFirstAndTheLastChunkAlone) {
  Case c;
  c.generation.stream = true;
  c.generation.request.logprobs = 2;
  c.events = {events_of("abcd", true, bytes_of(c.prompts[0]), end_of(FinishReason::kLength))};
  const NativeOptions options{{"a"}, false, true, 2, 0, false};
  const auto reply = native_reply(setup_of(c), options);
  std::vector<size_t> values;
  std::vector<json::object> all;
  for (const Event& event : c.events[0]) {
    reply->take(0, {&event, 1});
    values.push_back(reply->values_of_next(0));
    Chunks chunks;
    reply->flush(0, chunks);
    ASSERT_EQ(chunks.size(), 1u);
    all.push_back(json::parse(chunks[0].data).as_object());
    EXPECT_EQ(reply->values_of_next(0), 0u) << "there is no more";
  }
  ASSERT_EQ(all.size(), 5u);
  const size_t prompt = bytes_of(c.prompts[0]).size();
  for (size_t i = 0; i < all.size(); ++i) {
    const json::object& meta = all[i].at("meta_info").as_object();
    const bool outer = i == 0 || i + 1 == all.size();
    const size_t tokens = std::min<size_t>(i + 1, 4);
    EXPECT_EQ(meta.contains("input_token_logprobs"), outer);
    EXPECT_EQ(meta.contains("input_top_logprobs"), outer);
    if (outer) EXPECT_EQ(meta.at("input_top_logprobs").as_array().size(), prompt);
    EXPECT_EQ(meta.at("output_token_logprobs").as_array().size(), tokens);
    EXPECT_EQ(values[i], tokens + 3 * (tokens + (outer ? prompt : 0)));
  }
  json::object complete = whole([&](Reply::Setup s) { return native_reply(std::move(s), options); }, c).as_object();
  for (json::object* o : {&all.back(), &complete}) o->at("meta_info").as_object().erase("e2e_latency");
  EXPECT_EQ(all.back(), complete);
}

TEST(Reply, OfAStreamThatDoesNotRepeatItselfANextChunkHasOnlyWhatIsNew) {
  Case c;
  c.generation.stream = true;
  c.generation.logprobs = c.generation.request.logprobs = 1;
  c.events = {events_of("abc", true, bytes_of(c.prompts[0]), end_of(FinishReason::kLength))};
  const auto reply = completion_reply(setup_of(c));
  std::vector<size_t> values;
  for (const Event& event : c.events[0]) {
    reply->take(0, {&event, 1});
    values.push_back(reply->values_of_next(0));
    Chunks chunks;
    reply->flush(0, chunks);
  }
  EXPECT_EQ(values, (std::vector<size_t>{3 + 2 * bytes_of(c.prompts[0]).size(), 3, 3, 0}));
}

// One chunk for each of 3000 scored tokens would be 360 MB.
TEST(Reply, CumulativeStreamsGrowNoLongerWithTheSquareOfTheTokens) {
  Case c;
  c.generation.stream = true;
  c.generation.request.logprobs = 3;
  c.events = {events_of(std::string(3000, 'a'), true, {}, end_of(FinishReason::kLength))};
  const auto reply = native_reply(setup_of(c), {{"a"}, false, true, 3, -1, false});
  size_t bytes = 0, chunks = 0, last = 0;
  for (const Event& event : c.events[0]) {
    Chunks out;
    reply->take(0, {&event, 1});
    reply->flush(0, out);
    for (const Chunk& chunk : out) bytes += last = chunk.data.size();
    chunks += out.size();
    if (bytes < (size_t{64} << 20)) EXPECT_EQ(out.size(), 1u) << "a chunk for each token, while they are few";
  }
  EXPECT_TRUE(reply->finished());
  EXPECT_GT(last, size_t{200'000});
  EXPECT_GT(chunks, 100u);
  EXPECT_GT(bytes, size_t{64} << 20);
  EXPECT_LT(bytes, (size_t{64} << 20) + 17 * last);
}

TEST(Reply, MessagesAreEventsWithNames) {
  Case c;
  c.generation.stream = true;
  c.events = {events_of("hey", false, {}, end_of(FinishReason::kStop, -1, "STOP"))};
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Chunks chunks = streamed(messages_reply, c, seed);
    std::vector<std::string> names;
    std::string text;
    for (const Chunk& chunk : chunks) {
      const json::value object = json::parse(chunk.data);
      EXPECT_EQ(object.at("type"), json::value(chunk.name));
      if (names.empty() || names.back() != chunk.name) names.push_back(chunk.name);
      if (chunk.name == "content_block_delta") text += std::string(object.at("delta").at("text").as_string());
      if (chunk.name == "message_delta") {
        EXPECT_EQ(object.at("delta"), json::parse(R"({"stop_reason":"stop_sequence","stop_sequence":"STOP"})"));
        EXPECT_EQ(object.at("usage").at("output_tokens"), 3);
        EXPECT_EQ(object.at("usage").at("cache_read_input_tokens"), 2);
        EXPECT_EQ(object.at("carpool").at("rerouted"), 5);
      }
    }
    EXPECT_EQ(names, (std::vector<std::string>{"message_start", "ping", "content_block_start", "content_block_delta",
                                               "content_block_stop", "message_delta", "message_stop"}));
    EXPECT_EQ(text, "hey");
  }
  const json::value message = whole(messages_reply, c);
  EXPECT_EQ(message.at("type"), "message");
  EXPECT_EQ(message.at("content"), json::parse(R"([{"type":"text","text":"hey"}])"));
  EXPECT_EQ(message.at("stop_reason"), "stop_sequence");
}

TEST(Reply, TokensCanBeNamedByTheirIds) {
  EXPECT_EQ(token_name(tokenizer(), 97, false), "a");
  EXPECT_EQ(token_name(tokenizer(), 0xc3, false), "bytes:\\xc3");
  EXPECT_EQ(token_name(tokenizer(), 97, true), "token_id:97");
}

}  // namespace
}  // namespace carpool
