// Looks at the server from outside while it is under load: how fast /health answers, and what the process holds.
//
// Owns HealthProber (a thread of its own, so that the load's own queue is not measured), ProcessState (from /proc) and
// ServerState (from /server_info). Read next: main.cc.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/json.h"
#include "soak/cases.h"
#include "soak/tally.h"

namespace carpool::soak {

struct ProcessState {
  int64_t rss_bytes = 0;
  int threads = 0, descriptors = 0;
  json::object report() const;
};
// Error{kMissing} when there is no such process that may be looked at.
ProcessState look(pid_t pid);

struct ServerState {
  int running = 0, waiting = 0;
  int64_t kv_blocks = 0, kv_free = 0, kv_cached = 0;
  bool idle() const { return running == 0 && waiting == 0; }
  json::object report() const;
};

// Blocking calls to a server on this machine. Throw std::runtime_error when it does not answer.
std::string get(int port, const std::string& path, int& status);
json::value get_json(int port, const std::string& path);
std::string post(int port, const std::string& path, const std::string& body, int& status);
ServerState server_state(int port);
ModelFacts model_facts(int port);

// Opens a connection every 100 ms, asks for /health, and notes how long that took from before the connection.
class HealthProber {
 public:
  HealthProber(int port, pid_t pid);  // pid 0 = the process is not looked at
  ~HealthProber() { stop(); }
  void stop();

  // After stop().
  const Samples& latency() const { return latency_; }
  const Samples& late() const { return late_; }  // how much later than asked the prober itself was woken
  int failures() const { return failures_; }     // no answer, or none of 200
  const ProcessState& most() const { return most_; }
  const std::vector<double>& rss_mib() const { return rss_mib_; }  // every 10 s

 private:
  void run(int port, pid_t pid);

  std::atomic<bool> stop_{false};
  Samples latency_, late_;
  int failures_ = 0;
  ProcessState most_;
  std::vector<double> rss_mib_;
  std::thread thread_;
};

}  // namespace carpool::soak
