// What every fuzz target uses: a check that stays on, and choices made of the bytes of an input.
//
// A target is one file with LLVMFuzzerTestOneInput. It holds what it tests against something else - a slow reference,
// another way to the same answer, a bound - and ends the process when the two differ; README.md lists them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace carpool::fuzz {

[[noreturn]] inline void fail(const char* condition, const std::string& what) {
  std::fprintf(stderr, "fuzz: %s does not hold: %s\n", condition, what.c_str());
  std::abort();
}

// Takes choices from the front of an input; zeros when it is used up.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : text_(reinterpret_cast<const char*>(data), size) {}
  explicit Bytes(std::string_view text) : text_(text) {}

  bool empty() const { return text_.empty(); }
  std::string_view rest() const { return text_; }
  unsigned byte() {
    if (text_.empty()) return 0;
    const auto b = static_cast<unsigned char>(text_[0]);
    text_.remove_prefix(1);
    return b;
  }
  uint32_t word() {
    uint32_t w = 0;
    for (int i = 0; i < 4; ++i) w = w << 8 | byte();
    return w;
  }
  int below(int n) { return static_cast<int>((n > 256 ? word() >> 1 : byte()) % static_cast<unsigned>(n)); }
  std::string_view take(size_t n) {
    const std::string_view front = text_.substr(0, n);
    text_.remove_prefix(front.size());
    return front;
  }
  // Up to `end`, which is taken, too.
  std::string_view until(std::string_view end) {
    const size_t at = text_.find(end);
    const std::string_view front = text_.substr(0, at);
    text_.remove_prefix(at == std::string_view::npos ? text_.size() : at + end.size());
    return front;
  }

 private:
  std::string_view text_;
};

}  // namespace carpool::fuzz

#define FUZZ_CHECK(condition, what) \
  ((condition) ? static_cast<void>(0) : ::carpool::fuzz::fail(#condition, std::string(what)))

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
