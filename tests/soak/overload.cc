// Read first: overload.h.
#include "soak/overload.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "base/time.h"
#include "server/http_client_test_util.h"
#include "soak/answer.h"
#include "soak/client.h"

namespace carpool::soak {
namespace {

constexpr double kPatience = 120;

double wall_seconds() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// What all connections of one part share.
struct Part {
  asio::io_context& io;
  const OverloadPlan& plan;
  Tally& tally;
  OverloadResult& result;
  double begin, end;
  int connections;
  double pieces_from, pieces_to;  // when pieces count for throughput
  asio::steady_timer gate;        // opens when all are connected
  int connected = 0;
  int64_t pieces = 0;
};

class Caller {
 public:
  Caller(Part& part, int index)
      : part_(part), random_(part.plan.seed, 0x0e0000 + static_cast<uint64_t>(index)), timer_(part.io) {}
  asio::awaitable<void> run();

 private:
  asio::awaitable<void> sleep(double seconds);
  asio::awaitable<void> call(bool first);
  void arrive();
  asio::awaitable<void> wait_for_all();
  asio::awaitable<void> read_answer(const Case& c, const Head& head);
  asio::awaitable<void> read_refusal(const Head& head);

  Part& part_;
  Random random_;
  asio::steady_timer timer_;
  std::unique_ptr<Client> client_;
  Case case_;          // what is asked until it is answered
  std::string bytes_;  // empty = the next one has to be made
  bool arrived_ = false;
  double wait_ = 0;
};

asio::awaitable<void> Caller::sleep(double seconds) {
  boost::system::error_code ignored;
  timer_.expires_after(std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
  co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

asio::awaitable<void> Caller::run() {
  for (bool first = true; now_seconds() < part_.end; first = false) {
    bool failed = false;
    wait_ = 0;
    try {
      co_await call(first);
    } catch (const Broken& broken) {
      part_.tally.violation(broken.kind == Broken::Kind::kStuck ? "stuck" : "closed early", broken.what);
      failed = true;
    }
    if (failed) {
      arrive();
      client_.reset();
      bytes_.clear();
      wait_ = 1;
    }
    wait_ = std::min(wait_, part_.end - now_seconds());
    if (wait_ > 0) co_await sleep(std::min(wait_, part_.plan.most_wait_s) * (0.5 + random_.share()));
  }
  client_.reset();
}

void Caller::arrive() {
  if (std::exchange(arrived_, true)) return;
  if (++part_.connected == part_.connections) part_.gate.cancel();
}

asio::awaitable<void> Caller::wait_for_all() {
  boost::system::error_code ignored;
  arrive();
  while (part_.connected < part_.connections) {
    co_await part_.gate.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

asio::awaitable<void> Caller::call(bool first) {
  if (bytes_.empty()) {
    case_ = part_.plan.cases.canary(random_);
    case_.body["stream"] = true;
    bytes_ = request_text("POST", path(case_.api), json::serialize(case_.body));
  }
  if (!client_) {
    client_ = std::make_unique<Client>(part_.io.get_executor(), part_.plan.server);
    client_->deadline(kPatience);
    co_await client_->connect();
    client_->note_arrivals();
  }
  client_->deadline(kPatience);
  if (first) co_await wait_for_all();
  const double sent = wall_seconds();  // before, for the rest of this program may run before send() returns
  co_await client_->send(bytes_);
  const double arrived = co_await client_->arrival();
  const double read = wall_seconds();
  const Head head = co_await client_->head();
  part_.tally.status(head.status);
  if (head.status == 200) {
    if (arrived > 0) part_.tally.first_piece.add(arrived - sent);
    co_await read_answer(case_, head);
    bytes_.clear();
  } else {
    if (arrived > 0) part_.result.refusals.add(arrived - sent);
    if (arrived > 0 && first) part_.result.first_refusals.add(arrived - sent);
    part_.result.refusals_read.add(read - sent);
    co_await read_refusal(head);
  }
  if (head.close) client_.reset();
}

asio::awaitable<void> Caller::read_answer(const Case& c, const Head& head) {
  Answer answer;
  std::string data;
  bool more = true;
  while (more) {
    more = co_await client_->event(head, data);
    if (!more) break;
    const int before = answer.pieces;
    take_event(c.api, data, answer);
    const double now = now_seconds();
    if (now >= part_.pieces_from && now < part_.pieces_to) part_.pieces += answer.pieces - before;
  }
  const std::string why = wrong(c, answer, true, false);
  if (!why.empty()) {
    part_.tally.violation(why.starts_with("wrong text") ? "wrong text" : "wrong answer", why);
    co_return;
  }
  ++part_.tally.right_texts;
  part_.tally.tokens += c.tokens;
  part_.tally.outcome("complete");
}

asio::awaitable<void> Caller::read_refusal(const Head& head) {
  const std::string body = co_await client_->body(head);
  std::string code;
  const std::string why = wrong_error(body, code);
  const int after = std::atoi(head.header("retry-after").c_str());
  if (!why.empty() || (head.status != 503 && head.status != 429)) {
    part_.tally.violation("unexpected status", fmt::format("{} {} {}", head.status, code, why));
  } else if (after < 1) {
    part_.tally.violation("no retry-after", code);
  }
  part_.tally.outcome("refused_" + code);
  part_.result.retry_after.add(after);
  wait_ = std::max(after, 1);
}

double run_part(const OverloadPlan& plan, int connections, Tally& tally, OverloadResult& result) {
  asio::io_context io(1);
  const double begin = now_seconds(), end = begin + plan.seconds;
  Part part{io, plan, tally, result, begin, end, connections, begin + plan.settle_s, end, asio::steady_timer(io)};
  part.gate.expires_at(asio::steady_timer::time_point::max());
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < connections; ++i) {
    callers.push_back(std::make_unique<Caller>(part, i));
    asio::co_spawn(io, callers.back()->run(), asio::detached);
  }
  io.run();
  return static_cast<double>(part.pieces) / (plan.seconds - plan.settle_s);
}

}  // namespace

json::object OverloadResult::report() const {
  const double ratio = saturated_tokens_per_second > 0 ? overloaded_tokens_per_second / saturated_tokens_per_second : 0;
  return {{"saturated_tokens_per_second", saturated_tokens_per_second},
          {"overloaded_tokens_per_second", overloaded_tokens_per_second},
          {"ratio", ratio},
          {"retry_after_s", retry_after.seconds()},
          {"first_refusal_ms", first_refusals.milliseconds()},
          {"refusal_ms", refusals.milliseconds()},
          {"refusal_read_ms", refusals_read.milliseconds()},
          {"saturated", saturated.report()},
          {"overloaded", overloaded.report()}};
}

OverloadResult run_overload(const OverloadPlan& plan) {
  OverloadResult result;
  OverloadResult unused;
  result.saturated_tokens_per_second = run_part(plan, plan.saturation, result.saturated, unused);
  result.overloaded_tokens_per_second = run_part(plan, plan.connections, result.overloaded, result);
  if (unused.refusals_read.count() > 0) {
    result.saturated.violation("refused in saturation", "the server cannot take so many: see --saturation");
  }
  return result;
}

}  // namespace carpool::soak
