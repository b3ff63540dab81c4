// Equality with the tiktoken package is tested in tokenizer_test.cc; here, what is refused and the tokenizer.json that
// is written for other programs.
#include "text/tiktoken.h"

#include <gtest/gtest.h>

#include "base/source_dir_test_util.h"
#include "text/rank_merges.h"
#include "text/tokenizer_files.h"

namespace carpool {
namespace {

const std::string kFolder = source_dir() + "/tests/golden/tokenizer/kimi";
const std::string kConfig = R"({"tokenizer_class":"TikTokenTokenizer"})";

std::string refusal(const std::string& ranks, const std::string& config, ErrorKind kind = ErrorKind::kMalformed) {
  try {
    Tokenizer::from_json(tiktoken_json(ranks, "tiktoken.model", config, "tokenizer_config.json"), "tiktoken.model");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
}

TEST(Tiktoken, BrokenFilesAreRefusedByLineOrKey) {
  const std::string good = read_text_file(kFolder + "/tiktoken.model");
  EXPECT_EQ(refusal(good, kConfig), "");
  EXPECT_EQ(refusal(good + "\r\n", kConfig), "");
  const std::pair<std::string, const char*> bad[] = {
      {"!!!! 5\n", "line 801: does not begin with a token in base64"},
      {"QQ 5\n", "line 801: does not begin with a token in base64"},
      {" 5\n", "line 801: does not begin"},
      {"AAAAAAAA\n", "line 801: the rank must be"},
      {"AAAAAAAA x\n", "the rank must be"},
      {"AAAAAAAA -1\n", "the rank must be"},
      {"AAAAAAAA 4194304\n", "the rank must be"},
      {"QQ== 800\n", "line 801: the token is there twice"},
      {"AAAAAAAA 799\n", "the id 799 is used twice"},
      {"AAAAAAAA 9000\n", "no token has the id"},
  };
  for (const auto& [line, sentence] : bad) {
    const std::string text = refusal(good + line, kConfig);
    EXPECT_NE(text.find(sentence), std::string::npos) << line << " gave " << text;
  }
  EXPECT_NE(refusal("", kConfig).find("no token for the byte"), std::string::npos);
  EXPECT_NE(refusal(good, R"({"tokenizer_class":"PreTrainedTokenizer"})", ErrorKind::kConfig).find("known: TikToken"),
            std::string::npos);
  EXPECT_NE(refusal(good, "{}").find("tokenizer_class"), std::string::npos);
  for (const char* key : {"799", "1056", "x", ""}) {
    const std::string config = R"({"tokenizer_class":"TikTokenTokenizer","added_tokens_decoder":{")" +
                               std::string(key) + R"(":{"content":"<a>"}}})";
    EXPECT_NE(refusal(good, config).find("must be an id from 800 to 1055"), std::string::npos) << key;
  }
}

TEST(Tiktoken, IdsWithoutANameAreReservedTokens) {
  const Tokenizer tokenizer = load_tokenizer(kFolder);
  EXPECT_EQ(tokenizer.token_id("<|begin|>"), 800);
  EXPECT_EQ(tokenizer.token_id("<|reserved_token_802|>"), 802);
  EXPECT_TRUE(tokenizer.is_special(802));
  EXPECT_FALSE(tokenizer.is_special(tokenizer.token_id("<|mask|>").value()));
  EXPECT_TRUE(tokenizer.is_control(tokenizer.token_id("<|mask|>").value()));
}

TEST(Tiktoken, WrittenAsTokenizerJsonItHasMergesAndTheSameIds) {
  const std::string text = read_tokenizer_json(kFolder);
  EXPECT_EQ(text.find("\"ranks\""), std::string::npos);
  const Tokenizer back = Tokenizer::parse(text, "back"), original = load_tokenizer(kFolder);
  const std::string hard = source_dir() + "/tests/golden/tokenizer/hard_text.json";
  const json::value golden = parse_json(read_text_file(hard), hard);
  for (const json::value& item : golden.at("cases").as_array()) {
    const std::string_view c = item.as_string();
    EXPECT_EQ(back.encode(c, true), original.encode(c, true)) << escape(c);
  }
}

TEST(Tiktoken, ADirectoryWithoutATokenizerIsReportedAsMissing) {
  EXPECT_EQ(tokenizer_file(kFolder), kFolder + "/tiktoken.model");
  EXPECT_EQ(tokenizer_file(kFolder + "/.."), "");
  try {
    load_tokenizer("/nonexistent");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMissing);
  }
}

}  // namespace
}  // namespace carpool
