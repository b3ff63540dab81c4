// Text that streams: tokens cut anywhere give the text of all of them, up to the first stop string, as whole UTF-8.
#include "engine/text_stream.h"

#include <utility>
#include <vector>

#include "fuzz.h"
#include "text/dummy_tokenizer.h"
#include "text/utf8.h"

namespace carpool {
namespace {

constexpr int kVocab = 400;  // bytes, the end token, and short words

}  // namespace
}  // namespace carpool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  if (size > 4096) return 0;
  static const Tokenizer tokenizer = make_dummy_tokenizer(kVocab);
  fuzz::Bytes bytes(data, size);
  const bool include = bytes.below(2) == 1, skip = bytes.below(2) == 1, words = bytes.below(2) == 1;
  std::vector<std::string> stops;
  for (int n = bytes.below(4); n > 0; --n) {
    std::string stop(bytes.take(1 + static_cast<size_t>(bytes.below(6))));
    if (!stop.empty() && is_valid_utf8(stop)) stops.push_back(stop);
  }
  std::vector<int> ids;
  while (!bytes.empty()) ids.push_back(words ? bytes.below(kVocab) : static_cast<int>(bytes.byte()));
  const std::string whole = tokenizer.decode(ids, skip);
  FUZZ_CHECK(is_valid_utf8(whole), "decoded text that is not UTF-8");

  // The stop that is complete first, and of several the one that begins first.
  size_t end = std::string::npos, first = 0;
  std::string matched;
  for (const std::string& stop : stops) {
    const size_t at = whole.find(stop);
    if (at == std::string::npos || std::pair(at + stop.size(), at) >= std::pair(end, first)) continue;
    first = at, end = at + stop.size(), matched = stop;
  }
  const std::string expected = end == std::string::npos ? whole : whole.substr(0, include ? end : first);

  TextStream stream(&tokenizer, stops, include, skip);
  std::string text;
  for (const int id : ids) {
    const std::string part = stream.push(id);
    FUZZ_CHECK(is_valid_utf8(part), "part of a character was handed out");
    text += part;
    FUZZ_CHECK(expected.starts_with(text), "handed out " + text + " of " + expected);
    if (stream.stopped()) break;
  }
  text += stream.finish();
  FUZZ_CHECK(text == expected, text + " for " + expected);
  FUZZ_CHECK(stream.matched() == matched, stream.matched() + " for " + matched);
  return 0;
}
