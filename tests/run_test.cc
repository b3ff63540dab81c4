// `carpool run` as a user types it: every option changes what it says it changes, and what cannot be done is refused.
#include <cstring>

#include "base/large_buffer.h"
#include "base/memory.h"
#include "end_to_end_util.h"
#include "text/tokenizer.h"

namespace carpool::end_to_end {
namespace {

const std::string kRun = "run " + kBooks + " --quiet --json - --max-tokens 12 --temperature 0 ";
const std::string kPrompt = " 'The old man walked slowly down to the harbour and'";

const json::object& result(const json::value& v, size_t i = 0) { return v.at("results").at(i).as_object(); }
std::string text(const json::value& v, size_t i = 0) { return std::string(result(v, i).at("text").as_string()); }

TEST(Run, TextIsStreamedAfterThePromptAndJsonHoldsTheSame) {
  const Outcome plain = carpool("run " + kBooks + " --quiet --max-tokens 12 --temperature 0" + kPrompt);
  EXPECT_EQ(plain.code, 0);
  EXPECT_EQ(plain.err, "");
  const json::value v = carpool_json(kRun + kPrompt);
  EXPECT_EQ(plain.out, "The old man walked slowly down to the harbour and" + text(v) + "\n");
  EXPECT_EQ(result(v).at("tokens").as_array().size(), 12u);
  EXPECT_EQ(result(v).at("finish_reason"), "length");
  for (const char* key : {"command", "commit", "machine", "model", "policy", "routing"})
    EXPECT_TRUE(v.as_object().contains(key)) << key;
  EXPECT_EQ(v.at("policy"), "topk");
}

TEST(Run, StandardInputIsThePromptWhenNoneIsGiven) {
  const Outcome o = carpool(kRun, "The old man walked slowly down to the harbour and");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(text(parse_json(o.out, "run")), text(carpool_json(kRun + kPrompt)));
}

TEST(Run, MaxTokensBoundsTheText) {
  EXPECT_EQ(result(carpool_json(kRun + "--max-tokens 3" + kPrompt)).at("tokens").as_array().size(), 3u);
}

TEST(Run, TemperatureSeedTopKTopPAndMinPChangeTheDraws) {
  const std::string hot = kRun + "--temperature 1.5 --top-p 1 ";
  const auto a = text(carpool_json(hot + "--seed 1" + kPrompt));
  EXPECT_EQ(text(carpool_json(hot + "--seed 1" + kPrompt)), a);
  EXPECT_NE(text(carpool_json(hot + "--seed 2" + kPrompt)), a);
  const auto greedy = text(carpool_json(kRun + kPrompt));
  EXPECT_NE(a, greedy);
  EXPECT_EQ(text(carpool_json(hot + "--seed 1 --top-k 1" + kPrompt)), greedy);
  EXPECT_EQ(text(carpool_json(hot + "--seed 1 --top-p 0.000001" + kPrompt)), greedy);
  EXPECT_EQ(text(carpool_json(hot + "--seed 1 --min-p 0.999999" + kPrompt)), greedy);
}

TEST(Run, StopEndsTheTextBeforeTheString) {
  const std::string whole = text(carpool_json(kRun + "--max-tokens 40" + kPrompt));
  const std::string stop = whole.substr(whole.size() / 2, 4);
  const json::value v = carpool_json(kRun + "--max-tokens 40 --stop '" + stop + "'" + kPrompt);
  EXPECT_EQ(text(v), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(result(v).at("finish_reason"), "stop");
}

TEST(Run, JsonSchemaRegexAndChoiceHoldTheTextToAStructure) {
  const TemporaryFolder folder;
  std::ofstream(folder / "schema.json")
      << R"({"type":"object","properties":{"sea":{"type":"boolean"},"miles":{"type":"integer","minimum":1,"maximum":99}},
             "required":["sea","miles"]})";
  const std::string hot = kRun + "--max-tokens 80 --temperature 1 ";
  for (const std::string seed : {"1", "2", "3"}) {
    const json::value v = carpool_json(hot + "--seed " + seed + " --json-schema " + (folder / "schema.json") + kPrompt);
    const json::value answer = parse_json(text(v), "the answer");
    EXPECT_TRUE(answer.at("sea").is_bool());
    EXPECT_TRUE(answer.at("miles").to_number<int>() >= 1 && answer.at("miles").to_number<int>() <= 99);
    EXPECT_EQ(result(v).at("finish_reason"), "stop");
  }
  const std::string matched = text(carpool_json(hot + "--regex '[a-c]{3}-[0-9]'" + kPrompt));
  EXPECT_EQ(matched.size(), 5u);
  EXPECT_EQ(matched.find_first_not_of("abc"), 3u) << matched;
  const std::string chosen = text(carpool_json(hot + "--choice north --choice south" + kPrompt));
  EXPECT_TRUE(chosen == "north" || chosen == "south") << chosen;
  expect_refused("run " + kBooks + " --regex '(a' x", 64, "a ( without its )");
  expect_refused("run " + kBooks + " --regex a --choice b x", 64, "exclude each other");
  std::ofstream(folder / "bad.json") << R"({"properties":{"a":{"minimun":1}}})";
  expect_refused("run " + kBooks + " --json-schema " + (folder / "bad.json") + " x", 64, "properties.a.minimun");
  expect_refused("run " + kBooks + " --json-schema /nowhere.json x", 66, "/nowhere.json");
}

TEST(Run, ChatPutsThePromptThroughTheTemplate) {
  const json::value chat = carpool_json(kRun + "--chat" + kPrompt), plain = carpool_json(kRun + kPrompt);
  EXPECT_GT(result(chat).at("prompt_tokens").as_int64(), result(plain).at("prompt_tokens").as_int64() + 2);
  EXPECT_NE(text(chat), text(plain));
}

TEST(Run, IgnoreEosGoesOnPastTheEnd) {
  // Sampled chat answers end by themselves sooner or later; then --ignore-eos must go on.
  const std::string command = kRun + "--chat --max-tokens 200 --temperature 1 --seed 1 'She opened the door.'";
  const json::value ends = carpool_json(command);
  ASSERT_EQ(result(ends).at("finish_reason"), "stop") << "choose another seed";
  EXPECT_EQ(result(carpool_json(command + " --ignore-eos")).at("tokens").as_array().size(), 200u);
}

TEST(Run, PromptsFromAFileFormOneBatchAndBatchLimitAndChunkChangeNoText) {
  const std::string batch = kRun + "--prompts " + kBooks + "/prompts.txt ";
  const json::value wide = carpool_json(batch);
  ASSERT_EQ(wide.at("results").as_array().size(), 16u);
  const json::value narrow = carpool_json(batch + "--max-batch 3 --chunk 5 --kv-tokens 1024");
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(text(narrow, i), text(wide, i));
  EXPECT_LT(narrow.at("routing").at("distinct_experts").as_double(),
            wide.at("routing").at("distinct_experts").as_double());
}

TEST(Run, ThePolicyRanAndIsolatedRequestsStayPlain) {
  const std::string batch = kRun + "--prompts " + kBooks + "/prompts.txt ";
  const json::value topk = carpool_json(batch);
  for (const std::string spelling : {"--policy oea:k0=3", "--oea-k0 3"}) {
    const json::value oea = carpool_json(batch + spelling);
    EXPECT_EQ(oea.at("policy"), "oea:k0=3");
    EXPECT_LT(oea.at("routing").at("distinct_experts").as_double(),
              oea.at("routing").at("distinct_experts_plain").as_double());
    EXPECT_GT(oea.at("routing").at("rerouted_tokens").as_int64(), 0);
  }
  EXPECT_EQ(carpool_json(batch, "CARPOOL_OEA_K0=3").at("policy"), "oea:k0=3");
  EXPECT_EQ(carpool_json(batch, "CARPOOL_OEA_K0=3 CARPOOL_OEA_MIN_BATCH=9").at("policy"), "oea:k0=3,min_batch=9");
  EXPECT_EQ(carpool_json(batch, "CARPOOL_OEA_K0=0").at("policy"), "topk");
  const json::value alone = carpool_json(batch + "--oea-k0 3 --oea-min-batch 17");
  EXPECT_GT(alone.at("routing").at("plain_steps").at("min_batch").as_int64(), 0);
  const json::value isolated = carpool_json(batch + "--policy oea:k0=3 --isolated");
  EXPECT_GT(isolated.at("routing").at("plain_steps").at("isolated").as_int64(), 0);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(text(isolated, i), text(topk, i));
    EXPECT_EQ(text(alone, i), text(topk, i));
  }
}

TEST(Run, VerboseShowsTheCountersOfEveryStep) {
  const Outcome o =
      carpool("run " + kBooks +
              " --max-tokens 4 --temperature 0 --verbose --quiet 'One day' 'In the garden' --policy oea:k0=3");
  EXPECT_EQ(o.code, 0);
  EXPECT_NE(o.err.find("step 1: 0 decode rows"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("oea:k0=3 on decode steps: distinct experts"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("oea:k0=3 on all steps: distinct experts"), std::string::npos) << o.err;
}

TEST(Run, ThreadsAndIsaAreHonouredAndNamed) {
  for (const char* isa : {"scalar", "auto"}) {
    const json::value v = carpool_json(kRun + "--threads 1 --isa " + isa + kPrompt);
    const std::string machine(v.at("machine").as_string());
    EXPECT_NE(machine.find("1 threads"), std::string::npos) << machine;
    if (std::string(isa) == "scalar") {
      EXPECT_NE(machine.find("scalar"), std::string::npos) << machine;
    }
  }
  EXPECT_NE(std::string(carpool_json(kRun + kPrompt, "CARPOOL_ISA=scalar").at("machine").as_string()).find("scalar"),
            std::string::npos);
}

TEST(Run, WhatCannotBeDoneIsRefusedWithOneSentenceAndItsExitCode) {
  expect_refused("run /nowhere hello", 66, "/nowhere: no such model directory");
  expect_refused("run " + kBooks + " --no-such-option x", 64, "--no-such-option");
  expect_refused("run " + kBooks + " --threads 0 x", 64, "--threads");
  expect_refused("run " + kBooks + " --isa pentium x", 78, "pentium");
  expect_refused("run " + kBooks + " --policy nonsense x", 78, "nonsense");
  expect_refused("run " + kBooks + " --policy oea x", 78, "k0");
  expect_refused("run " + kBooks + " --policy oea:k0=9 x", 78, "k0");
  expect_refused("run " + kBooks + " --policy oea:k0=3,colour=red x", 78, "colour");
  expect_refused("run " + kBooks + " --policy oea:k0=3 --oea-k0 4 x", 78, "give one");
  expect_refused("run " + kBooks + " --oea-min-batch 4 x", 78, "--oea-min-batch");
  expect_refused("run " + kBooks + " --quiet ''", 64, "the prompt is empty");
  expect_refused("run " + kBooks + " --quiet --max-tokens 5000 x", 64, "context");
  expect_refused("run " + kBooks + " --quiet --kv-tokens 16 --max-tokens 100 x", 64, "KV blocks");
  expect_refused("run " + kBooks + " --quiet --temperature nan x", 64, "temperature");
  expect_refused("run " + kBooks + " --quiet --json /nowhere/out.json --max-tokens 1 x >/dev/null", 73,
                 "/nowhere/out.json");
  expect_refused("run " + kBooks + " --prompts /nowhere.txt", 66, "/nowhere.txt");
  expect_refused("", 64, "subcommand");
  expect_refused("fly", 64, "see carpool --help");
}

TEST(Run, AnExplicitPolicyWinsOverTheEnvironment) {
  EXPECT_EQ(carpool_json(kRun + "--policy topk" + kPrompt, "CARPOOL_OEA_K0=3").at("policy"), "topk");
}

TEST(Run, StandardOutputThatFailsEndsWithExitCode74) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::string run = "run " + kBooks + " --quiet --max-tokens 2 ";
  for (const std::string prompts : {"'One day'", "'One day' 'In the garden'", "--json - 'One day'"})
    expect_refused(run + prompts + " >/dev/full", 74, "standard output cannot be written");
  expect_refused(run + "--json /dev/full 'One day' >/dev/null", 74, "/dev/full");
  EXPECT_TRUE(fs::is_character_file("/dev/full")) << "not replaced";
}

TEST(Run, AFileWithoutPromptsIsAnErrorAndStandardInputIsNotReadForIt) {
  const TemporaryFolder folder;
  std::ofstream(folder / "empty.txt") << "\n\n";
  const Outcome o = carpool("run " + kBooks + " --quiet --max-tokens 1 --prompts " + (folder / "empty.txt"), "One day");
  EXPECT_EQ(o.code, 64) << o.out;
  EXPECT_NE(o.err.find("empty.txt: no prompts"), std::string::npos) << o.err;
}

TEST(Run, StandardInputIsBounded) {
  const Outcome o = carpool("run " + kBooks + " --quiet --max-tokens 1", std::string((size_t{8} << 20) + 1, 'x'));
  EXPECT_EQ(o.code, 65);
  EXPECT_NE(o.err.find("standard input: more than 8388608 bytes"), std::string::npos) << o.err;
}

TEST(Run, JsonIsValidUtf8WhateverThePromptAndThePathAre) {
  const TemporaryFolder folder;
  const std::string link = folder / "model-\xff";
  fs::create_directory_symlink(kBooks, link);
  const Outcome o = carpool("run '" + link + "' --quiet --json - --max-tokens 1 'One \xff\xc3 day'");
  ASSERT_EQ(o.code, 0) << o.err;
  const json::value v = parse_json(o.out, "run");  // refuses what is not UTF-8
  EXPECT_EQ(result(v).at("prompt"), "One \xEF\xBF\xBD\xEF\xBF\xBD day");
  EXPECT_NE(std::string(v.at("model").as_string()).find("model-\xEF\xBF\xBD"), std::string::npos);
}

TEST(Run, ThePoolIsWhatThePromptsNeedUnlessItsSizeIsGiven) {
  const json::value one = carpool_json(kRun + kPrompt), two = carpool_json(kRun + kPrompt + kPrompt);
  const int64_t positions = result(one).at("prompt_tokens").as_int64() + 12 - 1;
  EXPECT_EQ(one.at("kv_tokens").as_int64(), (positions + 15) / 16 * 16);
  EXPECT_EQ(two.at("kv_tokens").as_int64(), 2 * one.at("kv_tokens").as_int64());
  for (const char* spelling : {"--max-batch 1", "--max-running-requests 1"}) {
    EXPECT_EQ(carpool_json(kRun + spelling + kPrompt + kPrompt).at("kv_tokens"), one.at("kv_tokens")) << spelling;
  }
  EXPECT_EQ(carpool_json(kRun + "--kv-tokens 1024" + kPrompt).at("kv_tokens").as_int64(), 1024);
}

TEST(Run, TheElementsOfTheCacheDecideItsSizeAndAreSaid) {
  const json::value f32 = carpool_json(kRun + kPrompt);
  EXPECT_EQ(f32.at("kv_cache_dtype"), "f32") << "the default of weights in floating point";
  const int64_t bytes = f32.at("kv_cache_bytes").as_int64();
  for (const auto& [dtype, share] : {std::pair("auto", 1.0), std::pair("f32", 1.0), std::pair("bf16", 0.5),
                                     std::pair("q8", 0.28125)}) {  // q8: 8 bits, a 16-bit scale per 32, whole lines
    const json::value v = carpool_json(kRun + "--kv-cache-dtype " + dtype + kPrompt);
    EXPECT_EQ(v.at("kv_cache_dtype"), dtype == std::string("auto") ? "f32" : dtype);
    EXPECT_EQ(static_cast<double>(v.at("kv_cache_bytes").as_int64()), share * static_cast<double>(bytes)) << dtype;
  }
  const Outcome o = carpool(kRun + "--verbose --kv-cache-dtype q8 --json -" + kPrompt);
  EXPECT_NE(o.err.find("positions, q8, "), std::string::npos) << o.err;
  EXPECT_EQ(carpool(kRun + "--kv-cache-dtype fp4" + kPrompt).code, 64);
}

// The books model in another format, as a GGUF file in `folder`.
std::string quantised_books(const TemporaryFolder& folder, const std::string& format) {
  std::string file = folder / (format + ".gguf");
  EXPECT_EQ(carpool("quantize " + kBooks + " " + file + " --format " + format + " --quiet").code, 0);
  return file;
}

TEST(Run, AModelWithBlockQuantisedWeightsKeepsABfloat16CacheUnlessToldOtherwise) {
  const TemporaryFolder folder;
  const std::string run =
      "run " + quantised_books(folder, "q8_0") + " --quiet --json - --max-tokens 2 --temperature 0 ";
  EXPECT_EQ(carpool_json(run + kPrompt).at("kv_cache_dtype"), "bf16");
  EXPECT_EQ(carpool_json(run + "--kv-cache-dtype f32" + kPrompt).at("kv_cache_dtype"), "f32");
}

std::string texts(const std::string& model, const std::string& options) {
  const json::value v = carpool_json("run " + model + " --quiet --json - --max-tokens 12 --temperature 0 --prompts " +
                                     kBooks + "/prompts.txt " + options);
  std::string out;
  for (size_t i = 0; i < v.at("results").as_array().size(); ++i) out += text(v, i) + "\n";
  return out;
}

// The line of `run --verbose` that says where the weights are.
std::string weights_line(const std::string& model, const std::string& options) {
  const Outcome o = carpool("run " + model + " --quiet --verbose --max-tokens 4 --temperature 0 " + options + kPrompt);
  EXPECT_EQ(o.code, 0) << o.err;
  const size_t at = o.err.find("weights: ");
  EXPECT_NE(at, std::string::npos) << o.err;
  return at == std::string::npos ? "" : o.err.substr(at, o.err.find('\n', at) - at);
}

TEST(Run, ActivationsAreRoundedForQuantisedWeightsOnlyAndOnlyUnlessFloatIsAskedFor) {
  const TemporaryFolder folder;
  const std::string q4 = quantised_books(folder, "q4_0");
  const std::string rounded = texts(q4, ""), exact = texts(q4, "--activations float");
  EXPECT_EQ(texts(q4, "--activations int8"), rounded) << "the default";
  EXPECT_NE(exact, rounded) << "192 greedy tokens of a model of 4 bits must show some difference";
  EXPECT_EQ(texts(kBooks, "--activations float"), texts(kBooks, "")) << "bfloat16 weights know no other";
  EXPECT_EQ(carpool(kRun + "--activations int4" + kPrompt).code, 64);
}

TEST(Run, WeightsLieInHugePagesUnlessTheyAreOffAndThpIsRefusedWhereThereAreNone) {
  const std::string none = "weights: repacked into 0.03 GB, 0.00 GB of it in huge pages";
  EXPECT_EQ(weights_line(kBooks, "--hugepages off"), none);
  const std::string why_not = no_huge_pages_reason();
  if (!why_not.empty()) {
    EXPECT_EQ(weights_line(kBooks, "--hugepages auto"), none);
    expect_refused("run " + kBooks + " --quiet --hugepages thp x", 69, why_not);
  } else {
    for (const char* choice : {"", "--hugepages auto", "--hugepages thp"}) {
      const std::string line = weights_line(kBooks, choice);
      EXPECT_EQ(line.rfind("weights: repacked into 0.03 GB, ", 0), 0u) << line;
      EXPECT_NE(line, none) << choice;
    }
  }
  EXPECT_EQ(text(carpool_json(kRun + "--hugepages off" + kPrompt)), text(carpool_json(kRun + kPrompt)));
  EXPECT_EQ(carpool(kRun + "--hugepages all" + kPrompt).code, 64);
}

TEST(Run, ARepackCacheIsWrittenOnceThenMappedAndWrittenAnewWhenTheSourceChanges) {
  const TemporaryFolder folder;
  const std::string model = folder / "model", cache = " --repack-cache " + (folder / "cache") + " ";
  fs::copy(kBooks, model);
  const std::string first = weights_line(model, cache), second = weights_line(model, cache);
  EXPECT_NE(first.find("repack cache not used: there is none yet; written anew"), std::string::npos) << first;
  EXPECT_EQ(second.rfind("weights: 0.03 GB mapped from " + (folder / "cache"), 0), 0u) << second;
  const std::string run = "run " + model + " --quiet --json - --max-tokens 12 --temperature 0 ", plain = kRun + kPrompt;
  EXPECT_EQ(text(carpool_json(run + cache + kPrompt)), text(carpool_json(plain))) << "of mapped weights";

  const std::string weights = model + "/model.safetensors";
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
  const std::string touched = weights_line(model, cache);
  EXPECT_EQ(touched.rfind("weights: repacked into 0.03 GB", 0), 0u) << touched;
  EXPECT_NE(touched.find("made for something else: "), std::string::npos) << touched;
  EXPECT_NE(touched.find("model.safetensors bytes "), std::string::npos) << touched;
  EXPECT_NE(weights_line(model, cache).find(" mapped from "), std::string::npos) << "once";
  expect_refused("run " + model + " --quiet --repack-cache /dev/null/cache x", 73, "/dev/null/cache");
}

TEST(Run, AModelTooLargeForTheMachineIsRefusedAtOnceWithBothNumbers) {
  // 235 billion weights, of 4.5 bits or of four bytes.
  for (const auto& [model, bytes] :
       {std::pair{"dummy:qwen3-235b-a22b", 1.2e11}, std::pair{"dummy:qwen3-235b-a22b,format=f32,head=f32", 9e11}}) {
    const std::optional<uint64_t> available = available_memory();
    if (!available || static_cast<double>(*available) > bytes) continue;  // this machine could really hold it
    const std::string what = std::string(model) + ": loading the weights needs ";
    const std::string command = std::string("bench decode ") + model + " --quiet";
    expect_refused(command, 71, what);
    const std::string sentence = carpool(command).err;
    const size_t needs = sentence.find(what) + what.size();
    EXPECT_GT(std::stod(sentence.substr(needs)) * 0x1p20, bytes) << sentence;
    EXPECT_NE(sentence.find(" MiB, "), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(" MiB are available"), std::string::npos) << sentence;
  }
}

TEST(Run, CountersOfAllStepsIncludeThoseWithPromptRows) {
  const json::value v = carpool_json(kRun + "--isolated --policy oea:k0=3" + kPrompt);
  const auto steps = [&](const char* key) { return v.at(key).at("plain_steps").at("isolated").as_int64(); };
  EXPECT_GT(steps("routing"), 0);
  EXPECT_GT(steps("routing_all"), steps("routing"));
}

// Two copies of the embedding, one of them the output matrix, so that a NaN in a row of the other reaches only requests
// with that token.
void untie_and_break(const std::string& folder, int token) {
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy(kBooks + "/" + file, folder + "/" + file);
  json::value config = parse_json(slurp(kBooks + "/config.json"), "config.json");
  ASSERT_TRUE(config.at("tie_word_embeddings").as_bool());
  config.as_object()["tie_word_embeddings"] = false;
  std::ofstream(folder + "/config.json") << json::serialize(config);
  const std::string file = slurp(kBooks + "/model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  json::value header = parse_json(file.substr(8, header_bytes), "header");
  std::string data = file.substr(8 + header_bytes);
  json::object embedding = header.at("model.embed_tokens.weight").as_object();
  ASSERT_EQ(embedding.at("dtype"), "BF16");
  const auto begin = static_cast<size_t>(embedding.at("data_offsets").at(0).as_int64());
  const auto end = static_cast<size_t>(embedding.at("data_offsets").at(1).as_int64());
  const size_t width = static_cast<size_t>(embedding.at("shape").at(1).as_int64());
  embedding["data_offsets"] = json::array{data.size(), data.size() + end - begin};
  header.as_object()["lm_head.weight"] = embedding;
  data += data.substr(begin, end - begin);
  const uint16_t nan = 0x7fc0;
  std::memcpy(data.data() + begin + static_cast<size_t>(token) * width * 2, &nan, 2);
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  header_bytes = text.size();
  std::ofstream(folder + "/model.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&header_bytes), 8) << text << data;
}

TEST(Run, LogitsThatAreNotFiniteEndTheirRequestAndNoOther) {
  // A control character: no prompt of ours but the second has it, and no model of books writes it.
  const std::vector<int> bad = Tokenizer::load(kBooks + "/tokenizer.json").encode("\x02", false, false);
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(untie_and_break(folder.path(), bad.at(0)));
  const std::string run = "run " + folder.path() +
                          " --quiet --no-finite-check --max-tokens 12 --temperature 0 --json " + (folder / "out.json");
  const Outcome o = carpool(run + kPrompt + " '\x02'" + kPrompt);
  EXPECT_EQ(o.code, 65);
  EXPECT_NE(o.err.find("the model's logits are not finite for prompt 2 (exit 65)"), std::string::npos) << o.err;
  const json::value v = parse_json(slurp(folder / "out.json"), "out.json");
  const std::string alone = text(carpool_json(kRun + kPrompt));
  EXPECT_EQ(result(v, 1).at("finish_reason"), "numerical_error");
  for (const size_t i : {size_t{0}, size_t{2}}) {
    EXPECT_NE(result(v, i).at("finish_reason"), "numerical_error");
    EXPECT_EQ(text(v, i), alone);
  }
  EXPECT_NE(o.out.find(alone), std::string::npos) << o.out;
}

TEST(Run, AModelWhoseTokenizerOutgrowsItsEmbeddingIsRefused) {  // T3
  const TemporaryFolder folder;
  fs::copy(kSource + "/tests/golden/qwen3_moe/float32_untied", folder.path(),
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  fs::copy(kBooks + "/tokenizer.json", folder / "tokenizer.json");
  expect_refused("run " + folder.path() + " --quiet x", 65, "embedding has 96 rows");
}

// N1, through the command: one NaN in one expert is found at load unless the check is switched off.
TEST(Run, TheFiniteCheckRefusesANanUnlessItIsSwitchedOff) {
  const TemporaryFolder folder;
  for (const char* file : {"config.json", "tokenizer.json", "tokenizer_config.json"})
    fs::copy(kBooks + "/" + file, folder / file);
  std::string weights = slurp(kBooks + "/model.safetensors");
  weights[weights.size() - 101] = '\x7f';  // the upper byte of a bfloat16 whose lower byte becomes c0: NaN
  weights[weights.size() - 102] = '\xc0';
  std::ofstream(folder / "model.safetensors", std::ios::binary) << weights;
  expect_refused("run " + folder.path() + " --quiet --max-tokens 1 x", 65, "NaN or infinite");
  const Outcome o = carpool("run " + folder.path() + " --quiet --max-tokens 1 --no-finite-check x");
  EXPECT_EQ(o.err.find("NaN or infinite"), std::string::npos) << o.err;
  // It ran: a NaN that reaches the logits, which depends on the model, is found there.
  if (o.code != 0) {
    EXPECT_EQ(o.code, 65);
    EXPECT_NE(o.err.find("the model's logits are not finite for prompt 1"), std::string::npos) << o.err;
  }
}

TEST(Run, HelpAndVersionExplainThemselves) {
  for (const char* command : {"", "run", "ab", "inspect", "doctor", "routing", "routing score", "routing list"}) {
    const Outcome o = carpool(std::string(command) + " --help");
    EXPECT_EQ(o.code, 0);
    EXPECT_NE(o.out.find("Example"), std::string::npos) << command;
  }
  EXPECT_EQ(carpool("--version").out.rfind("carpool 0.1.0 (", 0), 0u);
}

}  // namespace
}  // namespace carpool::end_to_end
