// Tokenizer files that must be refused, each with a sentence that names the file and the key; and files damaged at
// random, which may load or not but never crash.
#include <gtest/gtest.h>

#include <functional>

#include "base/json.h"
#include "base/source_dir_test_util.h"
#include "text/split_regex.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace carpool {
namespace {

std::string small_file(const std::string& name = "digits") {
  return read_text_file(source_dir() + "/tests/golden/tokenizer/" + name + ".json");
}

// What is wrong with `text` according to the loader; empty when it loads.
std::string refusal(std::string_view text) {
  try {
    Tokenizer::parse(text, "tokenizer.json").encode("A b1  <|end|>\n", true);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 65);
    const std::string sentence = error.what();
    EXPECT_TRUE(sentence.starts_with("tokenizer.json: ")) << sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
    return sentence;
  }
}

struct Damage {
  const char* name;
  std::function<void(json::object&)> apply;
  const char* in_sentence;
};

json::object& model(json::object& root) { return root.at("model").as_object(); }
json::object& vocab(json::object& root) { return model(root).at("vocab").as_object(); }
json::array& added(json::object& root) { return root.at("added_tokens").as_array(); }
json::value parse(const char* text) { return json::parse(text); }

void expect_refused(const std::vector<Damage>& damages, const char* file = "digits") {
  const json::value good = json::parse(small_file(file));
  ASSERT_EQ(refusal(json::serialize(good)), "");
  for (const Damage& damage : damages) {
    json::value bad = good;
    damage.apply(bad.as_object());
    const std::string sentence = refusal(json::serialize(bad));
    EXPECT_NE(sentence.find(damage.in_sentence), std::string::npos) << damage.name << ": " << sentence;
  }
}

TEST(TokenizerFile, BadVocabulariesAreRefusedByTheirKeyPath) {
  expect_refused({
      {"not an object", [](auto& r) { model(r)["vocab"] = json::array{}; }, "\"model\": \"vocab\": expected an object"},
      {"missing", [](auto& r) { model(r).erase("vocab"); }, "\"vocab\": missing"},
      {"empty", [](auto& r) { model(r)["vocab"] = json::object{}; }, "no token for the byte 0x09"},
      {"a byte missing", [](auto& r) { vocab(r).erase("A"); }, "no token for the byte 0x41"},
      {"negative id", [](auto& r) { vocab(r)["A"] = -1; }, "\"A\": must be 0 to 4194303"},
      {"id at the limit", [](auto& r) { vocab(r)["A"] = 1 << 22; }, "\"A\": must be 0 to 4194303"},
      {"fractional id", [](auto& r) { vocab(r)["A"] = 1.5; }, "\"A\": expected an integer"},
      {"id as text", [](auto& r) { vocab(r)["A"] = "7"; }, "\"A\": expected an integer"},
      {"id twice", [](auto& r) { vocab(r)["A"] = vocab(r)["B"]; }, "is used twice"},
      {"hole", [](auto& r) { vocab(r)["zzz"] = 100000; }, "\"model\": no token has the id"},
      {"empty token", [](auto& r) { vocab(r)[""] = 451; }, "a token must not be empty"},
  });
}

TEST(TokenizerFile, BadMergesAreRefusedByTheirPlaceInTheList) {
  const auto first = [](const char* merge) {
    return [=](json::object& r) { model(r).at("merges").as_array()[0] = json::parse(merge); };
  };
  expect_refused({
      {"left part unknown", first(R"(["nope", "e"])"), "entry 0: the left part \"nope\" is not in the vocabulary"},
      {"right part unknown", first(R"(["e", "nope"])"), "the right part \"nope\""},
      {"result unknown", first(R"(["Q", "Q"])"), "the result \"QQ\" is not in the vocabulary"},
      {"one part", first(R"("ab")"), "two tokens with a space"},
      {"three parts", first(R"("a b c")"), "two tokens with a space"},
      {"empty part", first(R"(["", "a"])"), "the left part \"\""},
      {"pair of numbers", first("[1, 2]"), "a string or a pair"},
      {"three strings", first(R"(["a", "b", "c"])"), "a string or a pair"},
      {"not a list", [](auto& r) { model(r)["merges"] = "a b"; }, "\"merges\": expected an array"},
      {"missing", [](auto& r) { model(r).erase("merges"); }, "\"merges\": missing"},
  });
}

TEST(TokenizerFile, MergesAsTextAndAsPairsMeanTheSame) {
  json::value pairs = json::parse(small_file()), text = pairs;
  for (json::value& merge : text.at("model").at("merges").as_array()) {
    const auto pair = json::value_to<std::vector<std::string>>(merge);
    merge = pair[0] + " " + pair[1];
  }
  const Tokenizer a = Tokenizer::parse(json::serialize(pairs), "a"), b = Tokenizer::parse(json::serialize(text), "b");
  const std::string sentence = "the old driver carried passengers";
  EXPECT_EQ(a.encode(sentence, false), b.encode(sentence, false));
  EXPECT_LT(a.encode(sentence, false).size(), sentence.size());
}

TEST(TokenizerFile, BadAddedTokensAreRefusedByTheirPlaceInTheList) {
  const auto change = [](const char* key, json::value value) {
    return [=](json::object& r) { added(r)[0].as_object()[key] = value; };
  };
  expect_refused({
      {"id of another token", change("id", 5), "entry 0 (\"<|begin|>\"): has the id 5, but 0 in the vocabulary"},
      {"new token on a used id", change("content", "<|new|>"), "the id 0 belongs to another token"},
      {"negative id", change("id", -1), "\"added_tokens\"[0]: \"id\": must be 0"},
      {"id over the limit", change("id", 1 << 22), "\"id\": must be 0 to 4194303"},
      {"no id", [](auto& r) { added(r)[0].as_object().erase("id"); }, "\"id\": missing"},
      {"content of a wrong type", change("content", 3), "\"content\": expected a string"},
      {"empty content", change("content", ""), "\"content\": must be 1 to 512 bytes"},
      {"endless content", change("content", json::string(513, 'x')), "\"content\": must be 1 to 512 bytes"},
      {"flag of a wrong type", change("lstrip", 1), "\"lstrip\": expected true or false"},
      {"twice", [](auto& r) { added(r).push_back(json::value(added(r)[0])); }, "is there twice"},
      {"hole", [](auto& r) { added(r)[2].as_object()["id"] = 460; }, "no token has the id 450"},
      {"not a list", [](auto& r) { r["added_tokens"] = 1; }, "\"added_tokens\": expected an array"},
      {"not an object", [](auto& r) { added(r)[1] = "x"; }, "\"added_tokens\"[1]: expected an object"},
  });
}

TEST(TokenizerFile, StagesThatAreNotSupportedAreRefusedByTheirKeyPath) {
  const auto set = [](const char* key, const char* text) { return [=](json::object& r) { r[key] = parse(text); }; };
  const auto set_model = [](const char* key, json::value v) { return [=](json::object& r) { model(r)[key] = v; }; };
  const auto split = [&](const char* pattern) {
    return [=](json::object& r) {
      r["pre_tokenizer"] = {{"type", "Sequence"},
                            {"pretokenizers",
                             {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
                              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    };
  };
  expect_refused({
      {"unigram", set_model("type", "Unigram"), "\"type\": model type \"Unigram\" is not supported"},
      {"byte fallback", set_model("byte_fallback", true), "\"byte_fallback\": is not supported"},
      {"dropout", set_model("dropout", 0.1), "\"dropout\": must be null or 0"},
      {"prefix", set_model("continuing_subword_prefix", "##"), "\"continuing_subword_prefix\""},
      {"suffix", set_model("end_of_word_suffix", "</w>"), "\"end_of_word_suffix\""},
      {"normalizer", set("normalizer", R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Lowercase"}]})"),
       "\"normalizer\": \"normalizers\"[1]: \"type\": normalizer \"Lowercase\" is not supported"},
      {"whitespace", set("pre_tokenizer", R"({"type":"Whitespace"})"), "pre-tokenizer \"Whitespace\" is not supported"},
      {"no byte level", set("pre_tokenizer", R"({"type":"Digits"})"), "decoder \"ByteLevel\" is not supported"},
      {"no pre-tokenizer", set("pre_tokenizer", "null"), "decoder \"ByteLevel\" is not supported"},
      {"decoder", set("decoder", R"({"type":"WordPiece"})"), "decoder \"WordPiece\" is not supported"},
      {"no decoder", set("decoder", "null"), "\"decoder\": must be ByteLevel"},
      {"post-processor", set("post_processor", R"({"type":"BertProcessing"})"), "post-processor \"BertProcessing\""},
      {"template without text", set("post_processor", R"({"type":"TemplateProcessing","single":[]})"),
       "does not contain the text"},
      {"template names an absent token", set("post_processor", R"({"type":"TemplateProcessing","special_tokens":{},
           "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}]})"),
       "\"special_tokens\": \"<s>\": missing"},
      {"template uses an id outside the vocabulary",
       set("post_processor", R"({"type":"TemplateProcessing","special_tokens":{"<s>":{"ids":[99999]}},
           "single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}]})"),
       "\"ids\": holds something that is not the id of a token"},
      {"expression that does not compile", split("(a"), "\"Regex\": the expression does not compile"},
      {"empty expression", split(""), "\"Regex\": the expression is empty"},
      {"unknown property", split("\\p{Nonsense}"), "does not compile"},
      {"endless nesting",
       [](auto& r) {
         json::value v = {{"type", "ByteLevel"}};
         for (int i = 0; i < 20; ++i) v = {{"type", "Sequence"}, {"pretokenizers", json::array{v}}};
         r["pre_tokenizer"] = v;
       },
       "nested deeper than 8"},
  });
}

TEST(TokenizerFile, StagesOfCharacterVocabulariesThatAreNotSupportedAreRefusedByTheirKeyPath) {
  const auto set = [](const char* key, const char* text) { return [=](json::object& r) { r[key] = parse(text); }; };
  const auto set_model = [](const char* key, json::value v) { return [=](json::object& r) { model(r)[key] = v; }; };
  const auto decoders = [](const char* list) {
    return [=](json::object& r) { r["decoder"] = {{"type", "Sequence"}, {"decoders", parse(list)}}; };
  };
  expect_refused(
      {
          {"a byte missing", [](auto& r) { vocab(r).erase("<0x0A>"); }, "\"vocab\": has no token <0x0A>"},
          {"unknown token unknown", set_model("unk_token", "<what>"), "\"unk_token\": is not in the vocabulary"},
          {"ranks of a wrong type", set_model("ranks", json::array{"x"}), "\"ranks\": entry 0 must be null or 0 to"},
          {"negative rank", set_model("ranks", json::array{nullptr, -1}), "\"ranks\": entry 1 must be"},
          {"expression in a normalizer",
           set("normalizer", R"({"type":"Replace","pattern":{"Regex":" "},"content":"_"})"), "\"String\": missing"},
          {"nothing to replace", set("normalizer", R"({"type":"Replace","pattern":{"String":""},"content":"_"})"),
           "\"String\": is empty"},
          {"space of no width", set("pre_tokenizer", R"({"type":"Metaspace","replacement":""})"), "\"replacement\""},
          {"prefix scheme", set("pre_tokenizer", R"({"type":"Metaspace","replacement":"_","prepend_scheme":"last"})"),
           "unknown scheme \"last\""},
          {"metaspace decoder", set("decoder", R"({"type":"Metaspace","replacement":"_"})"), "decoder \"Metaspace\""},
          {"strip before fuse", decoders(R"([{"type":"Strip","content":" ","start":1,"stop":0},{"type":"Fuse"}])"),
           "decoder \"Strip\" is not supported"},
          {"replace after bytes",
           decoders(R"([{"type":"ByteFallback"},{"type":"Replace","pattern":{"String":"_"},"content":" "}])"),
           "decoder \"Replace\" is not supported"},
          {"strip of two characters",
           decoders(R"([{"type":"Fuse"},{"type":"Strip","content":"ab","start":1,"stop":0}])"), "one character"},
          {"strip at the end", decoders(R"([{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":1}])"),
           "\"stop\": must be 0"},
      },
      "llama2");
}

TEST(TokenizerFile, AnExpressionThatBacktracksWithoutEndIsStopped) {
  json::value root = json::parse(small_file());
  root.as_object()["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(a|aa)+$"}}}, {"behavior", "Isolated"}}, {{"type", "ByteLevel"}}}}};
  const Tokenizer tokenizer = Tokenizer::parse(json::serialize(root), "tokenizer.json");
  EXPECT_FALSE(tokenizer.encode("aaa", false).empty());
  try {
    tokenizer.encode(std::string(100, 'a') + "b", false);
    FAIL() << "an exponential match ended";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("too many steps"), std::string::npos) << error.what();
  }
}

TEST(TokenizerFile, SpellingsThatTheTwoExpressionEnginesReadDifferentlyAreRefused) {
  for (const char* pattern : {"\\w+", "\\bx", "[a[bc]]", "[a-z&&[^b]]", "\\p{N}{1,3}+", "a{,3}", "(?m:.)", "(?im:.)",
                              "x(?i)y|z", "(?P<n>x)", "\\h", "\\K", "(*UTF)", "x\\"}) {
    EXPECT_THROW(translate(pattern, "x"), Error) << pattern;
  }
  for (const char* pattern :
       {"(?i:'s|'t)|\\p{L}++", "(?i)a|b", "(?<=a)b(?!c)(?>d)", "[^\\]\\[]", "[]a]", "\\p{N}{1,3}", "x{2}"}) {
    EXPECT_EQ(translate(pattern, "x"), pattern);
  }
  EXPECT_EQ(translate("\\u4e00", "x"), "\\x{4e00}");
  EXPECT_EQ(translate("[\\p{Han}\\P{^Latin}]\\p{Lu}", "x"), "[\\p{sc:Han}\\P{^sc:Latin}]\\p{Lu}");
}

TEST(TokenizerFile, EveryPrefixIsRefused) {
  const std::string text = small_file();
  for (size_t n = 0; n + 2 < text.size(); ++n) ASSERT_NE(refusal(text.substr(0, n)), "") << n;
}

TEST(TokenizerFile, AFileWithAnyOneByteChangedIsLoadedOrRefusedButNeverCrashes) {
  std::string text = small_file();
  size_t loaded = 0, refused = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char original = text[i];
    for (char change : {'"', '9', static_cast<char>(original ^ 1), static_cast<char>(original ^ 0x80)}) {
      text[i] = change;
      ++(refusal(text).empty() ? loaded : refused);
    }
    text[i] = original;
  }
  EXPECT_GT(loaded, 0u);
  EXPECT_GT(refused, loaded);
}

TEST(TokenizerFile, AMissingFileIsReportedAsMissing) {
  try {
    Tokenizer::load("/nonexistent/tokenizer.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMissing);
  }
}

TEST(TokenizerConfigFile, TokensAreTextOrObjectsAndAbsentOnesStayEmpty) {
  const auto config = TokenizerConfig::parse(
      R"({"eos_token":{"content":"<|end|>","lstrip":false},"pad_token":"<|pad|>","bos_token":null,"chat_template":"x"})",
      "tokenizer_config.json");
  EXPECT_EQ(config.eos_token, "<|end|>");
  EXPECT_FALSE(config.bos_token);
  EXPECT_EQ(config.chat_template, "x");
}

TEST(TokenizerConfigFile, OfSeveralNamedTemplatesTheDefaultIsTaken) {
  const auto config = TokenizerConfig::parse(
      R"({"chat_template":[{"name":"tool_use","template":"a"},{"name":"default","template":"b"}]})", "c");
  EXPECT_EQ(config.chat_template, "b");
}

TEST(TokenizerConfigFile, WrongTypesAreRefusedByTheirKey) {
  for (const char* text : {R"({"eos_token":1})", R"({"eos_token":{}})", R"({"bos_token":["a"]})",
                           R"({"chat_template":{}})", R"({"chat_template":[{"name":"default"}]})", "[]", "{"}) {
    EXPECT_THROW(TokenizerConfig::parse(text, "c"), Error) << text;
  }
}

}  // namespace
}  // namespace carpool
