// Lines of the log: a time stamp, a level, a sentence and fields, as text or as one JSON object. See log.h.
#include "server/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>

#include "base/error.h"
#include "text/utf8.h"

namespace carpool {
namespace {

constexpr size_t kLongestValue = 400;  // characters of a string field

const char* name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kError:
      break;
  }
  return "error";
}

// UTC with milliseconds: 2026-01-31T10:00:00.123Z.
std::string time_stamp() {
  const auto now = std::chrono::system_clock::now();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const auto seconds = static_cast<std::time_t>(ms / 1000);
  std::tm t{};
  ::gmtime_r(&seconds, &t);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday, t.tm_hour,
                     t.tm_min, t.tm_sec, ms % 1000);
}

std::string_view text_of(const json::string& s) { return {s.data(), s.size()}; }

// key=value of a text line: strings are escaped, and quoted where the value would not end at the next space.
std::string text_value(const json::value& value) {
  if (value.is_double()) return fmt::format("{:.6g}", value.get_double());
  if (!value.is_string()) return json::serialize(value);
  const std::string safe = escape(text_of(value.get_string()), kLongestValue);
  return safe.empty() || safe.find_first_of(" =") != std::string::npos ? "\"" + safe + "\"" : safe;
}

std::string text_line(LogLevel level, std::string_view message, std::initializer_list<Log::Field> fields) {
  std::string line = fmt::format("{} {:<5} {}", time_stamp(), name(level), escape(message, kLongestValue));
  for (const auto& [key, value] : fields) line += fmt::format(" {}={}", key, text_value(value));
  return line;
}

// A string cut to the limit without broken UTF-8; JSON's own escapes keep it in one line.
json::value json_value(const json::value& value) {
  if (!value.is_string()) return value;
  const std::string_view text = text_of(value.get_string());
  return json::value(sanitize_utf8(std::string(text.substr(0, kLongestValue))));
}

std::string json_line(LogLevel level, std::string_view message, std::initializer_list<Log::Field> fields) {
  json::object line{{"time", time_stamp()}, {"level", name(level)}, {"message", json_value(json::value(message))}};
  for (const auto& [key, value] : fields) line[key] = json_value(value);
  return json::serialize(line);
}

// What standard error does not take is lost: a log that blocks or ends a server is worse than one with a gap.
void write_stderr(std::string_view line) {
  while (!line.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    line.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

Log::Log(LogLevel least, LogFormat format, Write write)
    : least_(least), format_(format), write_(write ? std::move(write) : Write(write_stderr)) {}

void Log::write(LogLevel level, std::string_view message, std::initializer_list<Field> fields) {
  if (level < least_) return;
  const std::string line =
      (format_ == LogFormat::kJson ? json_line(level, message, fields) : text_line(level, message, fields)) + "\n";
  const std::lock_guard lock(mutex_);
  write_(line);
}

}  // namespace carpool
