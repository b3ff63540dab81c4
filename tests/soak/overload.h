// More connections at once than the server will take: how fast it says no, and whether that costs the others.
//
// Owns run_overload(): first a closed loop that the server can take (saturation), then thousands of connections at
// once, of which each asks, is answered or refused, waits as it was told, and asks again. Times of refusals are taken
// by the kernel when the answer arrives, so that this program's own queue is not measured.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>

#include "base/json.h"
#include "soak/cases.h"
#include "soak/tally.h"

namespace carpool::soak {

struct OverloadPlan {
  boost::asio::ip::tcp::endpoint server;
  const Cases& cases;
  int connections = 4096;
  int saturation = 256;     // connections of the closed loop; the server must be able to take them all
  double seconds = 60;      // of each part
  double settle_s = 10;     // at the start of each part that do not count for throughput
  double most_wait_s = 60;  // that a refused client waits; less than it is told = it is impatient
  uint64_t seed = 1;
};

struct OverloadResult {
  Tally saturated, overloaded;
  double saturated_tokens_per_second = 0, overloaded_tokens_per_second = 0;
  Samples retry_after;  // what the refused were told
  // From before the request is handed to the kernel until the kernel has the first byte of the answer.
  Samples first_refusals;  // of the requests sent all at once
  Samples refusals;        // all
  Samples refusals_read;   // the same until this program read them
  json::object report() const;
};

OverloadResult run_overload(const OverloadPlan& plan);

}  // namespace carpool::soak
