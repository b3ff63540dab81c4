// Makes the engine's thread of `carpool serve dummy:canary,step_us=N` fail, from outside: the program has no such door.
//
// Preloaded, it stands in for the call by which a step of that model sleeps, and throws there as soon as the file
// CARPOOL_TEST_FAULT exists. That the process then ends with 70 is tested in serve_faults_test.cc.
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <stdexcept>

extern "C" int nanosleep(const timespec* wanted, timespec* left) {
  const char* file = std::getenv("CARPOOL_TEST_FAULT");
  if (file && ::access(file, F_OK) == 0) throw std::runtime_error("the fault of a test");
  const int error = ::clock_nanosleep(CLOCK_MONOTONIC, 0, wanted, left);
  if (error == 0) return 0;
  errno = error;
  return -1;
}
