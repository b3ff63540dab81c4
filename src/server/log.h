// The server's log: one line per fact on standard error, as text or JSON.
//
// Owns levels, time stamps (UTC, milliseconds), escaping (one line stays one line) and the format. Thread-safe. Prompts
// and generated text are never passed to it, nor keys; what comes from clients is escaped and cut.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"

namespace carpool {

enum class LogLevel { kDebug, kInfo, kWarn, kError };
enum class LogFormat { kText, kJson };

class Log {
 public:
  struct Field {
    Field(std::string_view k, json::value v) : key(k), value(std::move(v)) {}
    Field(std::string_view k, const char* v) : key(k), value(v) {}
    Field(std::string_view k, const std::string& v) : key(k), value(json::string_view(v.data(), v.size())) {}
    std::string_view key;
    json::value value;
  };
  using Write = std::function<void(std::string_view line)>;  // with its newline; for tests

  Log(LogLevel least, LogFormat format, Write write = {});  // default: standard error

  // text: "2026-01-31T10:00:00.123Z info  request done id=... status=200"; JSON: the same as one object.
  void write(LogLevel level, std::string_view message, std::initializer_list<Field> fields = {});
  void debug(std::string_view m, std::initializer_list<Field> f = {}) { write(LogLevel::kDebug, m, f); }
  void info(std::string_view m, std::initializer_list<Field> f = {}) { write(LogLevel::kInfo, m, f); }
  void warn(std::string_view m, std::initializer_list<Field> f = {}) { write(LogLevel::kWarn, m, f); }
  void error(std::string_view m, std::initializer_list<Field> f = {}) { write(LogLevel::kError, m, f); }

 private:
  const LogLevel least_;
  const LogFormat format_;
  Write write_;
  std::mutex mutex_;
};

}  // namespace carpool
