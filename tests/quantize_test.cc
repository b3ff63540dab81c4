// `carpool quantize` and .gguf models through the other commands, as a user types them.
#include "end_to_end_util.h"

namespace carpool::end_to_end {
namespace {

const std::string kPrompt = " 'The old lighthouse keeper' --temperature 0 --max-tokens 24 --quiet";

class QuantizeCommand : public testing::Test {
 protected:
  std::string make(const std::string& name, const std::string& options) {
    const Outcome o = carpool("quantize " + kBooks + " " + (folder_ / name) + " --quiet " + options);
    EXPECT_EQ(o.code, 0) << o.err;
    return folder_ / name;
  }
  TemporaryFolder folder_;
};

TEST_F(QuantizeCommand, AGgufFileInTheModelsOwnFormatSaysExactlyWhatTheDirectorySays) {
  const std::string gguf = make("m.gguf", "--format bf16");
  const Outcome directory = carpool("run " + kBooks + kPrompt), file = carpool("run " + gguf + kPrompt);
  EXPECT_EQ(file.code, 0) << file.err;
  EXPECT_GT(file.out.size(), 40u);
  EXPECT_EQ(file.out, directory.out);
  const std::string chat = " --chat 'Tell me of the sea.' --temperature 0 --max-tokens 8 --quiet";
  EXPECT_EQ(carpool("run " + gguf + chat).out, carpool("run " + kBooks + chat).out);
  // The sampling defaults of generation_config.json travel along.
  const std::string sampled = " 'The sea' --seed 5 --max-tokens 8 --quiet";
  EXPECT_EQ(carpool("run " + gguf + sampled).out, carpool("run " + kBooks + sampled).out);
}

TEST_F(QuantizeCommand, EveryFormatRunsFromTheOutputThatHoldsIt) {
  for (const char* format : {"q8_0", "q4_0", "mxfp4", "nvfp4"}) {
    const std::string gguf = make(std::string(format) + ".gguf", std::string("--format ") + format + " --threads 2");
    const Outcome o = carpool("run " + gguf + kPrompt);
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(o.out.rfind("The old lighthouse keeper", 0), 0u) << o.out;
    EXPECT_LT(fs::file_size(gguf), 15'000'000u) << format;
  }
  for (const char* format : {"f16", "nvfp4", "fp8"}) {
    const std::string directory = make(format, std::string("--format ") + format);
    const Outcome o = carpool("run " + directory + kPrompt);
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_TRUE(fs::exists(directory + "/tokenizer.json"));
  }
}

TEST_F(QuantizeCommand, WhatWasStoredAsWhatIsPrintedAndWrittenAsJson) {
  const std::string out = folder_ / "m.gguf";
  const json::value report = carpool_json("quantize " + kBooks + " " + out +
                                          " --quiet --json - --format q4_k --format-for 'model.embed_tokens.*=bf16'");
  const json::array& stored = report.at("stored").as_array();
  ASSERT_EQ(stored.size(), 4u);
  EXPECT_EQ(stored[0].at("format").as_string(), "q8_0") << "rows of 192 and 64 are no blocks of 256";
  EXPECT_NE(std::string(stored[0].at("why").as_string()).find("not whole blocks of 256 (q4_k)"), std::string::npos);
  EXPECT_EQ(report.at("output_bytes").to_number<uint64_t>(), fs::file_size(out));
  const Outcome o =
      carpool("quantize " + out + " " + (folder_ / "back") + " --quiet --format f32 --json " + (folder_ / "r.json"));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("routers, norms and biases stay float32"), std::string::npos) << o.out;
  EXPECT_EQ(parse_json(slurp(folder_ / "r.json"), "r.json").at("input").as_string(), out);
}

TEST_F(QuantizeCommand, MistakesAreRefusedWithOneSentence) {
  const std::string out = make("m.gguf", "--format q8_0"), start = "quantize " + kBooks + " " + out;
  expect_refused(start + " --format q8_0", 73, "the file exists");
  EXPECT_EQ(carpool(start + " --format q4_0 --force --quiet").code, 0);
  expect_refused(start + " --force --format q5_9", 64, "unknown format \"q5_9\"");
  expect_refused(start + " --force --format-for q8_0", 64, "PATTERN=FORMAT");
  expect_refused(start + " --force --format-for 'nothing*=q8_0'", 64, "matches no matrix");
  expect_refused("quantize " + kBooks + " " + (folder_ / "d") + " --format q4_0", 64, "ends in .gguf");
  expect_refused("quantize " + out + " " + out + " --force", 64, "the output is the input");
  expect_refused("quantize " + (folder_ / "absent.gguf") + " " + (folder_ / "x.gguf"), 66, "absent.gguf");
  expect_refused("run " + (folder_ / "absent.gguf") + " x", 66, "absent.gguf");
}

TEST_F(QuantizeCommand, InspectAndAbTakeAGgufFile) {
  const std::string gguf = make("m.gguf", "--format q8_0");
  const Outcome inspect = carpool("inspect " + gguf + " --batch 4 --quiet");
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_NE(inspect.out.find("q8_0 9"), std::string::npos) << inspect.out;
  const Outcome ab =
      carpool("ab " + gguf + " --a topk --b oea:k0=5 --concurrency 4 --new-tokens 8 --repeat 2 --quiet --text " +
              kBooks + "/eval.txt --prompts " + kBooks + "/prompts.txt --documents 4 --document-tokens 32");
  EXPECT_EQ(ab.code, 0) << ab.err;
  EXPECT_NE(ab.out.find("oea:k0=5"), std::string::npos) << ab.out;
}

TEST_F(QuantizeCommand, AFileWithoutATokenizerIsMeasuredButNotTalkedTo) {
  const std::string gguf = folder_ / "m.gguf";
  const Outcome o =
      carpool("quantize " + kSource + "/tests/golden/qwen3_moe/bf16_tied " + gguf + " --format bf16 --quiet");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("note: the directory has no tokenizer.json"), std::string::npos) << o.out;
  expect_refused("run " + gguf + " x", 78, "the file has no tokenizer");
  EXPECT_EQ(carpool("inspect " + gguf + " --batch 2 --quiet").code, 0);
}

}  // namespace
}  // namespace carpool::end_to_end
