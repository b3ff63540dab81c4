// Chat templates: any source with any messages ends within its budget, in an Error or in a text below the limit that is
// the same every time; and no byte of a message becomes trusted text.
#include "text/chat_template.h"

#include <time.h>

#include "base/error.h"
#include "base/json.h"
#include "fuzz.h"

namespace carpool {
namespace {

constexpr std::string_view kSnowman = "\xe2\x98\x83";  // stands in messages, and in no template that is asked about it
constexpr std::chrono::milliseconds kMaxTime{100};
constexpr double kMaxSeconds = 5;  // of processor time: fifty times the budget, for builds with sanitizers
constexpr size_t kMaxOutput = size_t{16} << 20;

double processor_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

ChatInput input_of(std::string_view text) {
  ChatInput input;
  input.max_time = kMaxTime;
  input.now = 1700000000;
  input.trusted_variables = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  input.messages = json::parse(R"([{"role":"system","content":"a"},{"role":"user","content":"\u2603 b </s>"},
                                   {"role":"assistant","content":"\u2603"},{"role":"user","content":"x\n y"}])");
  try {
    const json::value given = parse_json(text, "messages");
    if (given.is_array()) input.messages = given;
    if (given.is_object()) {
      input.variables = given.get_object();
      input.variables.erase("messages");
      if (const json::value* m = given.get_object().if_contains("messages")) input.messages = *m;
    }
  } catch (const JsonError&) {
  }
  input.add_generation_prompt = text.size() % 2 == 0;
  return input;
}

std::string outcome(const ChatTemplate& chat_template, const ChatInput& input, bool snowman_is_theirs) {
  std::string all;
  try {
    const std::vector<Piece> pieces = chat_template.render(input);
    for (size_t i = 0; i < pieces.size(); ++i) {
      FUZZ_CHECK(!pieces[i].text.empty(), "an empty piece");
      FUZZ_CHECK(i == 0 || pieces[i].trusted != pieces[i - 1].trusted, "neighbours of equal trust");
      if (snowman_is_theirs && pieces[i].trusted) {
        FUZZ_CHECK(pieces[i].text.find(kSnowman) == std::string::npos, "text of a message that is trusted");
      }
      all += (pieces[i].trusted ? "t" : "u") + pieces[i].text;
    }
    FUZZ_CHECK(join(pieces).size() <= kMaxOutput, "an output over the limit");
  } catch (const Error& error) {
    FUZZ_CHECK(error.kind() == ErrorKind::kMalformed || error.kind() == ErrorKind::kUsage, error.what());
    return std::string("error: ") + error.what();
  }
  return all;
}

}  // namespace
}  // namespace carpool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  if (size > 16384) return 0;
  fuzz::Bytes bytes(data, size);
  const std::string source(bytes.until("\n=====\n"));
  const double start = processor_seconds();
  std::optional<ChatTemplate> chat_template;
  try {
    chat_template = ChatTemplate::parse(source);
  } catch (const Error& error) {
    FUZZ_CHECK(error.kind() == ErrorKind::kMalformed, error.what());
  }
  if (!chat_template) return 0;
  const ChatInput input = input_of(bytes.rest());
  // Escapes of a template may spell the snowman, and its bytes may stand in it.
  const bool theirs = source.find('\\') == std::string::npos && source.find('\xe2') == std::string::npos;
  const std::string first = outcome(*chat_template, input, theirs);
  const double took = processor_seconds() - start;
  FUZZ_CHECK(took < kMaxSeconds, std::to_string(took) + " s");
  const bool timed = first.starts_with("error: ") && first.find(" ms") != std::string::npos;
  if (timed || took > 0.05) return 0;
  const std::string second = outcome(*chat_template, input, theirs);
  FUZZ_CHECK(second == first || second.starts_with("error: "), "first " + first + "\nthen " + second);
  return 0;
}
