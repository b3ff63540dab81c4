// A tokenizer that went through GGUF metadata equals the tokenizer.json it came from, on every hard case; metadata that
// contradicts itself is refused.
#include "text/tokenizer_gguf.h"

#include <gtest/gtest.h>

#include "io/test_files.h"
#include "io/test_gguf.h"
#include "text/byte_alphabet.h"

namespace carpool {
namespace {

using namespace test;

const std::string kSource = CARPOOL_SOURCE_DIR;

std::vector<std::string> hard_cases() {
  const std::string path = kSource + "/tests/golden/tokenizer/hard_text.json";
  return json::value_to<std::vector<std::string>>(parse_json(read_text_file(path), path).at("cases"));
}

struct Style {
  const char* name;
  const char* path;   // below the repository
  const char* begin;  // begin token, or null
  bool described;     // by the ggml keys alone
};

void PrintTo(const Style& style, std::ostream* out) { *out << style.name; }

class GgufTokenizer : public testing::TestWithParam<Style> {
 protected:
  // A file without tensors, with the tokenizer of the style.
  GgufFile through_gguf(int more_rows = 0) {
    const std::string path = kSource + "/" + GetParam().path;
    config_.eos_token = GetParam().name == std::string("books") ? "<|endoftext|>" : "<|end|>";
    if (GetParam().begin) config_.bos_token = GetParam().begin;
    config_.chat_template = "{{ messages[0].content }}";
    GgufWriter writer;
    described_ = add_gguf_tokenizer(read_text_file(path), path, config_, original_.vocab_size() + more_rows, writer);
    OutputFile out(folder_.file("m.gguf"), true, 0);
    writer.begin(out);
    out.commit();
    return GgufFile::open(folder_.file("m.gguf"));
  }
  ScratchFolder folder_;
  TokenizerConfig config_;
  bool described_ = false;
  Tokenizer original_ = Tokenizer::load(kSource + "/" + GetParam().path);
};

INSTANTIATE_TEST_SUITE_P(Styles, GgufTokenizer,
                         testing::Values(Style{"books", "models/books-qwen3/tokenizer.json", nullptr, true},
                                         Style{"qwen2", "tests/golden/tokenizer/qwen2.json", nullptr, true},
                                         Style{"gpt2", "tests/golden/tokenizer/gpt2.json", nullptr, true},
                                         Style{"llama3", "tests/golden/tokenizer/llama3.json", "<|begin|>", true},
                                         Style{"llama3_unnamed", "tests/golden/tokenizer/llama3.json", nullptr, false},
                                         Style{"flags", "tests/golden/tokenizer/flags.json", nullptr, false},
                                         Style{"digits", "tests/golden/tokenizer/digits.json", nullptr, false},
                                         Style{"behaviors", "tests/golden/tokenizer/behaviors.json", nullptr, false}),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(GgufTokenizer, IdsEqualThoseOfTheOriginalOnEveryHardCase) {
  const GgufFile file = through_gguf();
  EXPECT_EQ(described_, GetParam().described);
  EXPECT_EQ(file.metadata().has("tokenizer.huggingface.json"), !GetParam().described);
  const Tokenizer tokenizer = gguf_tokenizer(file.metadata());
  ASSERT_EQ(tokenizer.vocab_size(), original_.vocab_size());
  const std::vector<std::string> cases = hard_cases();
  ASSERT_GT(cases.size(), 1000u);
  for (const std::string& text : cases) {
    const std::vector<int> ids = original_.encode(text, true);
    ASSERT_EQ(tokenizer.encode(text, true), ids) << escape(text);
    EXPECT_EQ(tokenizer.encode(text, false, false), original_.encode(text, false, false)) << escape(text);
    EXPECT_EQ(tokenizer.decode(ids, true), original_.decode(ids, true));
  }
  for (int id = 0; id < tokenizer.vocab_size(); ++id) {
    EXPECT_EQ(tokenizer.token_bytes(id), original_.token_bytes(id)) << id;
    EXPECT_EQ(tokenizer.is_special(id), original_.is_special(id)) << id;
    EXPECT_EQ(tokenizer.is_control(id), original_.is_control(id)) << id;
  }
}

TEST_P(GgufTokenizer, TheConfigComesBackAndRowsWithoutATokenAreUnused) {
  const GgufFile file = through_gguf(/*more_rows=*/3);
  EXPECT_TRUE(gguf_has_tokenizer(file.metadata()));
  const TokenizerConfig config = gguf_tokenizer_config(file.metadata());
  EXPECT_EQ(config.eos_token, config_.eos_token);
  EXPECT_EQ(config.bos_token, config_.bos_token);
  EXPECT_EQ(config.chat_template, config_.chat_template);
  const auto rows = static_cast<size_t>(original_.vocab_size()) + 3;
  EXPECT_EQ(file.metadata().strings("tokenizer.ggml.tokens").size(), rows);
  EXPECT_EQ(file.metadata().integers("tokenizer.ggml.token_type").back(), 5);
  EXPECT_EQ(gguf_tokenizer(file.metadata()).vocab_size(), original_.vocab_size());
}

// tokenizer.gguf is written by python/golden/make_gguf.py with the gguf package.
TEST(GgufTokenizerFixture, KeysOfTheReferenceWriterGiveTheIdsOfTheTokenizerJson) {
  const GgufFile file = GgufFile::open(kSource + "/tests/golden/gguf/tokenizer.gguf");
  const Tokenizer original = Tokenizer::load(kSource + "/tests/golden/tokenizer/qwen2.json");
  const Tokenizer tokenizer = gguf_tokenizer(file.metadata());
  for (const std::string& text : hard_cases()) {
    ASSERT_EQ(tokenizer.encode(text, true), original.encode(text, true)) << escape(text);
  }
  EXPECT_EQ(gguf_tokenizer_config(file.metadata()).eos_token, "<|end|>");
  EXPECT_EQ(gguf_tokenizer_config(file.metadata()).chat_template, "{{ messages[0]['content'] }}");
  EXPECT_EQ(Tokenizer::parse(gguf_tokenizer_json(file.metadata()), "back").encode("a b", true),
            original.encode("a b", true));
}

// The 256 byte tokens, two merges, one control token and one user-defined token.
struct Parts {
  std::string pre = "gpt-2", model = "gpt2";
  std::vector<std::string> tokens, merges = {"a b", "ab c"};
  std::vector<int32_t> types;
  std::vector<std::string> more;  // further keys

  Parts() {
    const ByteAlphabet alphabet;
    for (int b = 0; b < 256; ++b) tokens.push_back(alphabet.spelling(static_cast<unsigned char>(b)));
    for (const char* text : {"ab", "abc", "<|end|>", "<think>"}) tokens.emplace_back(text);
    types.assign(tokens.size(), 1);
    types[258] = 3;
    types[259] = 4;
  }
  std::string bytes() const {
    std::string type_bytes;
    for (const int32_t t : types) type_bytes += raw(t);
    GgufParts f;
    f.keys = {gguf_text("tokenizer.ggml.model", model), gguf_text("tokenizer.ggml.pre", pre),
              gguf_strings("tokenizer.ggml.tokens", tokens), gguf_strings("tokenizer.ggml.merges", merges),
              gguf_array("tokenizer.ggml.token_type", 5, types.size(), type_bytes)};
    f.keys.insert(f.keys.end(), more.begin(), more.end());
    return f.bytes();
  }
};

class GgufTokenizerParts : public testing::Test {
 protected:
  GgufFile file(const Parts& parts) { return GgufFile::open(folder_.write("m.gguf", parts.bytes())); }
  std::string refusal(const Parts& parts, ErrorKind kind = ErrorKind::kMalformed) {
    const GgufFile f = file(parts);
    const std::string what = error_of(kind, [&] { gguf_tokenizer(f.metadata()); });
    EXPECT_TRUE(contains(what, "m.gguf: ")) << what;
    return what;
  }
  ScratchFolder folder_;
};

TEST_F(GgufTokenizerParts, MergesApplyAndAddedTokensMatchByTheirType) {
  const Tokenizer t = gguf_tokenizer(file(Parts()).metadata());
  EXPECT_EQ(t.encode("abcab<|end|><think>", true), (std::vector<int>{257, 256, 258, 259}));
  EXPECT_TRUE(t.is_special(258));
  EXPECT_FALSE(t.is_special(259));
  EXPECT_TRUE(t.is_control(259)) << "spelled with punctuation, so a user's text cannot write it";
}

TEST_F(GgufTokenizerParts, BeginAndEndTokensAreAddedAsTheFileSays) {
  Parts p;
  p.more = {gguf_u32("tokenizer.ggml.bos_token_id", 258), gguf_u32("tokenizer.ggml.eos_token_id", 259),
            gguf_key("tokenizer.ggml.add_bos_token", 7, raw(uint8_t{1})),
            gguf_key("tokenizer.ggml.add_eos_token", 7, raw(uint8_t{1}))};
  EXPECT_EQ(gguf_tokenizer(file(p).metadata()).encode("abc", true), (std::vector<int>{258, 257, 259}));
  p.more.resize(2);
  EXPECT_EQ(gguf_tokenizer(file(p).metadata()).encode("abc", true), (std::vector<int>{257}));
  p.pre = "llama-bpe";
  EXPECT_EQ(gguf_tokenizer(file(p).metadata()).encode("abc", true), (std::vector<int>{258, 257}))
      << "its models begin every text";
}

TEST_F(GgufTokenizerParts, AUserDefinedTokenMayTakePartInMerges) {
  Parts p;
  p.types[256] = 4;
  EXPECT_EQ(gguf_tokenizer(file(p).metadata()).encode("abc", true), (std::vector<int>{256, 'c'}));
}

TEST_F(GgufTokenizerParts, UnknownModelsAndPreTokenizersAreRefusedWithTheSupportedOnes) {
  Parts p;
  p.model = "llama";
  EXPECT_TRUE(contains(refusal(p, ErrorKind::kConfig), "\"llama\" is not supported; supported: gpt2"));
  p = Parts();
  p.pre = "default";
  EXPECT_TRUE(contains(refusal(p, ErrorKind::kConfig), "\"default\" is not supported; supported: gpt-2, olmo, qwen2"));
}

TEST_F(GgufTokenizerParts, WhatContradictsItselfIsRefused) {  // G14
  Parts p;
  p.types.pop_back();
  EXPECT_TRUE(contains(refusal(p), "has 259 entries for 260 tokens"));
  p = Parts();
  p.types[3] = 0;
  EXPECT_TRUE(contains(refusal(p), "entry 3 is 0, must be 1 to 6"));
  p = Parts();
  p.more = {gguf_array("tokenizer.ggml.scores", 6, 1, raw(1.0f))};
  EXPECT_TRUE(contains(refusal(p), "tokenizer.ggml.scores"));
  p = Parts();
  p.tokens[5] = "\xff";
  EXPECT_TRUE(contains(refusal(p), "token 5 is not UTF-8"));
  p = Parts();
  p.tokens[257] = p.tokens[256];
  EXPECT_TRUE(contains(refusal(p), "token 257: \"ab\" is there twice"));
  p = Parts();
  p.tokens[0] = "xyz";
  EXPECT_TRUE(contains(refusal(p), "no token for the byte 0x00"));
  p = Parts();
  p.merges.push_back("q zz");
  EXPECT_TRUE(contains(refusal(p), "is not in the vocabulary"));
  p = Parts();
  p.merges.push_back("qzz");
  refusal(p);
  p = Parts();
  p.more = {gguf_u32("tokenizer.ggml.bos_token_id", 260), gguf_key("tokenizer.ggml.add_bos_token", 7, raw(uint8_t{1}))};
  EXPECT_TRUE(contains(refusal(p), "must be 0 to 259, found 260"));
  const GgufFile f = file(p);
  error_of(ErrorKind::kMalformed, [&] { gguf_tokenizer_config(f.metadata()); });
  p = Parts();
  p.more = {gguf_text("tokenizer.huggingface.json", "{")};
  EXPECT_TRUE(contains(refusal(p), "tokenizer.huggingface.json"));
}

TEST_F(GgufTokenizerParts, AFileWithoutTokensHasNoTokenizer) {
  const GgufFile file = GgufFile::open(folder_.write("m.gguf", GgufParts().bytes()));
  EXPECT_FALSE(gguf_has_tokenizer(file.metadata()));
}

}  // namespace
}  // namespace carpool
