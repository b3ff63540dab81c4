// The thread that owns the engine, and how everything else talks to it.
//
// Owns EngineLoop: a bounded inbox of requests and cancels, the step loop, the hand-over of events, drain and death.
// All public calls are thread-safe and return at once. An exception in the engine thread ends the loop: every open
// request gets an error, alive() turns false, and the process exits 70 (promise 5: never a hang). Does not know HTTP.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"

namespace carpool {

// Where the events of one request go. Called on the engine thread, must neither block nor throw.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(const Event& event) = 0;
  // The engine died or the drain deadline passed before the request ended; `code` is "engine_dead" or "draining", or
  // "internal_error" when the engine could not take this one request.
  virtual void on_lost(const char* code) = 0;
};

struct LoopLimits {
  int max_queued = 4096;     // requests that wait for admission
  double key_share = 0.25;   // of the queue, for one tenant, when there are several; over it 429 key_queue_full
  int tenants = 1;           // how many there are
  double expected_wait = 1;  // seconds, said to the refused while nothing was admitted yet
};

// What a request took, seconds; negative = did not get there.
struct RequestTimes {
  double queue = -1;        // arrival to first admission
  double first_token = -1;  // arrival to first token
  double total = -1;        // arrival to end
  double prefill = -1;      // first admission to first token
  double decode = -1;       // first token to end
};

// What is told of every step and request, on the engine thread. Members may be empty; none may block or throw.
struct LoopObserver {
  std::function<void(const Engine&, const StepReport&)> step;
  std::function<void(double seconds)> inter_token;  // from one token of a request to its next
  std::function<void(FinishReason, const RequestStats&, const RequestTimes&)> finished;
  // Once, when an exception ended the loop; `what` for the log.
  std::function<void(const std::string& what)> died;
};

// A moment's view, for /load, /metrics and /health. Copied whenever a step ends.
struct LoopState {
  bool alive = false, draining = false;
  double last_progress = 0;  // now_seconds() of the last step, or of the last look at an empty inbox
  int running = 0, waiting = 0;
  int kv_total_blocks = 0, kv_free_blocks = 0, kv_cached_blocks = 0;  // cached: held by the prefix cache alone
  double tokens_per_second = 0;                                       // of generated tokens, over the last seconds
  double estimated_wait = 0;                                          // seconds until a request queued now is admitted
  std::string policy;                                                 // canonical spec of policy 0
};

class EngineLoop {
 public:
  EngineLoop(std::unique_ptr<Engine> engine, const LoopLimits& limits);
  ~EngineLoop();  // stop now

  // Before start(). Service::ready does both.
  void observe(LoopObserver observer);
  void start();

  // Queues the request and returns its id. Throws ApiError: 400 for values out of range, 429 key_queue_full, 503
  // overloaded / draining / engine_dead with Retry-After. `sink` is kept until its last event.
  RequestId submit(Request request, std::shared_ptr<EventSink> sink);
  // Throws as submit() would now for want of room for so many requests, so that the refused cost no work; ApiError 400
  // too_many_items for more than could ever wait.
  void require_room(int tenant, int requests = 1) const;
  // The request ends within one step with FinishReason::kCancelled. Nothing for ids that are unknown or ended.
  void cancel(RequestId id);
  // Runs `work` on the engine thread between two steps (policy switch, cache flush, expert statistics), then `done`,
  // when state() shows what it did. Neither may throw. Throws ApiError 503 when the loop has ended; both are destroyed
  // without having run when it ends before their turn.
  void between_steps(std::function<void(Engine&)> work, std::function<void()> done = {});

  LoopState state() const;
  const RequestLimits& limits() const;
  // No new requests from now on (503 draining). Open ones go on until `deadline`, then end with on_lost("draining").
  void drain(std::chrono::steady_clock::time_point deadline);
  bool drained() const;  // nothing is open any more, after drain()
  // Ends the thread after its step; what is open is lost ("draining"). Calls from outside are refused from then on.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Lowers the priority of the calling thread a little (nice +5), and of threads that it makes from now on. The threads
// that compute keep every core busy for a whole step; the few that serve sockets must get one at once when they wake,
// or /health and cancels wait for a step. They need little time, so computing loses next to nothing.
void yield_to_io();

}  // namespace carpool
