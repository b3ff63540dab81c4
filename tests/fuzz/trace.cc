// Files of routing traces in any format: what is read is in range, and written in our own format it reads back the
// same; what is not is one Error.
#include "measure/trace.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "fuzz.h"

namespace carpool {
namespace {

// A file that lives in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view text) : fd_(::memfd_create("trace", MFD_CLOEXEC)) {
    FUZZ_CHECK(fd_ >= 0 && ::write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "memfd");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void check_trace(const Trace& t) {
  FUZZ_CHECK(t.n_experts >= 1 && t.n_experts <= kMaxTraceExperts && t.top_k >= 1 && t.top_k <= kMaxTraceK, "sizes");
  FUZZ_CHECK(!t.layers.empty() && t.layers.size() <= static_cast<size_t>(kMaxTraceLayers), "layers");
  for (const TraceSequence& s : t.sequences) {
    const auto positions = static_cast<size_t>(s.positions);
    FUZZ_CHECK(s.ids.size() == positions * t.slots(), "ids");
    FUZZ_CHECK(s.weights.empty() || s.weights.size() == s.ids.size(), "weights");
    const size_t scores = positions * t.layers.size() * static_cast<size_t>(t.n_experts);
    FUZZ_CHECK(s.rank.size() == s.mix.size() && (s.rank.empty() || s.rank.size() == scores), "scores");
    for (const int16_t id : s.ids) FUZZ_CHECK(id >= -1 && id < t.n_experts, "an expert");
  }
}

std::string text_of(const Trace& t) {
  std::string text = trace_header(t) + "\n";
  for (const TraceSequence& s : t.sequences) {
    for (int p = 0; p < s.positions; ++p) text += trace_line(t, s, p, p) + "\n";
  }
  return text;
}

}  // namespace
}  // namespace carpool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  if (size > 16384) return 0;
  const MemoryFile file({reinterpret_cast<const char*>(data), size});
  Trace trace;
  try {
    trace = read_traces({file.path()});
  } catch (const Error& error) {
    FUZZ_CHECK(error.kind() == ErrorKind::kMalformed || error.kind() == ErrorKind::kConfig, error.what());
    return 0;
  }
  check_trace(trace);
  const std::string text = text_of(trace);
  const MemoryFile written(text);
  Trace again;
  try {
    again = read_traces({written.path()});
  } catch (const Error& error) {
    FUZZ_CHECK(trace.tokens() == 0, std::string(error.what()) + " for\n" + text);
    return 0;
  }
  FUZZ_CHECK(text_of(again) == text, text_of(again) + "for\n" + text);
  return 0;
}
