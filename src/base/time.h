// A monotonic clock in seconds.
#pragma once

#include <chrono>

namespace carpool {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace carpool
