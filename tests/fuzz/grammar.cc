// Structured text: a schema, an expression or choices become a grammar or one Error; a token may come exactly when the
// grammar takes its bytes one by one; and what has been written when the text may end is what was asked for.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "fuzz.h"
#include "grammar/constraint.h"
#include "grammar/matcher.h"
#include "grammar/schema_oracle_test_util.h"
#include "grammar/structure.h"

namespace carpool {
namespace {

constexpr int kSteps = 60, kThoroughSteps = 4;  // in the latter every byte is compared, then one in sixteen
constexpr size_t kMaxSource = 1500;

// All bytes, and words that make long steps.
std::vector<std::string> vocabulary() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (const char* word : {"{\"",      "\": ", "\",", "\"}", "}}",   "[[",       "], ",      "true",
                           "false",    "null", "12",  "0.",  "-1",   "\\u00",    "\xc3\xa9", "\xe2\x98",
                           "\x98\x83", "ab",   "aa",  "abc", "\n  ", "</think>", "e+",       "\"a\": 1"}) {
    tokens.emplace_back(word);
  }
  return tokens;
}

StructureSpec spec_of(unsigned kind, std::string_view source) {
  StructureSpec spec;
  spec.path = "field";
  switch (kind % 4) {
    case 0:
      spec.kind = StructureSpec::Kind::kJsonSchema;
      spec.schema = parse_json(source, "schema");
      break;
    case 1:
      spec.kind = StructureSpec::Kind::kRegex;
      spec.regex = source;
      break;
    case 2:
      spec.kind = StructureSpec::Kind::kChoice;
      while (!source.empty()) {
        const size_t at = std::min(source.find('|'), source.size());
        spec.choices.emplace_back(source.substr(0, at));
        source.remove_prefix(std::min(at + 1, source.size()));
      }
      break;
    default:
      spec.kind = StructureSpec::Kind::kJsonObject;
  }
  if (kind / 4 % 8 == 1) spec.reasoning = FreeReasoning{.close = "</think>", .stops = {"</think>"}, .lines = true};
  return spec;
}

// Text, with the token that comes last still to be added, against the grammar byte by byte.
class Reference {
 public:
  explicit Reference(const Grammar& grammar) : matcher_(grammar), state_(matcher_.start()) {}
  bool known() const { return state_ >= 0; }
  bool can_end() const { return matcher_.accepting(state_); }
  int after(std::string_view token) {
    int state = state_;
    matcher_.start_work();
    for (const char c : token) {
      if (state >= 0) state = matcher_.step(state, static_cast<unsigned char>(c));
    }
    return state;
  }
  void take(std::string_view token) { state_ = after(token); }

 private:
  Matcher matcher_;
  int state_;
};

void check_mask(const TokenMask& mask, Reference& reference, const std::vector<std::string>& tokens, int step) {
  int64_t count = 0;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const bool allowed = mask.allows(static_cast<int>(id));
    count += allowed;
    if (step >= kThoroughSteps && id < 256 && (id + static_cast<size_t>(step)) % 16 != 0) continue;
    const int state = reference.after(tokens[id]);
    if (state == Matcher::kTooMuch) continue;
    FUZZ_CHECK(allowed == (state >= 0),
               "token \"" + escape(tokens[id]) + (allowed ? "\" may come" : "\" may not come"));
  }
  FUZZ_CHECK(count == mask.count, std::to_string(mask.count) + " for " + std::to_string(count));
  FUZZ_CHECK(mask.can_end == reference.can_end(), mask.can_end ? "may end" : "may not end");
}

// As clients read it: of two equal keys, which JSON allows and a grammar cannot count, the last one.
json::value parsed(std::string_view text) {
  json::parse_options options;
  options.max_depth = kSteps * 4;
  try {
    return json::parse(text, {}, options);
  } catch (const std::exception& error) {
    FUZZ_CHECK(false, std::string(error.what()) + ": " + escape(std::string(text)));
  }
  return nullptr;
}

void check_text(const StructureSpec& spec, std::string_view text) {
  if (spec.reasoning) {
    text.remove_prefix(text.find(spec.reasoning->close) + spec.reasoning->close.size());
    while (text.starts_with('\n')) text.remove_prefix(1);
  }
  if (spec.kind == StructureSpec::Kind::kChoice) {
    FUZZ_CHECK(std::find(spec.choices.begin(), spec.choices.end(), text) != spec.choices.end(), text);
  }
  if (spec.kind == StructureSpec::Kind::kJsonObject) FUZZ_CHECK(parsed(text).is_object(), text);
  if (spec.kind != StructureSpec::Kind::kJsonSchema) return;
  const json::value value = parsed(text);
  // The library's expressions backtrack without end, and differ in syntax.
  if (json::serialize(spec.schema).find("\"pattern\"") != std::string::npos) return;
  FUZZ_CHECK(oracle_accepts(spec.schema, value, spec.schema), text);
}

}  // namespace
}  // namespace carpool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  static const std::vector<std::string> tokens = vocabulary();
  static const auto trie = std::make_shared<const TokenTrie>(tokens);
  fuzz::Bytes bytes(data, size);
  const unsigned kind = bytes.byte();
  const std::string_view source = bytes.until("\n=====\n");
  if (source.size() > kMaxSource) return 0;
  StructureSpec spec;
  std::shared_ptr<const Grammar> grammar;
  try {
    spec = spec_of(kind, source);
    grammar = make_grammar(spec);
  } catch (const JsonError&) {
    return 0;
  } catch (const GrammarError& error) {
    FUZZ_CHECK(error.path().starts_with("field"), error.path() + ": " + error.what());
    return 0;
  }
  Reference reference(*grammar);
  ConstraintCursor cursor(std::make_shared<Constraint>(grammar, trie));
  std::string text;
  for (int i = 0; i < kSteps && reference.known(); ++i) {
    const auto mask = cursor.mask();
    if (!mask) break;  // a limit of work: the request ends
    check_mask(*mask, reference, tokens, i);
    if (mask->can_end) check_text(spec, text);
    std::vector<int> allowed;
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (mask->allows(static_cast<int>(id))) allowed.push_back(static_cast<int>(id));
    }
    FUZZ_CHECK(!allowed.empty() || mask->can_end, "neither a token nor the end");
    FUZZ_CHECK(cursor.complete() == allowed.empty(), "complete");
    if (allowed.empty()) break;
    const unsigned choice = bytes.byte();
    ConstraintCursor other = cursor;
    const int any = static_cast<int>(choice) % static_cast<int>(tokens.size());
    FUZZ_CHECK(other.accept(any) == mask->allows(any), "accept and allows differ");
    const int id = allowed[(choice + static_cast<size_t>(i) * (bytes.empty() ? 37 : 0)) % allowed.size()];
    FUZZ_CHECK(cursor.accept(id), "an allowed token is not accepted");
    reference.take(tokens[static_cast<size_t>(id)]);
    text += tokens[static_cast<size_t>(id)];
  }
  return 0;
}
