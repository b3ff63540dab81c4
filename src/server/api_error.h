// How the HTTP API says no: one shape for every route, with stable codes.
//
// Owns ApiError (thrown by handlers and validators; the session turns it into a response or, once a stream has
// begun, into one error event without [DONE]), and its JSON. Statuses and codes: docs/server.md.
#pragma once

#include <stdexcept>
#include <string>

#include "base/json.h"
#include "engine/request.h"

namespace carpool {

class ApiError : public std::runtime_error {
 public:
  // `message` is for people: no addresses, no paths, no prompt text; what is not printable ASCII is escaped, and it is
  // cut to 300 characters.
  ApiError(int status, std::string type, std::string code, const std::string& message, std::string param = "");

  int status() const { return status_; }
  const std::string& type() const { return type_; }
  const std::string& code() const { return code_; }
  const std::string& param() const { return param_; }  // "" = null
  int retry_after() const { return retry_after_; }     // seconds; 0 = no header
  ApiError& retry_after(int seconds) {
    retry_after_ = seconds;
    return *this;
  }

  // {"error":{"message","type","param","code"}}
  json::object body() const;

 private:
  int status_;
  std::string type_, code_, param_;
  int retry_after_ = 0;
};

// The usual ones.
ApiError bad_request(std::string code, const std::string& message,
                     std::string param = "");                                         // 400 invalid_request_error
ApiError invalid_value(std::string param, const std::string& message);                // 400 invalid_value
ApiError unsupported(std::string param, const std::string& message);                  // 400 unsupported_value
ApiError not_found(std::string code, const std::string& message);                     // 404 not_found_error
ApiError unavailable(std::string code, const std::string& message, int retry_after);  // 503 service_unavailable_error
ApiError from(const RequestError& error);                                             // 400

}  // namespace carpool
