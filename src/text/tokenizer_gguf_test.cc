// A tokenizer that went through GGUF metadata equals the tokenizer.json it came from, on every hard case; metadata that
// contradicts itself is refused.
#include "text/tokenizer_gguf.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/source_dir_test_util.h"
#include "io/test_files.h"
#include "io/test_gguf.h"
#include "text/byte_alphabet.h"

namespace carpool {
namespace {

using namespace test;

const std::string kSource = source_dir();

std::vector<std::string> hard_cases() {
  const std::string path = kSource + "/tests/golden/tokenizer/hard_text.json";
  return json::value_to<std::vector<std::string>>(parse_json(read_text_file(path), path).at("cases"));
}

// As python/golden/make_tokenizer.py writes it: the count, and FNV-1a of the ids as little-endian 32-bit numbers.
std::string id_hash(const std::vector<int>& ids) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (const int id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      h = (h ^ ((static_cast<uint32_t>(id) >> shift) & 0xFFu)) * 0x100000001B3ull;
    }
  }
  return fmt::format("{} {:016x}", ids.size(), h);
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
                                         Style{"behaviors", "tests/golden/tokenizer/behaviors.json", nullptr, false},
                                         Style{"llama2", "tests/golden/tokenizer/llama2.json", "<s>", false},
                                         Style{"metaspace", "tests/golden/tokenizer/metaspace.json", "<s>", false}),
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

// pre_tokenizers.json, by make_tokenizer_pre.py, has one vocabulary and the hashes for each name.
TEST(GgufPreTokenizers, IdsUnderEachNameEqualThoseOfTheStagesItStandsFor) {
  const std::string path = kSource + "/tests/golden/tokenizer/pre_tokenizers.json";
  const json::value golden = parse_json(read_text_file(path), path);
  const std::vector<std::string> cases = hard_cases();
  const json::object& names = golden.at("names").as_object();
  EXPECT_GE(names.size(), 19u);
  for (const auto& [name, value] : names) {
    const std::string_view hashes = value.as_string();
    ASSERT_EQ(hashes.size(), 8 * cases.size());
    GgufWriter writer;
    writer.add_string("tokenizer.ggml.model", "gpt2");
    writer.add_string("tokenizer.ggml.pre", name);
    writer.add_strings("tokenizer.ggml.tokens", json::value_to<std::vector<std::string>>(golden.at("tokens")));
    writer.add_strings("tokenizer.ggml.merges", json::value_to<std::vector<std::string>>(golden.at("merges")));
    const ScratchFolder folder;
    OutputFile out(folder.file("m.gguf"), true, 0);
    writer.begin(out);
    out.commit();
    const GgufFile file = GgufFile::open(folder.file("m.gguf"));
    const Tokenizer tokenizer = gguf_tokenizer(file.metadata());
    size_t differing = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::string hash = id_hash(tokenizer.encode(cases[i], true));
      if (hash.substr(hash.size() - 8) == hashes.substr(8 * i, 8)) continue;
      if (++differing < 4) ADD_FAILURE() << std::string_view(name) << " " << i << " " << escape(cases[i], 100);
    }
    EXPECT_EQ(differing, 0u) << std::string_view(name);
  }
}

// spm.gguf holds a model trained by the sentencepiece package; make_tokenizer_spm.py.
class SentencePieceFixture : public testing::Test {
 protected:
  const std::string folder_ = kSource + "/tests/golden/tokenizer/";
  GgufFile file_ = GgufFile::open(folder_ + "spm.gguf");
  json::value golden_ = parse_json(read_text_file(folder_ + "spm.golden.json"), "spm.golden.json");

  void expect_ids(const Tokenizer& tokenizer, const char* key, bool drop_begin) {
    const std::vector<std::string> cases = hard_cases();
    const json::array& hashes = golden_.at(key).as_array();
    ASSERT_EQ(hashes.size(), cases.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      std::vector<int> ids = tokenizer.encode(cases[i], true, false);
      if (drop_begin) {
        ASSERT_EQ(ids.at(0), 1);
        ids.erase(ids.begin());
      }
      EXPECT_EQ(id_hash(ids), std::string(hashes[i].as_string())) << i << " " << escape(cases[i]);
    }
  }
};

TEST_F(SentencePieceFixture, IdsEqualThoseOfTheReferenceOnEveryHardCase) {
  const Tokenizer tokenizer = gguf_tokenizer(file_.metadata());
  EXPECT_EQ(tokenizer.vocab_size(), golden_.at("vocab_size").as_int64());
  expect_ids(tokenizer, "hashes", /*drop_begin=*/true);
  for (const json::value& item : golden_.at("decoded").as_array()) {
    const std::string text(item.at("text").as_string());
    const auto ids = json::value_to<std::vector<int>>(item.at("ids"));
    // These were encoded without the space that a text begins with, which decoding takes away.
    EXPECT_EQ(tokenizer.decode(ids, false), text.starts_with(' ') ? text.substr(1) : text);
  }
  EXPECT_TRUE(tokenizer.is_control(tokenizer.token_id("</s>").value()));
  EXPECT_EQ(tokenizer.encode("</s>", false, true), (std::vector<int>{2}));
  EXPECT_GT(tokenizer.encode("</s>", false, false).size(), 1u);
}

TEST_F(SentencePieceFixture, WithoutTheSpaceThatTextsBeginWithTooAndWithoutABeginToken) {
  GgufWriter writer;
  for (const auto& entry : file_.metadata().entries()) writer.add(entry);
  writer.add_bool("tokenizer.ggml.add_space_prefix", false);
  writer.add_bool("tokenizer.ggml.add_bos_token", false);
  const ScratchFolder folder;
  OutputFile out(folder.file("m.gguf"), true, 0);
  writer.begin(out);
  out.commit();
  const GgufFile file = GgufFile::open(folder.file("m.gguf"));
  const Tokenizer tokenizer = gguf_tokenizer(file.metadata());
  expect_ids(tokenizer, "hashes_without_prefix", /*drop_begin=*/false);
  for (const json::value& item : golden_.at("decoded").as_array()) {
    EXPECT_EQ(tokenizer.decode(json::value_to<std::vector<int>>(item.at("ids")), false),
              std::string(item.at("text").as_string()));
  }
}

TEST_F(SentencePieceFixture, WrittenAsJsonForOtherProgramsItHasMergesAndTheSameIds) {
  const Tokenizer tokenizer = gguf_tokenizer(file_.metadata());
  const std::string text = gguf_tokenizer_json(file_.metadata());
  const json::value root = parse_json(text, "back");
  EXPECT_FALSE(root.at("model").as_object().contains("ranks"));
  EXPECT_GT(root.at("model").at("merges").as_array().size(), 300u);
  const Tokenizer back = Tokenizer::parse(text, "back");
  for (const std::string& c : hard_cases()) EXPECT_EQ(back.encode(c, true), tokenizer.encode(c, true)) << escape(c);
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
  p.model = "t5";
  EXPECT_TRUE(contains(refusal(p, ErrorKind::kConfig), "\"t5\" is not supported; supported: gpt2"));
  p = Parts();
  p.pre = "viking";
  EXPECT_TRUE(contains(refusal(p, ErrorKind::kConfig), "\"viking\" is not supported; supported: gpt-2, olmo, smollm"));
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
  p.tokens['A'] = "xyz";
  EXPECT_TRUE(contains(refusal(p), "no token for the byte 0x41"));
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

TEST_F(GgufTokenizerParts, ASentencePieceModelNeedsItsScores) {
  Parts p;
  p.model = "llama";
  EXPECT_TRUE(contains(refusal(p), "tokenizer.ggml.scores"));
  p.more = {gguf_array("tokenizer.ggml.scores", 6, p.tokens.size(), std::string(4 * p.tokens.size(), '\xff'))};
  EXPECT_TRUE(contains(refusal(p), "entry 0 is not a number"));
  p.more = {gguf_array("tokenizer.ggml.scores", 5, p.tokens.size(), std::string(4 * p.tokens.size(), '\0'))};
  EXPECT_TRUE(contains(refusal(p), "must be an array of float32"));
}

TEST_F(GgufTokenizerParts, AFileWithoutTokensHasNoTokenizer) {
  const GgufFile file = GgufFile::open(folder_.write("m.gguf", GgufParts().bytes()));
  EXPECT_FALSE(gguf_has_tokenizer(file.metadata()));
}

}  // namespace
}  // namespace carpool
