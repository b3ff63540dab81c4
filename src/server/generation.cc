#include "server/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <ctime>
#include <deque>
#include <exception>
#include <span>
#include <utility>

#include "base/checksum.h"
#include "base/time.h"
#include "server/fields.h"
#include "server/subscription.h"

namespace carpool {
namespace {

constexpr double kLong = 3600;                   // seconds between looks at a request that nobody streams
constexpr size_t kManyValues = size_t{1} << 14;  // of a chunk: more are written down on a worker thread
constexpr size_t kMostScores = size_t{2} << 20;  // of one answer, alternatives included: about 100 bytes of JSON each

// All subscriptions of a job. Everything happens on the executor of its session, one thing at a time.
class Streams : public std::enable_shared_from_this<Streams> {
 public:
  struct Part {
    int choice = 0;
    std::vector<Event> events;  // empty = a time-out
  };

  explicit Streams(asio::any_io_executor executor) : executor_(std::move(executor)), timer_(executor_) {}

  void add(EngineLoop& loop, Request request) { all_.emplace_back(loop, executor_, std::move(request)); }
  RequestId id(size_t i) const { return all_[i].id(); }
  void cancel() {
    for (Subscription& s : all_) s.cancel();
  }

  // To be called when nobody asks for events any more: the readers, which keep this alive, then end. Without readers
  // the subscriptions end with this.
  void leave() {
    if (readers_ > 0) cancel();
  }

  // The events of one choice, for those who do not care about the order among choices.
  asio::awaitable<std::vector<Event>> next_of(int choice) { return all_[static_cast<size_t>(choice)].next(kLong); }

  // Whatever comes first of all choices.
  asio::awaitable<Part> next(double timeout_s) {
    if (all_.size() == 1) {
      Part part;
      part.events = co_await all_[0].next(timeout_s);
      co_return part;
    }
    if (!std::exchange(reading_, true)) {
      readers_ = all_.size();
      for (size_t i = 0; i < all_.size(); ++i) {
        asio::co_spawn(executor_, read(shared_from_this(), static_cast<int>(i)), asio::detached);
      }
    }
    const auto wait = std::chrono::duration<double>(timeout_s);
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait);
    while (ready_.empty() && !failure_ && std::chrono::steady_clock::now() < deadline) {
      timer_.expires_at(deadline);
      boost::system::error_code ignored;
      co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    if (failure_) std::rethrow_exception(failure_);
    Part part;
    if (ready_.empty()) co_return part;
    part = std::move(ready_.front());
    ready_.pop_front();
    co_return part;
  }

 private:
  // Carries the events of one choice to the common queue until its last.
  static asio::awaitable<void> read(std::shared_ptr<Streams> self, int choice) {
    try {
      for (bool open = true; open;) {
        Part part;
        part.choice = choice;
        part.events = co_await self->next_of(choice);
        for (const Event& event : part.events) open = open && event.finish == FinishReason::kNone;
        if (!part.events.empty()) self->ready_.push_back(std::move(part));
        self->timer_.cancel();
      }
    } catch (...) {
      self->failure_ = std::current_exception();
      self->timer_.cancel();
    }
    --self->readers_;
  }

  asio::any_io_executor executor_;
  asio::steady_timer timer_;
  std::vector<Subscription> all_;
  std::deque<Part> ready_;
  std::exception_ptr failure_;
  bool reading_ = false;
  size_t readers_ = 0;  // that have not ended
};

// However the handler ends, so do the requests.
struct LeaveAtEnd {
  std::shared_ptr<Streams> streams;
  ~LeaveAtEnd() { streams->leave(); }
};

// The log learns how many tokens there were, also of answers that failed, and why no more came from the prefix cache.
struct CountAtEnd {
  Call& call;
  const Reply& reply;
  ~CountAtEnd() {
    call.completion_tokens = 0;
    for (int i = 0; i < reply.choices(); ++i) call.completion_tokens += static_cast<int>(reply.choice(i).tokens.size());
    const Choice& first = reply.choice(0);
    if (!first.finished()) return;
    call.cached_tokens = first.stats.cached_tokens;
    call.prefix = name(first.stats.prefix);
  }
};

// Changes with the build, the model's shape and the options, which may change what a seed gives.
std::string fingerprint(const Service& service, const ModelConfig& config) {
  const ServiceOptions& options = service.options();
  const std::string facts =
      fmt::format("{}|{}|{}|{}x{}x{}|{}|{}", options.version, options.served_model_name, config.family, config.vocab,
                  config.width, config.layers, config.n_experts, json::serialize(options.server_args));
  return fmt::format("cp_{:016x}", checksum64(facts));
}

asio::awaitable<void> write(Exchange& exchange, Chunks& chunks) {
  for (const Chunk& chunk : chunks) co_await exchange.event(chunk.data, chunk.name);
  chunks.clear();
}

// By choice: while one lives, it can be aborted by its names. Ended ones cannot: clients may count on that as soon as
// they have seen the end.
using Names = std::vector<std::vector<std::shared_ptr<void>>>;

asio::awaitable<void> stream(Call& call, Streams& streams, Names& names, Reply& reply) {
  const double silence = call.service.options().ping_s;
  Headers headers;
  headers.emplace_back("x-carpool-routing", call.routing);
  co_await call.exchange.begin_events(std::move(headers));
  Chunks chunks;
  reply.start(chunks);
  co_await write(call.exchange, chunks);
  double last = now_seconds();
  while (!reply.finished()) {
    const Streams::Part part = co_await streams.next(silence);
    // A chunk for each token that shows, however many came together: clients count and time them. Each is written
    // before the next is made, so that a slow reader's do not pile up.
    const std::span<const Event> events = part.events;
    if (!events.empty() && events.back().finish != FinishReason::kNone) names[static_cast<size_t>(part.choice)].clear();
    const size_t portion = reply.cumulative() ? std::max<size_t>(events.size(), 1) : 1;
    for (size_t at = 0; at < events.size(); at += portion) {
      reply.take(part.choice, events.subspan(at, portion));
      if (reply.values_of_next(part.choice) > kManyValues) {
        auto work = [&reply, &chunks, choice = part.choice] {
          reply.flush(choice, chunks);
          return true;
        };
        co_await call.service.offload(call.caller, work, FairWorkers::Entry::kOfAnAdmitted);
      } else {
        reply.flush(part.choice, chunks);
      }
      if (chunks.empty()) continue;
      co_await write(call.exchange, chunks);
      last = now_seconds();
    }
    if (now_seconds() - last >= silence) {
      co_await call.exchange.ping();
      last = now_seconds();
    }
  }
  reply.end(chunks);
  co_await write(call.exchange, chunks);
  co_await call.exchange.end_events();
}

asio::awaitable<void> respond(Call& call, Streams& streams, Names& names, Reply& reply) {
  for (int i = 0; i < reply.choices(); ++i) {
    while (!reply.choice(i).finished()) {
      const std::vector<Event> events = co_await streams.next_of(i);
      reply.take(i, events);
    }
    names[static_cast<size_t>(i)].clear();
  }
  Response response;
  // Scores of long prompts take long to write down.
  auto work = [&reply] { return json::serialize(reply.whole()); };
  response.body = co_await call.service.offload(call.caller, work, FairWorkers::Entry::kOfAnAdmitted);
  response.headers.emplace_back("x-carpool-routing", call.routing);
  co_await call.exchange.respond(std::move(response));
}

// Submits a request for every choice, when there is room for all; those before one that is refused nevertheless end
// with `streams`. A seed that was given is that of every prompt's first choice, so a prompt gets the same text alone
// and in a list; fresh seeds differ for all choices.
void submit_all(Call& call, const Job& job, EngineLoop& loop, Streams& streams) {
  const std::vector<int> lengths = fit_lengths(job, loop.limits());
  loop.require_room(call.caller.tenant, static_cast<int>(job.prompts.size()) * job.generation.n);
  uint64_t seed = job.generation.request.sampling.seed;
  for (size_t p = 0; p < job.prompts.size(); ++p) {
    const Prompt& prompt = job.prompts[p];
    Request request = job.generation.request;
    request.prompt = prompt.ids;
    request.max_tokens = lengths[p];
    for (int i = 0; i < job.generation.n; ++i) {
      Request copy = request;
      copy.sampling.seed = seed + static_cast<uint64_t>(i);
      streams.add(loop, std::move(copy));
    }
    if (!job.generation.seed_given) seed += static_cast<uint64_t>(job.generation.n);
    call.prompt_tokens = std::max(call.prompt_tokens, 0) + static_cast<int>(prompt.ids.size());
  }
}

Names name_all(Call& call, const Job& job, const Streams& streams, int choices) {
  Names names(static_cast<size_t>(choices));
  const std::string& client_id = call.exchange.request().client_id;
  for (size_t i = 0; i < names.size(); ++i) {
    const RequestId id = streams.id(i);
    names[i].push_back(call.service.abortable(call.caller, job.id, id));
    if (!client_id.empty()) names[i].push_back(call.service.abortable(call.caller, client_id, id));
    if (i < job.names.size()) names[i].push_back(call.service.abortable(call.caller, job.names[i], id));
  }
  return names;
}

// The request can be aborted by this name before the engine knows it.
void name_early(Call& call, const std::string& rid) {
  call.early_names.push_back(call.service.abortable(call.caller, rid, call.aborted));
}

Reply::Setup make_setup(Call& call, Job& job, const Served& served) {
  ReplyHead head;
  head.id = job.id;
  head.model = call.service.options().served_model_name;
  head.fingerprint = fingerprint(call.service, served.config);
  head.created = std::time(nullptr);
  head.received = call.exchange.request().received;
  auto report = [&call](const RequestStats& stats) { return call.service.routing_report(call.routing, stats); };
  return {std::move(head), served.tokenizer, job.generation, std::move(job.prompts), std::move(report)};
}

}  // namespace

std::vector<int> fit_lengths(const Job& job, const RequestLimits& limits) {
  const Request& request = job.generation.request;
  const bool given = job.generation.max_tokens_given;
  std::vector<int> lengths;
  size_t scored = 0, generated = 0;  // tokens of one choice of each prompt
  for (const Prompt& prompt : job.prompts) {
    Request fitted;
    fitted.max_tokens = request.max_tokens;
    fit_max_tokens(static_cast<int>(prompt.ids.size()), limits, given, fitted);
    lengths.push_back(fitted.max_tokens);
    generated += static_cast<size_t>(fitted.max_tokens);
    if (request.prompt_logprobs) scored += prompt.ids.size();
  }
  if (request.logprobs < 0) return lengths;
  const size_t each = static_cast<size_t>(job.generation.n) * (static_cast<size_t>(request.logprobs) + 1);
  if ((scored + generated) * each <= kMostScores) return lengths;
  const size_t least = given ? generated : lengths.size() * static_cast<size_t>(std::max(request.min_tokens, 1));
  if ((scored + least) * each > kMostScores) throw too_many_items("logprobs", (scored + least) * each, kMostScores);
  const auto most = static_cast<int>((kMostScores / each - scored) / lengths.size());
  for (int& length : lengths) length = std::min(length, most);
  return lengths;
}

std::string answer_id(const Call& call, const char* prefix) {
  return fmt::format("{}{}", prefix, call.exchange.request().request_id);
}

Served& served_for_work(Call& call) {
  Served& served = call.service.served();
  served.loop->require_room(call.caller.tenant);
  if (const std::string& client_id = call.exchange.request().client_id; !client_id.empty()) name_early(call, client_id);
  return served;
}

asio::awaitable<void> answer_job(Call& call, Job& job) {
  Served& served = call.service.served();
  if (job.generation.structure) {
    for (const std::string& rid : job.names) name_early(call, rid);
    auto work = [&] { return call.service.constraint(*job.generation.structure); };
    job.generation.request.constraint =
        co_await call.service.offload(call.caller, work, FairWorkers::Entry::kOfAnAdmitted);
  }
  call.routing = call.service.route(call.caller, job.generation.routing, job.generation.request);
  const auto streams = std::make_shared<Streams>(call.exchange.executor());
  submit_all(call, job, *served.loop, *streams);
  const LeaveAtEnd guard{streams};
  call.exchange.on_gone([weak = std::weak_ptr(streams)] {
    if (const auto alive = weak.lock()) alive->cancel();
  });
  const int choices = static_cast<int>(job.prompts.size()) * job.generation.n;
  Names names = name_all(call, job, *streams, choices);
  call.early_names.clear();  // only now: there is no moment in which an abort finds nothing
  if (call.aborted->load()) streams->cancel();
  const bool streamed = job.generation.stream;
  Reply::Setup setup = make_setup(call, job, served);
  const std::unique_ptr<Reply> reply = job.make_reply(std::move(setup));
  const CountAtEnd count{call, *reply};
  if (streamed) {
    co_await stream(call, *streams, names, *reply);
  } else {
    co_await respond(call, *streams, names, *reply);
  }
}

}  // namespace carpool
