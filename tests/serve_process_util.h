// A `carpool serve` process of a test: started on any free port, spoken to, and ended.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "programs.h"
#include "server/http_client_test_util.h"

namespace carpool::end_to_end {

class ServeProcess {
 public:
  static constexpr std::chrono::seconds kPatience{120};

  // carpool serve --port 0 ARGUMENTS; waits until it is ready, or at least listens.
  explicit ServeProcess(std::vector<std::string> arguments, bool wait_ready = true) {
    arguments.insert(arguments.begin(), {carpool_binary(), "serve", "--port", "0"});
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDERR_FILENO);
      std::vector<char*> words;
      for (std::string& a : arguments) words.push_back(a.data());
      words.push_back(nullptr);
      ::execv(words[0], words.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    reader_ = std::thread([this, fd = ends[0]] { read_all(fd); });
    wait_for_line(wait_ready ? "ready: http://" : "listening on http://");
    const std::string text = err();
    const size_t at = text.find(":", text.find("//127.0.0.1") + 2);
    port_ = text.find("//127.0.0.1") == std::string::npos ? 0 : std::atoi(text.c_str() + at + 1);
  }
  ~ServeProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    reader_.join();
    if (testing::Test::HasFailure()) ADD_FAILURE() << "the server said:\n" << err();
  }

  int port() const { return port_; }
  pid_t pid() const { return pid_; }
  void signal(int number) { ::kill(pid_, number); }

  // The exit code, 128 + n for a signal. Kills what does not end.
  int wait() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    int status = 0;
    for (;;) {
      const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
      if (ended == pid_) break;
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "the server did not end; it said:\n" << err();
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, &status, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  RawResponse get(const std::string& path, const std::string& headers = "") {
    return RawClient(port_).ask(request_text("GET", path, "", headers));
  }
  RawResponse post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return RawClient(port_).ask(request_text("POST", path, body, headers));
  }

  // What it wrote to standard error so far.
  std::string err() {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  void wait_for_line(const std::string& part) {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_for(lock, kPatience, [&] { return closed_ || text_.find(part) != std::string::npos; });
    EXPECT_TRUE(came && text_.find(part) != std::string::npos) << "no \"" << part << "\" in:\n" << text_;
  }

 private:
  void read_all(int fd) {
    char bytes[4096];
    for (ssize_t n; (n = ::read(fd, bytes, sizeof bytes)) > 0;) {
      const std::lock_guard lock(mutex_);
      text_.append(bytes, static_cast<size_t>(n));
      changed_.notify_all();
    }
    ::close(fd);
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  pid_t pid_ = -1;
  int port_ = 0;
  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  bool closed_ = false;
};

inline json::object json_of(const RawResponse& response) { return parse_json(response.body, "the body").as_object(); }

}  // namespace carpool::end_to_end
