// The thread that owns the engine, and how everything else talks to it.
//
// Owns EngineLoop: a bounded inbox of requests and cancels, the step loop, the hand-over of events, drain and death. All
// public calls are thread-safe and return at once. An exception in the engine thread ends the loop: every open request
// gets an error, alive() turns false, and the process exits 70 (promise 5: never a hang). Does not know HTTP.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace carpool {

// Where the events of one request go. Called on the engine thread, must neither block nor throw.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(const Event& event) = 0;
  // The engine died or the drain deadline passed before the request ended; `code` is "engine_dead" or "draining".
  virtual void on_lost(const char* code) = 0;
};

struct LoopLimits {
  int max_queued = 4096;    // requests that wait for admission
  double key_share = 0.25;  // of the queue, for one tenant, when there are several; over it 429 key_queue_full
};

// A moment's view, for /load, /metrics and /health. Copied whenever a step ends.
struct LoopState {
  bool alive = false, draining = false;
  double last_progress = 0;  // now_seconds() of the last step, or of the last look at an empty inbox
  int running = 0, waiting = 0;
  int kv_total_blocks = 0, kv_free_blocks = 0, kv_cached_blocks = 0;  // cached: held by the prefix cache alone
  double tokens_per_second = 0;  // of generated tokens, over the last seconds
  double estimated_wait = 0;     // seconds until a request queued now is admitted
  std::string policy;            // canonical spec of policy 0
};

class EngineLoop {
 public:
  EngineLoop(std::unique_ptr<Engine> engine, const LoopLimits& limits);
  ~EngineLoop();  // stop now

  // What is asked of every step, on the engine thread, right after it (metrics). Set before start().
  void on_step(std::function<void(const Engine&, const StepReport&)> observer);
  void start();

  // Queues the request and returns its id. Throws ApiError: 400 for values out of range, 429 key_queue_full, 503
  // overloaded / draining / engine_dead with Retry-After. `sink` is kept until its last event.
  RequestId submit(Request request, std::shared_ptr<EventSink> sink);
  // The request ends within one step with FinishReason::kCancelled. Nothing for ids that are unknown or ended.
  void cancel(RequestId id);
  // Runs `work` on the engine thread between two steps (policy switch, cache flush, expert statistics).
  void between_steps(std::function<void(Engine&)> work);

  LoopState state() const;
  const RequestLimits& limits() const;
  // No new requests from now on (503 draining). Open ones go on until `deadline`, then end with on_lost("draining").
  void drain(std::chrono::steady_clock::time_point deadline);
  bool drained() const;  // nothing is open any more, after drain()
  // Called once, on the engine thread, when an exception ended it; `what` for the log.
  void on_death(std::function<void(const std::string& what)> callback);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carpool
