// The engine with the canary for a model: whatever is submitted, cancelled, flushed and switched in whatever order,
// every token is its request's own, no block is lost, the oldest gets on, and all requests end.
#include "engine/simulation_test_util.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  if (size > 4096) return 0;
  static test::SimulatedModel model;
  fuzz::Bytes bytes(data, size);
  // Two bytes a choice; after the last ones a fixed sequence goes on, so that an input is a beginning and never all
  // zeros.
  uint32_t state = static_cast<uint32_t>(size);
  test::Simulation simulation(model, [&]() -> unsigned {
    if (!bytes.empty()) {
      const unsigned high = bytes.byte();
      return high << 8 | bytes.byte();
    }
    state = state * 1664525 + 1013904223;
    return state >> 8;
  });
  const std::string wrong = simulation.run(40);
  FUZZ_CHECK(wrong.empty(), wrong);
  return 0;
}
