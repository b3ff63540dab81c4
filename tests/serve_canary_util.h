// Requests to a `carpool serve dummy:canary` process: bodies, the text that must come, and the state it is in.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/canary.h"
#include "serve_process_util.h"

namespace carpool::end_to_end {

// `n` token ids that no other `which` has.
inline std::vector<int> canary_prompt(int which, int n) {
  std::vector<int> ids;
  for (int i = 0; i < n; ++i) ids.push_back((which * 101 + i * 7 + i * i % 13) % 251 + 4);
  ids[0] = which % 250 + 4;
  return ids;
}

inline std::string canary_text(const std::vector<int>& prompt, int n) {
  const std::vector<int> tokens = CanaryModel::expected(prompt, n);
  return {tokens.begin(), tokens.end()};
}

struct Ask {
  std::vector<int> prompt;
  int tokens = 16;
  bool stream = true;
  bool native = true;  // /generate, else /v1/completions
  std::string name = {};

  std::string text() const { return canary_text(prompt, tokens); }
  std::string bytes() const {
    json::object body, sampling;
    const json::array ids(prompt.begin(), prompt.end());
    std::string headers;
    if (native) {
      sampling["temperature"] = 0;
      sampling["max_new_tokens"] = tokens;
      body["input_ids"] = ids;
      body["sampling_params"] = sampling;
      if (!name.empty()) body["rid"] = name;
    } else {
      body["prompt"] = ids;
      body["temperature"] = 0;
      body["max_tokens"] = tokens;
      if (!name.empty()) headers = "X-Request-Id: " + name + "\r\n";
    }
    body["stream"] = stream;
    return request_text("POST", native ? "/generate" : "/v1/completions", json::serialize(body), headers);
  }
};

// What came of an Ask.
struct Got {
  int status = 0;
  std::string text, finish;
  bool done = false;  // a stream said [DONE]; an answer in one piece always does
};

inline void take(const Ask& ask, const json::value& piece, Got& got) {
  if (ask.native) {
    got.text = std::string(piece.at("text").as_string());
    const json::value& finish = piece.at("meta_info").at("finish_reason");
    if (finish.is_object()) got.finish = std::string(finish.at("type").as_string());
    return;
  }
  if (piece.at("choices").as_array().empty()) return;
  const json::value& choice = piece.at("choices").at(0);
  got.text += std::string(choice.at("text").as_string());
  if (choice.at("finish_reason").is_string()) got.finish = std::string(choice.at("finish_reason").as_string());
}

// Reads the answer to `ask`, which was sent: all of it, or only its first `most` events.
inline Got read_answer(RawClient& client, const Ask& ask, int most = 1 << 30) {
  Got got;
  if (!ask.stream) {
    const RawResponse response = client.read_response();
    got.status = response.status;
    got.done = true;
    if (got.status == 200) take(ask, parse_json(response.body, "answer"), got);
    return got;
  }
  got.status = client.read_head().status;
  for (int i = 0; i < most; ++i) {
    const auto event = client.read_event();
    if (!event) break;
    if (event->data == "[DONE]") {
      got.done = true;
    } else if (!event->data.empty()) {
      take(ask, parse_json(event->data, "event"), got);
    }
  }
  return got;
}

// The rest of a stream that read_answer began.
inline void read_rest(RawClient& client, const Ask& ask, Got& got) {
  while (const auto event = client.read_event()) {
    if (event->data == "[DONE]") {
      got.done = true;
    } else if (!event->data.empty()) {
      take(ask, parse_json(event->data, "event"), got);
    }
  }
}

struct EngineState {
  int64_t running = 0, waiting = 0, blocks = 0, free = 0, cached = 0;
  bool idle() const { return running == 0 && waiting == 0; }
  bool whole() const { return free + cached == blocks; }
};

inline EngineState engine_state(ServeProcess& server) {
  const json::object info = json_of(server.get("/server_info"));
  const json::value& state = info.at("internal_states").at(0);
  const auto number = [&state](const char* name) { return state.at(name).to_number<int64_t>(); };
  return {number("num_running_reqs"), number("num_queue_reqs"), number("kv_blocks"), number("kv_blocks_free"),
          number("kv_blocks_cached")};
}

// Looks until `condition` holds; a failure of the test when it never does.
inline EngineState wait_for(ServeProcess& server, const std::string& what,
                            const std::function<bool(const EngineState&)>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + ServeProcess::kPatience;
  EngineState state = engine_state(server);
  while (!condition(state)) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "never " << what << ": " << state.running << " running, " << state.waiting << " waiting, "
                    << state.free << " + " << state.cached << " of " << state.blocks << " blocks\n"
                    << server.err();
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    state = engine_state(server);
  }
  return state;
}

// Idle, and every block is free or in the prefix cache; then free, when the cache is emptied.
inline void expect_nothing_left(ServeProcess& server) {
  const EngineState state = wait_for(server, "idle", [](const EngineState& s) { return s.idle(); });
  EXPECT_TRUE(state.whole()) << state.free << " + " << state.cached << " of " << state.blocks << " blocks";
  EXPECT_EQ(server.post("/flush_cache", "").status, 200);
  const EngineState flushed = engine_state(server);
  EXPECT_EQ(flushed.free, flushed.blocks);
  EXPECT_EQ(flushed.cached, 0);
}

}  // namespace carpool::end_to_end
