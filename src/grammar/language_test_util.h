// A grammar as the set of its texts, for tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "grammar/structure.h"

namespace carpool {

class Language {
 public:
  explicit Language(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)), matcher_(*grammar_) {}

  bool begins(std::string_view text) { return state_of(text) >= 0; }
  bool has(std::string_view text) {
    const int state = state_of(text);
    return state >= 0 && matcher_.accepting(state);
  }
  bool complete(std::string_view text) {
    const int state = state_of(text);
    return state >= 0 && matcher_.complete(state);
  }
  int state_of(std::string_view text) {
    matcher_.start_work();
    int state = matcher_.start();
    for (const char c : text) {
      if (state < 0) break;
      state = matcher_.step(state, static_cast<unsigned char>(c));
    }
    EXPECT_NE(state, Matcher::kTooMuch) << text;
    return state;
  }
  const std::shared_ptr<const Grammar>& grammar() const { return grammar_; }

 private:
  std::shared_ptr<const Grammar> grammar_;
  Matcher matcher_;
};

inline StructureSpec schema_spec(std::string_view schema) {
  StructureSpec spec;
  spec.kind = StructureSpec::Kind::kJsonSchema;
  spec.path = "schema";
  spec.schema = parse_json(schema, "schema");
  return spec;
}

inline StructureSpec regex_spec(std::string_view regex) {
  StructureSpec spec;
  spec.kind = StructureSpec::Kind::kRegex;
  spec.path = "regex";
  spec.regex = regex;
  return spec;
}

inline Language schema_language(std::string_view schema) { return Language(make_grammar(schema_spec(schema))); }
inline Language regex_language(std::string_view regex) { return Language(make_grammar(regex_spec(regex))); }

// "path: sentence" of the refusal; "" when there is none. "unsupported " before it where we lack something.
inline std::string grammar_refusal(const StructureSpec& spec) {
  try {
    make_grammar(spec);
  } catch (const GrammarError& error) {
    return std::string(error.unsupported() ? "unsupported " : "") + error.path() + ": " + error.what();
  }
  return "";
}

// Calls `visit` with every text over `alphabet` of at most `longest` bytes.
inline void for_all_texts(std::string_view alphabet, size_t longest,
                          const std::function<void(const std::string&)>& visit) {
  std::string text;
  const std::function<void()> go = [&] {
    visit(text);
    if (text.size() == longest) return;
    for (const char c : alphabet) {
      text.push_back(c);
      go();
      text.pop_back();
    }
  };
  go();
}

}  // namespace carpool
