// The engine thread: take what came in, step, hand out events, publish the state. See engine_loop.h.
//
// What callers and the engine thread share lies in Shared, under one mutex that is held for moments only: the inbox is
// swapped out whole and events are delivered without it. Refusals are therefore decided on the caller's thread, from
// counts, without waiting for a step.
#include "server/engine_loop.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/time.h"

namespace carpool {
namespace {

constexpr int kNice = 5;             // of computing threads, below those that serve sockets
constexpr double kIdleLook = 1;      // seconds between two looks at an empty inbox
constexpr double kStuckLook = 0.01;  // while requests are there that cannot run yet
constexpr int kFewAdmissions = 8;
constexpr int kLongestRetry = 3600;  // seconds

// How many per second, over the last seconds; counted in buckets of one second.
class Rate {
 public:
  void add(double now, int64_t count) {
    at(now) += count;
    if (count > 0) last_ = now;
  }
  double per_second(double now) {
    at(now);
    int64_t sum = 0;
    int64_t oldest = second_;
    for (int64_t s = second_; s > second_ - kSeconds; --s) {
      const int64_t n = buckets_[index(s)];
      sum += n;
      if (n > 0) oldest = s;
    }
    return static_cast<double>(sum) / std::max(1.0, now - static_cast<double>(oldest));
  }
  // How many there were in that time.
  int64_t recent(double now) {
    at(now);
    return std::accumulate(buckets_.begin(), buckets_.end(), int64_t{0});
  }
  double last() const { return last_; }  // now_seconds() of the last one; 0 = never

 private:
  static constexpr int64_t kSeconds = 8;
  static size_t index(int64_t second) { return static_cast<size_t>(second % kSeconds); }
  // The bucket of this second; those that were skipped are emptied.
  int64_t& at(double now) {
    const auto second = std::max(static_cast<int64_t>(now), second_);
    for (int64_t s = std::max(second_, second - kSeconds) + 1; s <= second; ++s) buckets_[index(s)] = 0;
    second_ = second;
    return buckets_[index(second)];
  }

  int64_t second_ = 0;
  std::array<int64_t, kSeconds> buckets_{};
  double last_ = 0;
};

struct Incoming {
  RequestId id = 0;
  Request request;
  std::shared_ptr<EventSink> sink;
  double arrived = 0;
};

struct Work {
  std::function<void(Engine&)> work;
  std::function<void()> done;
};

// A request that the engine has.
struct Open {
  RequestId id = 0;  // as submit() returned it; the engine has ids of its own
  int tenant = 0;
  std::shared_ptr<EventSink> sink;
  double arrived = 0, admitted = -1, first = -1, last = -1;  // now_seconds(); -1 = not yet
};

RequestTimes times_of(const Open& o, double now) {
  RequestTimes t;
  t.total = now - o.arrived;
  if (o.admitted >= 0) t.queue = o.admitted - o.arrived;
  if (o.first >= 0) {
    t.first_token = o.first - o.arrived;
    t.prefill = o.first - o.admitted;
    t.decode = o.last - o.first;
  }
  return t;
}

int whole_seconds(double seconds) {
  return static_cast<int>(std::clamp(std::ceil(seconds), 1.0, static_cast<double>(kLongestRetry)));
}

}  // namespace

struct EngineLoop::Impl {
  Impl(std::unique_ptr<Engine> e, const LoopLimits& l)
      : engine(std::move(e)), limits(l), request_limits(engine->limits()) {
    if (limits.max_queued < 1) throw Error(ErrorKind::kUsage, "the queue must have room for at least 1 request");
  }

  const std::unique_ptr<Engine> engine;
  const LoopLimits limits;
  const RequestLimits request_limits;
  LoopObserver observer;
  std::thread thread;

  mutable std::mutex mutex;
  std::condition_variable wake;
  // Under the mutex.
  std::vector<Incoming> inbox;
  std::vector<RequestId> cancels;
  std::vector<Work> works;
  std::unordered_map<int, int> waiting_of;  // by tenant: requests that were never admitted
  int waiting = 0;                          // their sum
  int unfinished = 0;
  RequestId next_id = 1;
  bool stop = false, dead = false, draining = false;
  std::chrono::steady_clock::time_point deadline;
  LoopState state;
  Rate tokens, admissions;

  // Of the engine thread.
  std::unordered_map<RequestId, Open> open;               // by the engine's id
  std::unordered_map<RequestId, RequestId> engine_id_of;  // ours to the engine's
  std::vector<int> no_longer_waiting;                     // tenants of requests that were admitted or ended, this turn
  int admitted_now = 0, ended_now = 0;
  int64_t tokens_now = 0;
  bool idle = true;

  void run();
  bool turn();
  bool take(std::vector<Incoming>& requests, std::vector<RequestId>& ids, std::vector<Work>& todo);
  void enter(Incoming& incoming);
  void expire();
  void deliver(const StepReport& report);
  void on_event(const Event& event, double now);
  void leave_queue(Open& o, double now);
  void publish();
  void lose_everything(const char* code);
  void die(const std::string& what);
  double wait_estimate(double now, int ahead);
  void require_room(int tenant, int requests, double now);
  [[noreturn]] void refuse_draining();
};

void EngineLoop::Impl::run() {
  yield_to_io();
  try {
    while (turn()) {
    }
  } catch (const std::exception& e) {
    return die(e.what());
  } catch (...) {
    return die("an unknown exception");
  }
  lose_everything("draining");
}

// One look at the inbox and one step. False when the loop is to end.
bool EngineLoop::Impl::turn() {
  std::vector<Incoming> requests;
  std::vector<RequestId> ids;
  std::vector<Work> todo;
  if (!take(requests, ids, todo)) return false;
  for (Work& w : todo) w.work(*engine);
  if (!todo.empty()) publish();
  for (const Work& w : todo) {
    if (w.done) w.done();
  }
  for (Incoming& incoming : requests) enter(incoming);
  for (const RequestId id : ids) {
    if (const auto it = engine_id_of.find(id); it != engine_id_of.end()) engine->cancel(it->second);
  }
  expire();
  const bool worked = engine->step();
  if (worked && observer.step) observer.step(*engine, engine->last_step());  // who has its answer finds it counted
  if (worked) deliver(engine->last_step());
  publish();
  idle = !worked;
  return true;
}

bool EngineLoop::Impl::take(std::vector<Incoming>& requests, std::vector<RequestId>& ids, std::vector<Work>& todo) {
  std::unique_lock lock(mutex);
  if (idle) {
    const double look = open.empty() ? kIdleLook : kStuckLook;
    wake.wait_for(lock, std::chrono::duration<double>(look),
                  [this] { return stop || !inbox.empty() || !cancels.empty() || !works.empty(); });
    state.last_progress = now_seconds();
  }
  if (stop) return false;
  requests.swap(inbox);
  ids.swap(cancels);
  todo.swap(works);
  return true;
}

// Into the engine. What it cannot take ends alone: values were checked by submit(), so that is our bug, or memory.
void EngineLoop::Impl::enter(Incoming& incoming) {
  Open o{incoming.id, incoming.request.tenant, std::move(incoming.sink), incoming.arrived};
  try {
    const RequestId id = engine->submit(std::move(incoming.request));
    engine_id_of[o.id] = id;
    open[id] = std::move(o);
  } catch (const std::exception&) {
    leave_queue(o, now_seconds());
    ++ended_now;
    o.sink->on_lost("internal_error");
  }
}

// The drain deadline: who is still open is told, and the engine forgets him.
void EngineLoop::Impl::expire() {
  {
    const std::lock_guard lock(mutex);
    if (!draining || std::chrono::steady_clock::now() < deadline) return;
  }
  const double now = now_seconds();
  for (auto& [id, o] : open) {
    engine->cancel(id);
    leave_queue(o, now);
    ++ended_now;
    o.sink->on_lost("draining");
  }
  open.clear();
  engine_id_of.clear();
}

void EngineLoop::Impl::deliver(const StepReport& report) {
  const double now = now_seconds();
  for (const RequestId id : report.admitted) {
    if (const auto it = open.find(id); it != open.end() && it->second.admitted < 0) {
      leave_queue(it->second, now - report.seconds);
      ++admitted_now;
    }
  }
  for (const Event& event : report.events) on_event(event, now);
}

void EngineLoop::Impl::on_event(const Event& event, double now) {
  const auto it = open.find(event.id);
  if (it == open.end()) return;  // ended at the deadline
  Open& o = it->second;
  if (event.token >= 0) {
    ++tokens_now;
    if (o.first < 0) {
      o.first = now;
    } else if (observer.inter_token) {
      observer.inter_token(now - o.last);
    }
    o.last = now;
  }
  Event ours = event;
  ours.id = o.id;
  const bool ends = event.finish != FinishReason::kNone;
  if (ends && observer.finished) {
    observer.finished(event.finish, event.stats ? *event.stats : RequestStats{}, times_of(o, now));
  }
  o.sink->on_event(ours);
  if (!ends) return;
  leave_queue(o, now);
  ++ended_now;
  engine_id_of.erase(o.id);
  open.erase(it);
}

// The request no longer waits for its first admission: it was admitted, or it ended.
void EngineLoop::Impl::leave_queue(Open& o, double now) {
  if (o.admitted >= 0) return;
  o.admitted = now;
  no_longer_waiting.push_back(o.tenant);
}

// Seconds until somebody with `ahead` others before him is admitted.
double EngineLoop::Impl::wait_estimate(double now, int ahead) {
  if (ahead <= 0) return 0;
  // A rate of few says nothing: one request before a burst would promise the burst an hour.
  if (admissions.recent(now) >= kFewAdmissions) return ahead / admissions.per_second(now);
  return std::max(limits.expected_wait, admissions.last() > 0 ? now - admissions.last() : 0);
}

void EngineLoop::Impl::publish() {
  std::string policy = engine->policy().spec();
  const double now = now_seconds();
  const std::lock_guard lock(mutex);
  for (const int tenant : no_longer_waiting) {
    if (--waiting_of[tenant] == 0) waiting_of.erase(tenant);
  }
  waiting -= static_cast<int>(no_longer_waiting.size());
  unfinished -= ended_now;
  tokens.add(now, tokens_now);
  admissions.add(now, admitted_now);
  no_longer_waiting.clear();
  ended_now = admitted_now = 0;
  tokens_now = 0;
  state.last_progress = now;
  state.running = engine->running();
  state.kv_total_blocks = engine->total_kv_blocks();
  state.kv_free_blocks = engine->free_kv_blocks();
  state.kv_cached_blocks = engine->cached_kv_blocks();
  state.policy = std::move(policy);
}

void EngineLoop::Impl::lose_everything(const char* code) {
  std::vector<Incoming> requests;
  std::vector<Work> todo;  // destroyed without the mutex
  {
    const std::lock_guard lock(mutex);
    requests.swap(inbox);
    todo.swap(works);
    unfinished = waiting = 0;
    waiting_of.clear();
    state.running = 0;
  }
  for (auto& [id, o] : open) o.sink->on_lost(code);
  for (Incoming& incoming : requests) incoming.sink->on_lost(code);
  open.clear();
}

void EngineLoop::Impl::die(const std::string& what) {
  {
    const std::lock_guard lock(mutex);
    dead = true;
    state.alive = false;
  }
  lose_everything("engine_dead");
  if (observer.died) observer.died(what);
}

void EngineLoop::Impl::refuse_draining() {
  const std::chrono::duration<double> left = deadline - std::chrono::steady_clock::now();
  throw unavailable("draining", "the server is shutting down", draining ? whole_seconds(left.count()) : 1);
}

EngineLoop::EngineLoop(std::unique_ptr<Engine> engine, const LoopLimits& limits)
    : impl_(std::make_unique<Impl>(std::move(engine), limits)) {
  impl_->publish();
}

EngineLoop::~EngineLoop() { stop(); }

void EngineLoop::stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
    impl_->state.alive = false;
  }
  impl_->wake.notify_all();
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  } else {
    impl_->lose_everything("draining");  // never started, or stopped before
  }
}

void EngineLoop::observe(LoopObserver observer) {
  CARPOOL_CHECK(!impl_->thread.joinable());
  impl_->observer = std::move(observer);
}

void EngineLoop::start() {
  CARPOOL_CHECK(!impl_->thread.joinable());
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->state.alive = true;
    impl_->state.last_progress = now_seconds();
  }
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

// Throws what so many requests of this tenant are refused with now; the mutex is held.
void EngineLoop::Impl::require_room(int tenant, int requests, double now) {
  if (dead) throw unavailable("engine_dead", "the engine has stopped after an internal error", 0);
  if (draining || stop) refuse_draining();
  const bool shared = limits.tenants > 1;
  const int share = shared ? std::max(1, static_cast<int>(limits.key_share * limits.max_queued)) : limits.max_queued;
  if (requests > share) {  // asking again would not help
    throw bad_request("too_many_items",
                      fmt::format("prompts times n are {} completions, at most {} may wait here", requests, share),
                      "n");
  }
  const auto found = waiting_of.find(tenant);
  const int mine = found == waiting_of.end() ? 0 : found->second;
  if (shared && mine > share - requests) {
    throw ApiError(429, "rate_limit_error", "key_queue_full",
                   fmt::format("{} requests of this key are waiting, and its share of the queue is {}", mine, share))
        .retry_after(whole_seconds(wait_estimate(now, waiting)));
  }
  if (waiting > limits.max_queued - requests) {
    throw unavailable("overloaded", fmt::format("the queue is full: {} requests are waiting", waiting),
                      whole_seconds(wait_estimate(now, waiting)));
  }
}

void EngineLoop::require_room(int tenant, int requests) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->require_room(tenant, requests, now_seconds());
}

RequestId EngineLoop::submit(Request request, std::shared_ptr<EventSink> sink) {
  Impl& m = *impl_;
  try {
    check(request, m.request_limits);
  } catch (const RequestError& e) {
    throw from(e);
  }
  const double now = now_seconds();
  const int tenant = request.tenant;
  RequestId id = 0;
  {
    const std::lock_guard lock(m.mutex);
    m.require_room(tenant, 1, now);
    id = m.next_id++;
    m.inbox.push_back({id, std::move(request), std::move(sink), now});
    ++m.waiting_of[tenant];
    ++m.waiting;
    ++m.unfinished;
  }
  m.wake.notify_one();
  return id;
}

void EngineLoop::cancel(RequestId id) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->cancels.push_back(id);
  }
  impl_->wake.notify_one();
}

void EngineLoop::between_steps(std::function<void(Engine&)> work, std::function<void()> done) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->dead) throw unavailable("engine_dead", "the engine has stopped after an internal error", 0);
    if (impl_->stop) impl_->refuse_draining();
    impl_->works.push_back({std::move(work), std::move(done)});
  }
  impl_->wake.notify_one();
}

LoopState EngineLoop::state() const {
  const std::lock_guard lock(impl_->mutex);
  LoopState state = impl_->state;
  const double now = now_seconds();
  state.draining = impl_->draining;
  // Those that the engine thread has just taken from the inbox are in neither's count until the step ends.
  state.waiting = std::max(0, impl_->unfinished - state.running);
  state.tokens_per_second = impl_->tokens.per_second(now);
  state.estimated_wait = impl_->wait_estimate(now, impl_->waiting);
  return state;
}

const RequestLimits& EngineLoop::limits() const { return impl_->request_limits; }

void EngineLoop::drain(std::chrono::steady_clock::time_point deadline) {
  const std::lock_guard lock(impl_->mutex);
  impl_->draining = true;
  impl_->deadline = deadline;
}

bool EngineLoop::drained() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->draining && impl_->unfinished == 0;
}

void yield_to_io() {
  errno = 0;
  const int process = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::getpid()));  // of the main thread
  if (errno != 0) return;
  // A system that refuses leaves the priority as it is.
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), std::min(process + kNice, 19)));
}

}  // namespace carpool
