// Clients that leave and requests that are aborted, in every state of a request, against the real process: what they
// held is free again, and nobody else notices. Known problems T27 to T31, catalogue H17 and H18.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "serve_canary_util.h"

namespace carpool::end_to_end {
namespace {

enum class State { kQueued, kPrefill, kDecode };
const char* name(State state) {
  return state == State::kQueued ? "queued" : state == State::kPrefill ? "prefill" : "decode";
}

// Two run at once, prompts take 4 tokens per step, and steps take long enough to be met in the middle.
const std::vector<std::string> kSlowCanary = {"dummy:canary,step_us=3000,context=20480",
                                              "--max-running-requests",
                                              "2",
                                              "--chunked-prefill-size",
                                              "4",
                                              "--kv-tokens",
                                              "81920"};
constexpr int kMany = 16000;  // tokens that nobody waits for: 12 seconds of a prompt, 48 of an answer

// A request that stays in `state` until it is ended.
Ask ask_for(State state, bool stream, bool native, int which) {
  return {canary_prompt(which, state == State::kPrefill ? kMany : 20), state == State::kPrefill ? 16 : kMany, stream,
          native, "ask-" + std::to_string(which)};
}

// Streams that run meanwhile, and must not notice anything.
class Others {
 public:
  Others(ServeProcess& server, int n, int first) : server_(server) {
    for (int i = 0; i < n; ++i) {
      asks_.push_back({canary_prompt(first + i, 33), kMany, true, i % 2 == 0, "other-" + std::to_string(first + i)});
      clients_.push_back(std::make_unique<RawClient>(server.port(), 300));
      clients_.back()->send(asks_.back().bytes());
      got_.push_back(read_answer(*clients_.back(), asks_.back(), 2));
    }
  }
  // Ends them; until then they said what they had to.
  void expect_right() {
    for (size_t i = 0; i < asks_.size(); ++i) {
      EXPECT_EQ(server_.post("/abort_request", R"({"rid":")" + asks_[i].name + R"("})").status, 200);
      const size_t before = got_[i].text.size();
      read_rest(*clients_[i], asks_[i], got_[i]);
      EXPECT_GT(got_[i].text.size(), before) << "it went on";
      EXPECT_EQ(got_[i].text, asks_[i].text().substr(0, got_[i].text.size()));
      EXPECT_TRUE(got_[i].done);
    }
  }

 private:
  ServeProcess& server_;
  std::vector<Ask> asks_;
  std::vector<std::unique_ptr<RawClient>> clients_;
  std::vector<Got> got_;
};

// Sends `ask` and waits until it is in `state`, beside `others` that run.
Got bring_to(ServeProcess& server, RawClient& client, const Ask& ask, State state, int others) {
  client.send(ask.bytes());
  wait_for(server, name(state),
           [&](const EngineState& s) { return state == State::kQueued ? s.waiting == 1 : s.running == others + 1; });
  Got got;
  if (state != State::kDecode) return got;
  if (ask.stream) return read_answer(client, ask, 3);
  // Nothing is heard of a whole answer before its end. Its prompt takes five steps.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return got;
}

TEST(ServeLeave, ClientsThatLeaveInAnyStateFreeWhatTheyHeld) {
  ServeProcess server(kSlowCanary);
  int which = 10;
  for (const State state : {State::kQueued, State::kPrefill, State::kDecode}) {
    // One runs beside what leaves; two, so that what leaves must wait.
    const int n_others = state == State::kQueued ? 2 : 1;
    Others others(server, n_others, 1000 + which);
    for (const bool stream : {true, false}) {
      for (const bool reset : {true, false}) {
        SCOPED_TRACE(std::string(name(state)) + (stream ? ", stream" : ", whole") + (reset ? ", reset" : ", closed"));
        const Ask ask = ask_for(state, stream, stream == reset, ++which);
        RawClient client(server.port(), 120);
        bring_to(server, client, ask, state, n_others);
        if (reset) {
          client.close_abruptly();
        } else {
          client.half_close();
        }
        wait_for(server, "free again", [&](const EngineState& s) { return s.running == n_others && s.waiting == 0; });
      }
    }
    others.expect_right();
    expect_nothing_left(server);
  }
  EXPECT_EQ(json_of(server.get("/health")).at("status"), "ok");
}

TEST(ServeLeave, AbortsEndARequestInAnyStateAndItsStreamSaysSo) {
  ServeProcess server(kSlowCanary);
  int which = 500;
  for (const State state : {State::kQueued, State::kPrefill, State::kDecode}) {
    const int n_others = state == State::kQueued ? 2 : 1;
    Others others(server, n_others, 2000 + which);
    for (const bool stream : {true, false}) {
      for (const bool native : {true, false}) {
        SCOPED_TRACE(std::string(name(state)) + (stream ? ", stream" : ", whole") + (native ? ", native" : ", openai"));
        const Ask ask = ask_for(state, stream, native, ++which);
        RawClient client(server.port(), 120);
        Got got = bring_to(server, client, ask, state, n_others);
        const RawResponse response = server.post("/abort_request", R"({"rid":")" + ask.name + R"("})");
        EXPECT_EQ(response.status, 200);
        EXPECT_EQ(json_of(response).at("aborted"), 1) << response.body;
        if (ask.stream && got.status == 200) {
          read_rest(client, ask, got);
        } else {
          got = read_answer(client, ask);
        }
        EXPECT_EQ(got.status, 200);
        EXPECT_EQ(got.finish, "abort");
        EXPECT_TRUE(got.done) << "an aborted stream ends as streams end";
        EXPECT_EQ(got.text, ask.text().substr(0, got.text.size()));
        wait_for(server, "free again", [&](const EngineState& s) { return s.running == n_others && s.waiting == 0; });
      }
    }
    others.expect_right();
    expect_nothing_left(server);
  }
}

TEST(ServeLeave, AnAbortMeansExactlyTheOneThatIsNamedAndTwiceIsAsGoodAsOnce) {
  ServeProcess server({"dummy:canary,step_us=2000"});
  const auto abort = [&server](const std::string& rid) {
    const RawResponse response = server.post("/abort_request", R"({"rid":")" + rid + R"("})");
    EXPECT_EQ(response.status, 200);
    return json_of(response).at("aborted").to_number<int>();
  };
  Ask one{canary_prompt(1, 40), 3900, true, true, "job-1"}, ten{canary_prompt(2, 40), 600, true, true, "job-10"};
  Ask longer{canary_prompt(3, 40), 600, true, true, "job-1-and-more"};
  RawClient a(server.port()), b(server.port()), c(server.port());
  a.send(one.bytes());
  b.send(ten.bytes());
  c.send(longer.bytes());
  Got got_a = read_answer(a, one, 2), got_b = read_answer(b, ten, 2), got_c = read_answer(c, longer, 2);
  EXPECT_EQ(abort("job"), 0);
  EXPECT_EQ(abort("job-100"), 0);
  EXPECT_EQ(abort("job-1"), 1);
  read_rest(a, one, got_a);
  EXPECT_EQ(got_a.finish, "abort");
  EXPECT_EQ(abort("job-1"), 0) << "it has ended";
  EXPECT_EQ(abort("never heard of"), 0);
  read_rest(b, ten, got_b);
  read_rest(c, longer, got_c);
  EXPECT_EQ(got_b.text, ten.text());
  EXPECT_EQ(got_c.text, longer.text());
  // The name is free again, and two may have it at once: an abort ends both.
  const Ask again{canary_prompt(4, 40), 8, true, true, "job-1"};
  RawClient d(server.port());
  d.send(again.bytes());
  EXPECT_EQ(read_answer(d, again).text, again.text());
  const Ask left{canary_prompt(5, 40), 3900, true, true, "twins"},
      right{canary_prompt(6, 40), 3900, false, true, "twins"};
  RawClient e(server.port()), f(server.port());
  e.send(left.bytes());
  f.send(right.bytes());
  wait_for(server, "two running", [](const EngineState& s) { return s.running == 2; });
  EXPECT_EQ(abort("twins"), 2);
  EXPECT_EQ(read_answer(e, left).finish, "abort");
  EXPECT_EQ(read_answer(f, right).finish, "abort");
  expect_nothing_left(server);
}

}  // namespace
}  // namespace carpool::end_to_end
