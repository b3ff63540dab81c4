// `carpool bench` as users call it: what every option changes, and what is refused. No test asserts a time.
#include <cmath>
#include <set>

#include "end_to_end_util.h"
#include "tensor/format.h"

namespace carpool::end_to_end {
namespace {

const std::string kDecode = "bench decode " + kBooks + " --quiet --json - --repeat 1 --steps 3 --batch 4 ";
const std::string kLayer = "bench layer --quiet --json - --repeat 1 --steps 2 ";
// The smallest of the shapes: 64 experts, 4 of them per token.
const std::string kFlash = kLayer + "--shape glm-4.7-flash ";
const std::string kCells = "bench kernels --quiet --json - --repeat 1 --milliseconds 0.01 ";
const std::string kKernels = kCells + "--shape 64x32 --format q8_0 --rows 1 --isa scalar ";

const json::object& row(const json::value& v, size_t i) { return v.at("results").as_array().at(i).as_object(); }
size_t rows(const json::value& v) { return v.at("results").as_array().size(); }
double number(const json::object& r, const char* key) { return r.at(key).to_number<double>(); }

std::string notes(const json::value& v) {
  std::string out;
  for (const json::value& note : v.at("notes").as_array()) out += std::string(note.as_string()) + "\n";
  return out;
}

TEST(BenchDecode, HasARowPerBatchAndPolicyWithEverythingNeededToRepeatIt) {
  const json::value v = carpool_json("bench decode " + kBooks +
                                     " --quiet --json - --repeat 2 --steps 3 --prompt 5 --batch 1,8 --policy topk "
                                     "--policy oea:k0=3 --cold-copies 2");
  ASSERT_EQ(rows(v), 4u);
  for (const char* key : {"command", "commit", "machine", "model"}) EXPECT_FALSE(v.at(key).as_string().empty()) << key;
  EXPECT_EQ(v.at("settings").at("cold_copies"), "2");
  EXPECT_EQ(v.at("settings").at("repeats"), "2");
  const json::object& topk = row(v, 2);
  const json::object& oea = row(v, 3);
  EXPECT_EQ(oea.at("policy"), "oea:k0=3");
  EXPECT_EQ(topk.at("batch"), 8);
  EXPECT_EQ(topk.at("prompt_tokens"), 5);
  EXPECT_EQ(topk.at("n_kv"), 8 * (5 + 3));
  EXPECT_EQ(number(topk, "distinct_experts"), number(topk, "distinct_experts_plain"));
  EXPECT_LT(number(oea, "distinct_experts"), number(oea, "distinct_experts_plain"));
  EXPECT_LT(number(oea, "bytes_per_step"), number(topk, "bytes_per_step"));
  EXPECT_NEAR(number(topk, "gbps"), number(topk, "bytes_per_step") / 1e6 / number(topk, "step_ms"), 1e-6);
  EXPECT_GT(number(topk, "read_gbps"), 0);
  EXPECT_NE(notes(v).find("carpool ab " + kBooks + " --a topk --b oea:k0=3 does"), std::string::npos) << notes(v);
}

TEST(BenchDecode, PrintsTablesUnlessJsonTakesStandardOutput) {
  const Outcome o = carpool("bench decode " + kBooks + " --quiet --repeat 1 --steps 2 --batch 2");
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part : {"N_KV", "S_TG t/s", "rows/expert", "of floor", "attention", "command", "commit"}) {
    EXPECT_NE(o.out.find(part), std::string::npos) << part << " in\n" << o.out;
  }
  const TemporaryFolder folder;
  const Outcome both =
      carpool("bench decode " + kBooks + " --quiet --repeat 1 --steps 2 --batch 2 --json " + (folder / "out.json"));
  EXPECT_NE(both.out.find("S_TG t/s"), std::string::npos);
  EXPECT_EQ(parse_json(slurp(folder / "out.json"), "out.json").at("results").as_array().size(), 1u);
}

TEST(BenchDecode, EveryOptionChangesWhatItSays) {
  const json::value base = carpool_json(kDecode);
  const double experts = number(row(base, 0), "distinct_experts");
  EXPECT_EQ(number(row(carpool_json(kDecode), 0), "distinct_experts"), experts) << "the same seed, the same tokens";
  EXPECT_NE(number(row(carpool_json(kDecode + "--seed 2"), 0), "distinct_experts"), experts);
  EXPECT_EQ(row(carpool_json(kDecode + "--prompt 9"), 0).at("n_kv"), 4 * (9 + 3));
  EXPECT_EQ(row(carpool_json(kDecode + "--steps 7"), 0).at("steps"), 7);
  EXPECT_EQ(carpool_json(kDecode + "--chunk 2").at("settings").at("chunk"), "2");
  EXPECT_EQ(carpool_json(kDecode + "--cold-copies 0").at("settings").at("cold_copies"), "0");
  EXPECT_NE(base.at("settings").at("cold_copies"), "0") << "the small model is copied by default";
  EXPECT_EQ(carpool_json(kDecode + "--repeats 3").at("settings").at("repeats"), "3");
  const json::value floats = carpool_json(kDecode + "--kv-cache-dtype f32"),
                    ints = carpool_json(kDecode + "--kv-cache-dtype q8");
  EXPECT_EQ(floats.at("settings").at("kv_cache_dtype"), "f32");
  EXPECT_LT(number(row(ints, 0), "dense_bytes_per_step"), number(row(floats, 0), "dense_bytes_per_step"));
  const json::value scalar = carpool_json(kDecode + "--isa scalar --threads 1 --no-finite-check");
  EXPECT_NE(scalar.at("machine").as_string().find("1 threads"), std::string::npos);
  EXPECT_NE(scalar.at("machine").as_string().find("scalar"), std::string::npos);
}

TEST(BenchDecode, AModelOfRandomWeightsSaysSoAndSpreadsItsRouting) {
  const json::value v = carpool_json(
      "bench decode dummy:qwen3-30b-a3b,layers=2 --isa auto --quiet --json - --repeat 1 --steps 2 --batch 16 --policy "
      "topk "
      "--policy "
      "oea:k0=3");
  EXPECT_NE(v.at("model").as_string().find("random weights"), std::string::npos);
  EXPECT_NE(notes(v).find("Random weights have no quality to lose"), std::string::npos) << notes(v);
  EXPECT_EQ(notes(v).find("collapsed"), std::string::npos) << notes(v);
  EXPECT_NEAR(number(row(v, 0), "uniform_experts"), 82.4, 0.05);
}

TEST(BenchDecode, WhatCannotBeMeasuredIsRefusedBeforeTheLoad) {
  expect_refused("bench decode", 64, "MODEL is required");
  expect_refused("bench decode /nowhere --quiet", 66, "/nowhere");
  expect_refused("bench decode dummy:qwen9 --quiet", 78, "no shape \"qwen9\"; there are qwen3-30b-a3b");
  expect_refused("bench decode dummy:qwen3-30b-a3b,layers=1 --quiet --repack-cache /tmp", 78,
                 "a dummy model has no file, so there is nothing that a repack cache could keep");
  expect_refused("bench decode dummy:glm-5 --quiet", 78, "glm-5 is the shape of a layer only");
  expect_refused("bench decode " + kBooks + " --quiet --batch 0", 64, "a batch must be 1 to 1024");
  expect_refused("bench decode " + kBooks + " --quiet --policy oea:k0=99", 78, "k0");
  expect_refused("bench decode " + kBooks + " --quiet --prompt 100000", 64, "do not fit the model's context");
  expect_refused("bench decode " + kBooks + " --quiet --json /nowhere/x.json", 73, "cannot be written");
  expect_refused("bench", 64, "subcommand");
}

TEST(BenchPrefill, HasARowPerPromptLength) {
  const std::string base = "bench prefill " + kBooks + " --quiet --json - --repeat 2 --tokens 8,40 ";
  const json::value v = carpool_json(base + "--chunk 16");
  ASSERT_EQ(rows(v), 2u);
  EXPECT_EQ(row(v, 1).at("tokens"), 40);
  EXPECT_EQ(row(v, 1).at("chunk"), 16);
  EXPECT_NEAR(number(row(v, 1), "tokens_per_second"), 40e3 / number(row(v, 1), "prefill_ms"), 1e-6);
  const json::value other = carpool_json(base + "--chunk 16 --seed 2");
  EXPECT_NE(number(row(other, 1), "distinct_experts"), number(row(v, 1), "distinct_experts"));
  EXPECT_LT(number(row(v, 1), "distinct_experts"),
            number(row(carpool_json(base + "--chunk 40"), 1), "distinct_experts"))
      << "longer chunks touch more experts per step";
  expect_refused("bench prefill " + kBooks + " --quiet --tokens 100000", 64, "does not fit the model's context");
}

TEST(BenchLayer, RunsALayerOfAPublishedShapeUnderSeveralPolicies) {
  const json::value v = carpool_json(kFlash + "--format nvfp4 --batch 1,16 --policy topk --policy oea:k0=2");
  ASSERT_EQ(rows(v), 4u);
  EXPECT_NE(v.at("model").as_string().find("glm-4.7-flash in nvfp4, random weights: 4 of 64 experts"),
            std::string::npos);
  EXPECT_EQ(number(row(v, 0), "distinct_experts"), 4);
  const json::object& topk = row(v, 2);
  const json::object& oea = row(v, 3);
  EXPECT_EQ(number(oea, "distinct_experts_plain"), number(topk, "distinct_experts")) << "the same logits";
  EXPECT_LT(number(oea, "distinct_experts"), number(topk, "distinct_experts"));
  EXPECT_NEAR(number(topk, "uniform_experts"), 64 * (1 - std::pow(1 - 4 / 64.0, 16)), 1e-9);
  // Experts of 3 * 2048 * 1536 weights in 4.5 bits, and the router in float32.
  EXPECT_NEAR(number(topk, "bytes_per_step"),
              number(topk, "distinct_experts") * 3 * 2048 * 1536 * 4.5 / 8 + 64 * 2048 * 4, 1);
  EXPECT_NE(notes(v).find("quality: oea:k0=2 changed"), std::string::npos);
}

TEST(BenchLayer, EveryOptionChangesWhatItSays) {
  const std::string base = kFlash + "--batch 8 ";
  const json::value v = carpool_json(base);
  const double experts = number(row(v, 0), "distinct_experts"), bytes = number(row(v, 0), "bytes_per_step");
  EXPECT_NE(number(row(carpool_json(base + "--seed 2"), 0), "distinct_experts"), experts);
  EXPECT_LT(number(row(carpool_json(base + "--routing skewed:3"), 0), "distinct_experts"), experts);
  EXPECT_GT(number(row(carpool_json(base + "--format q8_0"), 0), "bytes_per_step"), bytes);
  EXPECT_EQ(carpool_json(base + "--cold-copies 2").at("settings").at("cold_copies"), "2");
  const json::value scalar = carpool_json(base + "--isa scalar --threads 1");
  EXPECT_NE(scalar.at("machine").as_string().find("1 threads"), std::string::npos);
  EXPECT_NE(scalar.at("machine").as_string().find("scalar"), std::string::npos);
  EXPECT_EQ(number(row(scalar, 0), "distinct_experts"), experts) << "routing is drawn, not computed";
}

TEST(BenchLayer, ForcedRoutingGivesTheCostOfARow) {
  const json::value v = carpool_json(kFlash + "--routing forced:4x1,4x4,16x1,16x2");
  ASSERT_EQ(rows(v), 4u);
  EXPECT_EQ(row(v, 1).at("policy"), "forced");
  EXPECT_EQ(number(row(v, 1), "distinct_experts"), 4);
  EXPECT_EQ(number(row(v, 1), "rows_per_expert"), 4);
  EXPECT_EQ(v.at("row_cost").at("points"), 4);
  EXPECT_NE(notes(v).find("An extra row on a loaded expert costs"), std::string::npos);
}

TEST(BenchLayer, WhatCannotBeMeasuredIsRefused) {
  expect_refused("bench layer", 64, "--shape is required");
  expect_refused("bench layer --shape glm-9", 78, "no shape \"glm-9\"; there are");
  expect_refused("bench layer --shape glm-5 --format q5_9", 78, "no format \"q5_9\"; there are f32");
  expect_refused("bench layer --shape glm-5 --format all", 78, "a layer has one format");
  expect_refused("bench layer --shape glm-4.5-air --format q4_k", 78, "needs a multiple of 256");
  expect_refused("bench layer --shape glm-5 --routing zipf", 78, "there are uniform, skewed");
  expect_refused("bench layer --shape glm-5 --routing forced:8x1 --policy topk", 78, "no effect with forced routing");
  expect_refused("bench layer --shape glm-5 --routing forced:8x1 --batch 4", 78, "no effect with forced routing");
  expect_refused("bench layer --shape glm-5 --routing forced:257x1", 78, "does not fit a layer of 256");
  expect_refused("bench layer --shape glm-5 --batch 0", 64, "a batch must be 1 to 4096");
  expect_refused("bench layer --shape glm-5 --cold-copies 0", 64, "--cold-copies");
  expect_refused("bench layer --shape glm-5 --format f32 --cold-copies 4096", 71, "MiB are available");
}

TEST(BenchKernels, EveryOptionChangesWhichCellsThereAre) {
  const json::value v = carpool_json(kKernels + "--threads 1");
  ASSERT_EQ(rows(v), 2u) << "from memory and from cache";
  EXPECT_EQ(row(v, 0).at("format"), "q8_0");
  EXPECT_EQ(row(v, 0).at("isa"), "scalar");
  EXPECT_EQ(row(v, 0).at("weights"), "memory");
  EXPECT_EQ(row(v, 1).at("weights"), "cache");
  EXPECT_EQ(number(row(v, 0), "bytes"), 64 * 32 / 32 * 34);
  EXPECT_EQ(rows(carpool_json(kKernels + "--threads 2")), 4u) << "one thread and all";
  EXPECT_EQ(rows(carpool_json(kCells + "--shape 64x32 --format q8_0 --isa scalar --threads 1 --rows 1,2,5")), 6u);
  EXPECT_EQ(rows(carpool_json(kKernels + "--threads 1 --format bf16")), 4u);
  EXPECT_EQ(number(row(carpool_json(kKernels + "--threads 1 --shape 128x16"), 0), "bytes"), 128 * 16 / 32 * 34);
  EXPECT_EQ(carpool_json(kKernels + "--threads 1 --seed 3").at("settings").at("seed"), "3");
  EXPECT_EQ(carpool_json(kKernels + "--threads 1 --milliseconds 1").at("settings").at("milliseconds"), "1");
  std::set<std::string> formats, isas;
  const json::value all = carpool_json(kCells + "--threads 1 --shape 256x16 --rows 1 --format all --isa all");
  for (const json::value& r : all.at("results").as_array()) {
    formats.insert(std::string(r.at("format").as_string()));
    isas.insert(std::string(r.at("isa").as_string()));
  }
  EXPECT_EQ(formats.size(), static_cast<size_t>(kFormatCount));
  EXPECT_EQ(isas.count("scalar"), 1u);
}

TEST(BenchKernels, WhatCannotBeMeasuredIsRefused) {
  expect_refused("bench kernels --format q5", 78, "no format \"q5\"");
  expect_refused("bench kernels --isa mmx", 78, "no instruction set \"mmx\" here; there are scalar");
  expect_refused("bench kernels --shape 2048", 78, "the shape of a matrix is KxN");
  expect_refused("bench kernels --shape 100x16 --format q4_0", 78, "needs a multiple of 32");
  expect_refused("bench kernels --rows 0 --format f32", 64, "rows must be 1 to 4096");
}

}  // namespace
}  // namespace carpool::end_to_end
