// The load itself: many streams, each doing one thing after another until time is up.
//
// Owns Load (what all streams share) and run_load(). A stream asks and compares, reads slowly, leaves in the middle
// (closing its half, or with a reset), aborts by name, asks for too much, or sends what is no request. All streams run
// on one thread. Read next: cases.h, bad_requests.h, client.h.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <vector>

#include "soak/bad_requests.h"
#include "soak/cases.h"
#include "soak/tally.h"

namespace carpool::soak {

// Shares of requests; the rest are asked and compared.
struct Mix {
  double slow = 0.10, leave = 0.10, abort = 0.05, over_long = 0.02, malformed = 0.01;
};

struct Load {
  boost::asio::ip::tcp::endpoint server;
  const Cases& cases;
  const std::vector<Case>& fixed;  // what to ask when the model is no canary
  const std::vector<BadRequest>& bad;
  Mix mix;
  int streams = 1024;
  double seconds = 300, ramp_s = 5;
  double slow_pause_s = 0.22;  // most that a slow reader waits before each piece
  double patience_s = 120;     // for one request; longer = the server hangs
  uint64_t seed = 1;
};

// Runs until `seconds` have passed and every stream has ended its last request.
void run_load(const Load& load, Tally& tally);

}  // namespace carpool::soak
