// A target with a fault, for self_test.sh: what replay.cc finds and keeps.
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  FUZZ_CHECK(text.find("fault") == std::string_view::npos, "the fault of the self-test");
  return 0;
}
