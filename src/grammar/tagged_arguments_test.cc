// Arguments between tags: what may be written and what may not.
#include "grammar/tagged_arguments.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>

#include "grammar/language_test_util.h"
#include "grammar/schema_oracle_test_util.h"
#include "grammar/structure.h"
#include "text/parsers/formats.h"

namespace carpool {
namespace {

StructureSpec call(const char* schema, bool lenient = true) {
  StructureSpec spec;
  spec.kind = StructureSpec::Kind::kFrames;
  spec.path = "tools";
  spec.prefix = "<tool_call>";
  FramedSchema frame;
  frame.before = "f";
  frame.after = "</tool_call>";
  frame.schema = parse_json(schema, "s");
  frame.path = "tools[0]";
  frame.tagged = TaggedArguments{"<k>", "</k><v>", "</v>\n"};
  frame.lenient = lenient;
  spec.frames = {frame};
  spec.tags = {"<tool_call>", "</tool_call>", "<k>", "</k>", "<v>", "</v>"};
  return spec;
}

TEST(TaggedArguments, MembersComeInOrderAndTheirValuesFit) {
  Language language(make_grammar(call(R"({"type":"object","properties":{"s":{"type":"string"},"n":{"type":"integer"},
      "e":{"type":"string","enum":["a","b c"]}},"required":["n"]})")));
  for (const char* text :
       {"<tool_call>f<k>n</k><v>12</v>\n</tool_call>",
        "<tool_call>f<k>s</k><v> any < text \"</k> \n</v>\n<k>n</k><v>-1</v>\n<k>e</k><v>b c</v>\n</tool_call>",
        "<tool_call>f<k>s</k><v></v>\n<k>n</k><v>0</v>\n</tool_call>"}) {
    EXPECT_TRUE(language.complete(text)) << text;
  }
  for (const char* text : {"<tool_call>f</tool_call>", "<tool_call>g", "<tool_call>f<k>n</k><v>x",
                           "<tool_call>f<k>n</k><v>\"1\"", "<tool_call>f<k>n</k><v>1</v>\n<k>s</k>", "<tool_call>f<k>z",
                           "<tool_call>f<k>n</k><v>1</v>\n<k>e</k><v>c", "f"}) {
    EXPECT_FALSE(language.begins(text)) << text;
  }
}

TEST(TaggedArguments, WithoutPropertiesThereAreNone) {
  for (const char* schema : {"{}", R"({"type":"object"})", R"({"type":"object","properties":{}})", "true"}) {
    Language language(make_grammar(call(schema)));
    EXPECT_TRUE(language.complete("<tool_call>f</tool_call>")) << schema;
    EXPECT_FALSE(language.begins("<tool_call>f<k>")) << schema;
  }
}

TEST(TaggedArguments, WhatTheGrammarLacksIsTextOrRefused) {
  const char* schema = R"({"type":"object","properties":{"x":{"not":{"type":"string"}}},"required":["x"]})";
  EXPECT_TRUE(Language(make_grammar(call(schema))).complete("<tool_call>f<k>x</k><v>anything</v>\n</tool_call>"));
  EXPECT_NE(grammar_refusal(call(schema, false)).find("tools[0].properties.x"), std::string::npos);
}

// A call of f in this format, as the server asks for it.
StructureSpec call_of(const CallFormat& format, const json::value& parameters, bool lenient) {
  StructureSpec spec = call("{}", lenient);
  const CallSpelling& spelling = format.spelling;
  spec.prefix = format.forced("");
  spec.suffix = spelling.tail;
  spec.frames[0].before = format.forced("f").substr(spec.prefix.size());
  spec.frames[0].after = spelling.finish;
  spec.frames[0].schema = parameters;
  spec.frames[0].tagged = TaggedArguments{std::string(spelling.key_open), std::string(spelling.value_open),
                                          std::string(spelling.value_close)};
  return spec;
}

// The arguments that a reader of the format finds in a text; null where it finds no call.
json::value read_back(const CallFormat& format, const json::value& parameters, const std::string& text) {
  OutputOptions options;
  options.functions =
      std::make_shared<const std::vector<ToolFunction>>(std::vector<ToolFunction>{{"f", parameters.as_object()}});
  OutputParser parser({nullptr, &format}, options);
  OutputEvents events;
  parser.feed(text, events);
  parser.finish(true, events);
  json::value arguments = nullptr;
  for (const OutputEvent& event : events) {
    EXPECT_NE(event.kind, OutputEvent::Kind::kContent) << event.text;
    if (event.kind == OutputEvent::Kind::kArguments) arguments = json::parse(event.text);
  }
  EXPECT_EQ(parser.lost().broken, 0);
  return arguments;
}

// Texts of a grammar at random: for a while any byte, with a liking for the closing tag and for what JSON is made of,
// then what closes things, and where that does not lead to an end, the shortest way there.
class Sampler {
 public:
  Sampler(std::shared_ptr<const Grammar> grammar, std::string liked)
      : grammar_(std::move(grammar)), liked_(std::move(liked)) {}

  std::string sample(std::mt19937& random) {
    std::string text;
    matcher_.emplace(*grammar_);  // of which each keeps a limited number of states
    matcher_->start_work();
    int state = matcher_->start();
    for (int steps = 40 + static_cast<int>(random() % 120); steps > 0; --steps) {
      matcher_->start_work();
      std::string next;
      for (int b = 1; b < 256; ++b) {
        if (matcher_->step(state, static_cast<unsigned char>(b)) >= 0) next += static_cast<char>(b);
      }
      if (next.empty()) return text;
      char c = next[random() % next.size()];
      std::string some;
      const char after = following(text);
      for (const char n : next) {
        if (std::string_view("\"'{}[]<12nul\\ \n").find(n) != std::string::npos) some += n;
      }
      if (!some.empty() && random() % 2 == 0) c = some[random() % some.size()];
      if (next.find(after) != std::string::npos && random() % 3 != 0) c = after;
      text += c;
      state = matcher_->step(state, static_cast<unsigned char>(c));
    }
    return ended(std::move(text), state);
  }

 private:
  // The byte that goes on with what the text has of the closing tag.
  char following(const std::string& text) const {
    for (size_t n = std::min(liked_.size() - 1, text.size()); n > 0; --n) {
      if (text.ends_with(liked_.substr(0, n))) return liked_[n];
    }
    return liked_[0];
  }
  // JSON ends by quotes and brackets, bare text by its tag.
  std::string ended(const std::string& text, int state) {
    for (const bool json : {true, false}) {
      std::string closed = text;
      int at = state;
      for (int steps = 0; steps < 300 && !matcher_->accepting(at); ++steps) {
        const std::string tag(1, following(closed));
        at = go(closed, at, json ? "\"]}" + tag + "\n" : tag + "]}\"\n");
      }
      if (matcher_->accepting(at)) return closed;
    }
    return text + shortest_end(state);
  }
  // Appends the first of `first` that may come, or else of all bytes.
  int go(std::string& text, int state, const std::string& first) {
    matcher_->start_work();
    std::string bytes = first;
    for (int b = 1; b < 256; ++b) bytes += static_cast<char>(b);
    for (const char c : bytes) {
      const int to = matcher_->step(state, static_cast<unsigned char>(c));
      if (to < 0) continue;
      text += c;
      return to;
    }
    return state;
  }
  std::string shortest_end(int state) {
    std::vector<std::pair<int, std::string>> reached = {{state, ""}};
    std::set<int> seen = {state};
    for (size_t i = 0; i < reached.size() && i < 20000; ++i) {
      const auto [at, text] = reached[i];
      if (matcher_->accepting(at)) return text;
      matcher_->start_work();
      for (int b = 1; b < 256; ++b) {
        const int to = matcher_->step(at, static_cast<unsigned char>(b));
        if (to >= 0 && seen.insert(to).second) reached.emplace_back(to, text + static_cast<char>(b));
      }
    }
    ADD_FAILURE() << "no end";
    return "";
  }

  std::shared_ptr<const Grammar> grammar_;
  std::optional<Matcher> matcher_;
  std::string liked_;
};

const char* const kDefs = R"("$defs":{"color":{"enum":["red","sea green"]},"size":{"anyOf":[{"type":"integer"},
    {"$ref":"#/$defs/color"}]},"list":{"type":"array","items":{"$ref":"#/$defs/size"},"maxItems":3}})";

TEST(TaggedArguments, WhatTheGrammarWritesAReaderReadsAsTheSchemaSays) {
  const CallFormat* const formats[] = {&kCallsGlm45, &kCallsGlm47, &kCallsQwen3Coder, &kCallsMiniMaxM2};
  const char* const properties[] = {
      R"({"type":"string"})",
      R"({"anyOf":[{"type":"string"},{"type":"null"}]})",
      R"({"type":["string","null"]})",
      R"({"type":["string","integer"]})",
      R"({"type":"string","nullable":true})",
      R"({"enum":["a","true","5"]})",
      R"({"enum":["a",5,null,"</arg_value>","</parameter>"]})",
      R"({"const":"12"})",
      R"({"const":12})",
      R"({"type":"string","const":"null"})",
      R"({"type":"string","minLength":3})",
      R"({"type":"string","minLength":2,"maxLength":5})",
      R"({"type":"string","pattern":"^[b-z<]{2,9}$"})",
      R"({"type":"string","pattern":"b"})",
      R"({"type":"string","format":"date"})",
      R"({"type":["string","null"],"pattern":"^[<a]+$"})",
      R"({"type":"array","items":{"type":"string"}})",
      R"({"type":"array","items":{"type":"string","maxLength":9}})",
      R"({"type":"object","properties":{"a<b":{"type":"string"}},"required":["a<b"]})",
      R"({"$ref":"#/$defs/color"})",
      R"({"$ref":"#/$defs/size"})",
      R"({"$ref":"#/$defs/list"})",
      R"({"allOf":[{"$ref":"#/$defs/color"}],"description":"one of them"})",
      R"({"type":"integer","minimum":3})",
      R"({"type":"boolean"})",
      R"({})",
  };
  std::mt19937 random(7);
  for (const CallFormat* format : formats) {
    for (const char* property : properties) {
      SCOPED_TRACE(std::string(format->name) + " " + property);
      const json::value parameters = parse_json(
          std::string(R"({"type":"object","properties":{"x":)") + property + R"(},"required":["x"],)" + kDefs + "}",
          "s");
      const std::string close = format->spelling.key_open == "<arg_key>" ? "</arg_value>" : "</parameter>";
      Sampler sampler(make_grammar(call_of(*format, parameters, false)), close);
      for (int round = 0; round < 12; ++round) {
        const std::string text = sampler.sample(random);
        const json::value arguments = read_back(*format, parameters, text);
        ASSERT_TRUE(arguments.is_object()) << text;
        ASSERT_TRUE(oracle_accepts(parameters, arguments, parameters)) << text << " read as " << arguments;
      }
    }
  }
}

TEST(TaggedArguments, FormsOfTheWholeAreLookedThrough) {
  const char* const schemas[] = {
      R"({"$ref":"#/$defs/f","$defs":{"f":{"type":"object","properties":{"x":{"type":"string"}},"required":["x"]}}})",
      R"({"allOf":[{"type":"object","properties":{"x":{"type":["string","null"]}}},
                   {"properties":{"x":{"type":"string"},"y":{"type":"integer"}},"required":["x"]}]})",
      R"({"anyOf":[{"type":"object","properties":{"x":{"type":"array","items":{"type":"string"}}},"required":["x"]},
                   {"type":"object","properties":{"x":{"type":"string"},"z":{"const":2}},"required":["z","x"]}]})",
  };
  std::mt19937 random(3);
  for (const char* schema : schemas) {
    const json::value parameters = parse_json(schema, "s");
    Sampler sampler(make_grammar(call_of(kCallsGlm47, parameters, false)), "</arg_value>");
    for (int round = 0; round < 20; ++round) {
      const std::string text = sampler.sample(random);
      const json::value arguments = read_back(kCallsGlm47, parameters, text);
      ASSERT_TRUE(arguments.is_object() && arguments.get_object().contains("x")) << text;
      ASSERT_TRUE(oracle_accepts(parameters, arguments, parameters)) << text << " read as " << arguments;
    }
  }
  // What cannot be merged leaves any arguments, unless it must be kept.
  const char* hard = R"({"allOf":[{"properties":{"x":{"pattern":"a"}}},{"properties":{"x":{"pattern":"b"}}}]})";
  EXPECT_TRUE(
      Language(make_grammar(call(hard))).complete("<tool_call>f<k>x</k><v>any</v>\n<k>y-1</k><v></v>\n</tool_call>"));
  EXPECT_NE(grammar_refusal(call(hard, false)), "");
}

TEST(TaggedArguments, WhatIsStrictIsKeptOrRefusedWithItsPath) {
  const std::pair<const char*, const char*> table[] = {
      {R"x({"type":"object","properties":{"x":{"type":"string","pattern":"(?=a)"}}})x",
       "tools[0].properties.x.pattern"},
      {R"({"type":"object","properties":{"x":{"type":"string","format":"color"}}})", "tools[0].properties.x.format"},
      {R"({"type":"object","properties":{"x":{"type":"string","contentSchema":{}}}})",
       "tools[0].properties.x.contentSchema"},
      {R"({"type":"object","properties":{"x":{"$ref":"#/$defs/none"}}})", "tools[0].properties.x.$ref"},
      {R"({"type":"object","properties":{"x":{}},"required":["y"]})", "tools[0].required"},
      {R"({"type":"object","properties":{"a<":{}},"required":["a<"]})", "tools[0].required"},
      {R"({"type":"object","minProperties":1,"properties":{"x":{}}})", "tools[0].minProperties"},
      {R"({"type":"string"})", "tools[0].type"},
  };
  for (const auto& [schema, path] : table) {
    EXPECT_NE(grammar_refusal(call(schema, false)).find(path), std::string::npos)
        << schema << grammar_refusal(call(schema, false));
    EXPECT_EQ(grammar_refusal(call(schema)), "") << "as far as it can be kept: " << schema;
  }
}

}  // namespace
}  // namespace carpool
