// A server of the end-to-end tests: a command as its own process, ready when its log says so, ended with the test.
//
// Owns ServerProcess. It listens on a free port that it reads from the log. What it waits for ends at a deadline with
// a failed test, never with a hang. Read next: server/http_client_test_util.h.
#pragma once

#include <signal.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "end_to_end_util.h"
#include "server/http_client_test_util.h"

namespace carpool::end_to_end {

class ServerProcess {
 public:
  // `command` is run by exec, with `environment` ("NAME=value") added to ours; it must listen on port 0.
  explicit ServerProcess(const std::vector<std::string>& command, const std::vector<std::string>& environment = {}) {
    const std::string log = folder_ / "log";
    process_ = ::fork();
    if (process_ == 0) {
      for (const std::string& entry : environment) ::putenv(const_cast<char*>(entry.c_str()));
      std::vector<char*> words;
      for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
      words.push_back(nullptr);
      if (!std::freopen(log.c_str(), "w", stderr)) ::_exit(127);
      ::execv(words[0], words.data());
      ::_exit(127);
    }
    wait_ready();
  }
  ~ServerProcess() { stop(); }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  bool ready() const { return port_ > 0; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::string log() const { return slurp(folder_ / "log"); }

  RawResponse ask(const std::string& method, const std::string& path, const std::string& body = "") const {
    RawClient client(port_, kPatience.count());
    return client.ask(request_text(method, path, body, "Connection: close\r\n"));
  }
  // The answer must be a JSON object of status 200.
  json::object json_of(const std::string& method, const std::string& path, const std::string& body = "") const {
    const RawResponse response = ask(method, path, body);
    EXPECT_EQ(response.status, 200) << path << ": " << response.body;
    return response.status == 200 ? parse_json(response.body, path).as_object() : json::object{};
  }

  // Ends it as an operator does; its exit code.
  int stop() {
    if (process_ <= 0) return code_;
    ::kill(process_, SIGTERM);
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!ended()) {
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "SIGTERM did not end the server\n" << log();
        ::kill(process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
        process_ = 0;
        return code_;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return code_;
  }

 private:
  static constexpr std::chrono::seconds kPatience{300};

  bool ended() {
    int status = 0;
    if (::waitpid(process_, &status, WNOHANG) != process_) return false;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    process_ = 0;
    return true;
  }

  void wait_ready() {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    const std::string mark = "ready: http://127.0.0.1:";
    while (std::chrono::steady_clock::now() < end) {
      const std::string text = log();
      const size_t at = text.find(mark);
      if (at != std::string::npos && text.find('\n', at) != std::string::npos) {
        port_ = std::atoi(text.c_str() + at + mark.size());
        return;
      }
      if (ended()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "the server did not become ready\n" << log();
  }

  TemporaryFolder folder_;
  pid_t process_ = 0;
  int code_ = -1, port_ = 0;
};

}  // namespace carpool::end_to_end
