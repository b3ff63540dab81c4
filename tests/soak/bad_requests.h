// Requests that must be refused, with the statuses they may get.
//
// Owns the table of malformed requests of the load: bodies that are no JSON or ask for nonsense, and bytes that are no
// HTTP. That each gets its own code is tested beside the server; here they come between other people's requests.
#pragma once

#include <string>
#include <vector>

#include "soak/cases.h"

namespace carpool::soak {

struct BadRequest {
  std::string name;
  std::string bytes;
  int status;
  bool closes;  // the connection ends behind the answer
};

std::vector<BadRequest> bad_requests(const ModelFacts& facts);

}  // namespace carpool::soak
