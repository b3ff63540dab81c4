// The plain parts of an exchange. Read next: http_parser.cc (where requests come from), http_session.cc.
#include "server/http.h"

namespace carpool {

std::string_view HttpRequest::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_case_name) return value;
  return "";
}

Response json_response(const json::value& value, int status) {
  Response response;
  response.status = status;
  response.body = json::serialize(value);
  return response;
}

}  // namespace carpool
