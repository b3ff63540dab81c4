#include "server/api_error.h"

#include <fmt/format.h>

#include <utility>

namespace carpool {
namespace {

constexpr size_t kMaxMessage = 300;

// Printable ASCII of at most 300 characters. JSON escapes quotes and backslashes itself, so they stay.
std::string printable(const std::string& message) {
  std::string out;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte >= 0x20 && byte < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
    if (out.size() > kMaxMessage) {
      out.resize(kMaxMessage - 3);
      return out + "...";
    }
  }
  return out;
}

constexpr const char* kInvalidRequest = "invalid_request_error";

}  // namespace

ApiError::ApiError(int status, std::string type, std::string code, const std::string& message, std::string param)
    : std::runtime_error(printable(message)),
      status_(status),
      type_(std::move(type)),
      code_(std::move(code)),
      param_(printable(param)) {}

json::object ApiError::body() const {
  json::object error;
  error["message"] = what();
  error["type"] = type_;
  error["param"] = param_.empty() ? json::value(nullptr) : json::value(param_);
  error["code"] = code_;
  return {{"error", std::move(error)}};
}

ApiError bad_request(std::string code, const std::string& message, std::string param) {
  return ApiError(400, kInvalidRequest, std::move(code), message, std::move(param));
}

ApiError invalid_value(std::string param, const std::string& message) {
  return bad_request("invalid_value", message, std::move(param));
}

ApiError unsupported(std::string param, const std::string& message) {
  return bad_request("unsupported_value", message, std::move(param));
}

ApiError not_found(std::string code, const std::string& message) {
  return ApiError(404, "not_found_error", std::move(code), message);
}

ApiError unavailable(std::string code, const std::string& message, int retry_after) {
  return ApiError(503, "service_unavailable_error", std::move(code), message).retry_after(retry_after);
}

ApiError from(const RequestError& error) { return bad_request(error.code(), error.what(), error.field()); }

}  // namespace carpool
