// Arguments between tags: what may be written and what may not.
#include "grammar/tagged_arguments.h"

#include <gtest/gtest.h>

#include "grammar/language_test_util.h"
#include "grammar/structure.h"

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

}  // namespace
}  // namespace carpool
