// Read first: watch.h.
#include "soak/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "base/error.h"
#include "base/time.h"
#include "server/http_client_test_util.h"

namespace carpool::soak {
namespace {

constexpr double kEvery = 0.1;  // seconds between probes
constexpr double kProbePatience = 10;
constexpr int kProbesPerLook = 10, kLooksPerPoint = 10;

double mib(int64_t bytes) { return std::round(static_cast<double>(bytes) / 1048576 * 10) / 10; }

RawResponse ask(int port, const std::string& request, double patience = 60) {
  RawClient client(port, patience);
  return client.ask(request);
}

}  // namespace

json::object ProcessState::report() const {
  return {{"rss_mib", mib(rss_bytes)}, {"threads", threads}, {"descriptors", descriptors}};
}

ProcessState look(pid_t pid) {
  const std::string folder = fmt::format("/proc/{}", pid);
  ProcessState state;
  std::ifstream in(folder + "/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmRSS:")) state.rss_bytes = std::atoll(line.c_str() + 6) * 1024;
    if (line.starts_with("Threads:")) state.threads = std::atoi(line.c_str() + 8);
  }
  std::error_code error;
  const std::filesystem::directory_iterator files(folder + "/fd", error);
  if (error || state.threads == 0) throw Error(ErrorKind::kMissing, fmt::format("cannot look at process {}", pid));
  state.descriptors = static_cast<int>(std::distance(begin(files), end(files)));
  return state;
}

json::object ServerState::report() const {
  return {{"running", running},
          {"waiting", waiting},
          {"kv_blocks", kv_blocks},
          {"kv_blocks_free", kv_free},
          {"kv_blocks_cached", kv_cached}};
}

std::string get(int port, const std::string& path, int& status) {
  RawResponse response = ask(port, request_text("GET", path));
  status = response.status;
  return std::move(response.body);
}

json::value get_json(int port, const std::string& path) {
  int status = 0;
  const std::string body = get(port, path, status);
  if (status != 200) throw std::runtime_error(fmt::format("{} answers {}: {}", path, status, body.substr(0, 200)));
  return parse_json(body, path);
}

std::string post(int port, const std::string& path, const std::string& body, int& status) {
  RawResponse response = ask(port, request_text("POST", path, body), 600);
  status = response.status;
  return std::move(response.body);
}

ServerState server_state(int port) {
  const json::value info = get_json(port, "/server_info");
  const json::object& state = info.at("internal_states").at(0).as_object();
  const auto number = [&state](const char* name) { return state.at(name).to_number<int64_t>(); };
  return {static_cast<int>(number("num_running_reqs")), static_cast<int>(number("num_queue_reqs")), number("kv_blocks"),
          number("kv_blocks_free"), number("kv_blocks_cached")};
}

ModelFacts model_facts(int port) {
  const json::value info = get_json(port, "/model_info");
  return {info.at("model_type") == "canary", info.at("max_model_len").to_number<int>(),
          info.at("vocab_size").to_number<int>()};
}

HealthProber::HealthProber(int port, pid_t pid) : thread_([this, port, pid] { run(port, pid); }) {}

void HealthProber::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void HealthProber::run(int port, pid_t pid) {
  const std::string request = request_text("GET", "/health", "", "Connection: close\r\n");
  double next = now_seconds();
  for (int n = 0; !stop_; ++n) {
    next = std::max(next + kEvery, now_seconds());  // a slow answer is not followed by a burst of probes
    std::this_thread::sleep_for(std::chrono::duration<double>(next - now_seconds()));
    const double begin = now_seconds();
    late_.add(begin - next);
    try {
      if (ask(port, request, kProbePatience).status != 200) ++failures_;
    } catch (const std::runtime_error&) {
      ++failures_;
    }
    latency_.add(now_seconds() - begin);
    if (pid == 0 || n % kProbesPerLook != 0) continue;
    try {
      const ProcessState state = look(pid);
      most_ = {std::max(most_.rss_bytes, state.rss_bytes), std::max(most_.threads, state.threads),
               std::max(most_.descriptors, state.descriptors)};
      if (n % (kProbesPerLook * kLooksPerPoint) == 0) rss_mib_.push_back(mib(state.rss_bytes));
    } catch (const Error&) {
      ++failures_;  // the process has gone
    }
  }
}

}  // namespace carpool::soak
