// Read first: stream.h.
#include "soak/stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <optional>

#include "base/time.h"
#include "server/http_client_test_util.h"
#include "soak/answer.h"
#include "soak/client.h"

namespace carpool::soak {
namespace {

constexpr double kMostBackoff = 2;    // seconds; what a refused client waits, if it was told to wait longer
constexpr double kLeaveSeconds = 10;  // for the server to close behind a client that has closed its half
constexpr double kStreamed = 0.75;    // of the answers; the others come whole
constexpr int kSmallBuffer = 4096;    // bytes the kernel holds for a slow reader
constexpr size_t kSlowBytes = 1500;   // and how many it takes at a time

class Stream {
 public:
  Stream(asio::io_context& io, const Load& load, Tally& tally, int index)
      : io_(io),
        load_(load),
        tally_(tally),
        index_(index),
        random_(load.seed, static_cast<uint64_t>(index) + 1),
        timer_(io) {}

  asio::awaitable<void> run(double end);

 private:
  struct Asked {
    Case c;
    std::string name;   // for /abort_request
    std::string bytes;  // of the request
    bool streamed = false;
  };

  asio::awaitable<void> one();
  asio::awaitable<void> complete(bool slow);
  asio::awaitable<void> leave();
  asio::awaitable<void> abort();
  asio::awaitable<void> over_long();
  asio::awaitable<void> malformed();

  Asked ask();
  asio::awaitable<void> connect(int receive_buffer = 0);
  asio::awaitable<bool> accepted(const Head& head);
  asio::awaitable<bool> read_pieces(const Asked& asked, const Head& head, int most, Answer& answer);
  asio::awaitable<void> send_abort(const std::string& name);
  asio::awaitable<void> sleep(double seconds);
  void compare(const Asked& asked, const Answer& answer, bool cut);
  void keep_or_close(const Head& head);

  asio::io_context& io_;
  const Load& load_;
  Tally& tally_;
  const int index_;
  Random random_;
  asio::steady_timer timer_;
  std::unique_ptr<Client> client_;  // null = the next request connects
  const char* doing_ = "";
  double backoff_ = 0;
  int64_t n_asked_ = 0;
};

asio::awaitable<void> Stream::sleep(double seconds) {
  boost::system::error_code ignored;
  timer_.expires_after(std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
  co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

asio::awaitable<void> Stream::run(double end) {
  co_await sleep(load_.ramp_s * index_ / load_.streams);
  while (now_seconds() < end) {
    std::optional<Broken> broken;
    backoff_ = 0;
    try {
      co_await one();
    } catch (const Broken& b) {
      broken = b;
    } catch (const std::exception& e) {
      tally_.violation("the load failed", e.what());
    }
    if (broken) {
      const char* kind = broken->kind == Broken::Kind::kStuck     ? "stuck"
                         : broken->kind == Broken::Kind::kFraming ? "no HTTP"
                                                                  : "closed early";
      tally_.violation(kind, fmt::format("{} in stream {}: {}", doing_, index_, broken->what));
      client_.reset();
      backoff_ = 1;  // whatever is wrong, do not spin
    }
    if (backoff_ > 0) co_await sleep(std::min(backoff_, kMostBackoff) * (0.5 + random_.share()));
  }
  client_.reset();
}

asio::awaitable<void> Stream::one() {
  const Mix& mix = load_.mix;
  double share = random_.share();
  const auto falls_to = [&share](double part) { return (share -= part) < 0; };
  if (falls_to(mix.slow)) return complete(true);
  if (falls_to(mix.leave)) return leave();
  if (falls_to(mix.abort)) return abort();
  if (falls_to(mix.over_long)) return over_long();
  if (falls_to(mix.malformed)) return malformed();
  return complete(false);
}

// A request with its name: in the body for /generate, in a header for the others.
Stream::Asked Stream::ask() {
  Asked asked;
  if (load_.fixed.empty()) {
    asked.c = load_.cases.canary(random_);
  } else {
    asked.c = load_.fixed[static_cast<size_t>(random_.between(0, static_cast<int>(load_.fixed.size()) - 1))];
  }
  asked.streamed = random_.chance(kStreamed);
  asked.name = fmt::format("soak-{}-{}", index_, n_asked_++);
  json::object& body = asked.c.body;
  body["stream"] = asked.streamed;
  std::string headers;
  if (asked.c.api == Api::kGenerate) {
    body["rid"] = asked.name;
  } else {
    headers = fmt::format("X-Request-Id: {}\r\n", asked.name);
    if (asked.streamed && asked.c.api != Api::kMessages && random_.chance(0.5)) {
      body["stream_options"].emplace_object()["include_usage"] = true;
    }
  }
  asked.bytes = request_text("POST", path(asked.c.api), json::serialize(body), headers);
  return asked;
}

asio::awaitable<void> Stream::connect(int receive_buffer) {
  if (client_ && receive_buffer == 0) {
    client_->deadline(load_.patience_s);
    co_return;
  }
  client_ = std::make_unique<Client>(io_.get_executor(), load_.server, receive_buffer);
  client_->deadline(load_.patience_s);
  co_await client_->connect();
}

// Some connections go on to other requests, some do not.
void Stream::keep_or_close(const Head& head) {
  if (head.close || random_.chance(0.4)) client_.reset();
}

// Whether an answer has begun. Otherwise its error has been read, judged and counted.
asio::awaitable<bool> Stream::accepted(const Head& head) {
  tally_.status(head.status);
  if (head.header("x-request-id").empty()) tally_.violation("no x-request-id", doing_);
  if (head.status == 200) co_return true;
  const std::string body = co_await client_->body(head);
  std::string code;
  const std::string wrong = wrong_error(body, code);
  if (!wrong.empty()) tally_.violation("bad error", fmt::format("{} {}: {}", head.status, doing_, wrong));
  const bool refused = head.status == 429 || head.status == 503;
  if (!refused) {
    tally_.violation("unexpected status", fmt::format("{} {} {}: {}", head.status, code, doing_, body.substr(0, 200)));
  } else {
    tally_.outcome("refused_" + code);
    const int after = std::atoi(head.header("retry-after").c_str());
    if (after < 1) tally_.violation("no retry-after", fmt::format("{} {}", head.status, code));
    backoff_ = std::max(after, 1);
  }
  keep_or_close(head);
  co_return false;
}

// Reads at most `most` events; true when the stream has ended.
asio::awaitable<bool> Stream::read_pieces(const Asked& asked, const Head& head, int most, Answer& answer) {
  std::string data;
  for (int i = 0; i < most; ++i) {
    const bool more = co_await client_->event(head, data);
    if (!more) co_return true;
    take_event(asked.c.api, data, answer);
  }
  co_return false;
}

void Stream::compare(const Asked& asked, const Answer& answer, bool cut) {
  const std::string why = wrong(asked.c, answer, asked.streamed, cut);
  if (why.empty()) {
    ++tally_.right_texts;
    return;
  }
  const bool text = why.starts_with("wrong text");
  tally_.violation(text ? "wrong text" : "wrong answer",
                   fmt::format("{} {} {}: {}", path(asked.c.api), asked.streamed ? "stream" : "whole", doing_, why));
}

asio::awaitable<void> Stream::complete(bool slow) {
  doing_ = slow ? "reading slowly" : "reading";
  const Asked asked = ask();
  if (slow) client_.reset();
  co_await connect(slow ? kSmallBuffer : 0);
  if (slow) client_->read_slowly(kSlowBytes, load_.slow_pause_s * (0.1 + 0.9 * random_.share()));
  const double sent = now_seconds();
  co_await client_->send(asked.bytes);
  const Head head = co_await client_->head();
  const bool good = co_await accepted(head);
  if (!good) co_return;
  Answer answer;
  if (asked.streamed) {
    bool ended = co_await read_pieces(asked, head, 1, answer);
    if (!slow) tally_.first_piece.add(now_seconds() - sent);
    while (!ended) ended = co_await read_pieces(asked, head, 1000, answer);
  } else {
    const std::string body = co_await client_->body(head);
    take_whole(asked.c.api, body, answer);
  }
  compare(asked, answer, false);
  tally_.tokens += asked.c.tokens;
  tally_.outcome(slow ? "complete_slow" : "complete");
  keep_or_close(head);
  if (slow) client_.reset();
}

// Sends a part or all of a request, maybe reads some of the answer, and is gone.
asio::awaitable<void> Stream::leave() {
  doing_ = "leaving";
  const Asked asked = ask();
  client_.reset();
  co_await connect();
  const int point = random_.between(0, 2);
  if (point == 0) {
    const int bytes = random_.between(0, static_cast<int>(asked.bytes.size()) - 1);
    co_await client_->send(std::string_view(asked.bytes).substr(0, static_cast<size_t>(bytes)));
  } else {
    co_await client_->send(asked.bytes);
    if (point == 1 || !asked.streamed) {
      co_await sleep(random_.share());
    } else {
      const Head head = co_await client_->head();
      const bool good = co_await accepted(head);
      if (!good) {
        client_.reset();
        co_return;
      }
      Answer answer;
      co_await read_pieces(asked, head, random_.between(1, asked.c.tokens), answer);
      if (asked.c.text.compare(0, answer.text.size(), answer.text) != 0) {
        tally_.violation("wrong text", "before leaving, in " + std::string(path(asked.c.api)));
      }
    }
  }
  if (random_.chance(0.5)) {
    client_->reset();
    tally_.outcome("left_by_reset");
  } else {
    client_->half_close();
    client_->deadline(kLeaveSeconds);
    const bool closed = co_await client_->closed();
    if (!closed) tally_.violation("kept", "the server did not close behind a client that had");
    tally_.outcome("left_by_close");
  }
  client_.reset();
}

asio::awaitable<void> Stream::send_abort(const std::string& name) {
  json::object body;
  body["rid"] = name;
  const std::string bytes = request_text("POST", "/abort_request", json::serialize(body));
  Client other(io_.get_executor(), load_.server);
  other.deadline(load_.patience_s);
  co_await other.connect();
  co_await other.send(bytes);
  const Head head = co_await other.head();
  tally_.status(head.status);
  const std::string answer = co_await other.body(head);
  if (head.status != 200) tally_.violation("unexpected status", fmt::format("{} to an abort", head.status));
}

asio::awaitable<void> Stream::abort() {
  doing_ = "aborting";
  const Asked asked = ask();
  co_await connect();
  co_await client_->send(asked.bytes);
  Answer answer;
  Head head;
  bool ended = false;
  if (asked.streamed) {
    head = co_await client_->head();
    const bool good = co_await accepted(head);
    if (!good) co_return;
    ended = co_await read_pieces(asked, head, random_.between(0, asked.c.tokens / 2), answer);
  } else {
    co_await sleep(random_.share());
  }
  co_await send_abort(asked.name);
  if (random_.chance(0.5)) co_await send_abort(asked.name);
  if (asked.streamed) {
    while (!ended) ended = co_await read_pieces(asked, head, 1000, answer);
  } else {
    head = co_await client_->head();
    const bool good = co_await accepted(head);
    if (!good) co_return;
    const std::string body = co_await client_->body(head);
    take_whole(asked.c.api, body, answer);
  }
  compare(asked, answer, true);
  tally_.outcome(answer.text == asked.c.text ? "aborted_too_late" : "aborted");
  keep_or_close(head);
}

asio::awaitable<void> Stream::over_long() {
  doing_ = "asking for too much";
  const Case c = load_.cases.over_long(random_);
  const std::string bytes = request_text("POST", path(c.api), json::serialize(c.body));
  co_await connect();
  co_await client_->send(bytes);
  const Head head = co_await client_->head();
  const std::string body = co_await client_->body(head);
  tally_.status(head.status);
  std::string code;
  const std::string why = wrong_error(body, code);
  const bool busy = head.status == 503 || head.status == 429;
  if (!busy && (!why.empty() || head.status != 400 || code != "context_length_exceeded")) {
    tally_.violation("over-long", fmt::format("{} {} {}", head.status, code, why));
  }
  tally_.outcome("refused_over_long");
  keep_or_close(head);
}

asio::awaitable<void> Stream::malformed() {
  const BadRequest& bad = load_.bad[static_cast<size_t>(random_.between(0, static_cast<int>(load_.bad.size()) - 1))];
  doing_ = bad.name.c_str();
  co_await connect();
  co_await client_->send(bad.bytes);
  const Head head = co_await client_->head();
  const std::string body = co_await client_->body(head);
  tally_.status(head.status);
  std::string code;
  const std::string why = wrong_error(body, code);
  const bool busy = head.status == 503 || head.status == 429;
  if (!why.empty() || (head.status != bad.status && !busy)) {
    tally_.violation("malformed",
                     fmt::format("{}: {} in place of {}, {} {}", bad.name, head.status, bad.status, code, why));
  }
  tally_.outcome("refused_malformed");
  if (bad.closes) {
    client_->half_close();
    client_->deadline(kLeaveSeconds);
    const bool closed = co_await client_->closed();
    if (!closed) tally_.violation("kept", "after " + bad.name);
    client_.reset();
  } else {
    keep_or_close(head);
  }
}

}  // namespace

void run_load(const Load& load, Tally& tally) {
  asio::io_context io(1);
  std::vector<std::unique_ptr<Stream>> streams;
  const double end = now_seconds() + load.seconds;
  for (int i = 0; i < load.streams; ++i) {
    streams.push_back(std::make_unique<Stream>(io, load, tally, i));
    asio::co_spawn(io, streams.back()->run(end), asio::detached);
  }
  io.run();
}

}  // namespace carpool::soak
