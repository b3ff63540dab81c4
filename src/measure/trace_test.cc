// Trace files: every format that is read, carpool's own both ways, and broken files.
#include "measure/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"

namespace carpool {
namespace {

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("carpool_trace_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, const std::string& text) const {
    const auto path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string problem(const std::vector<std::string>& files, int n_experts = 0) {
  try {
    read_traces(files, n_experts);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

const std::string kHeader = R"({"carpool_trace":1,"model":"m","n_experts":8,"top_k":2,"layers":[0,4],"ranked":true})";

TEST(Traces, TheOwnFormatComesBackAsItWas) {
  Folder folder;
  Trace t;
  t.model = "tiny \"model\"";
  t.n_experts = 3;
  t.top_k = 2;
  t.layers = {1, 5};
  const float odd = 0.1f + 0.2f, none = -std::numeric_limits<float>::infinity();
  t.sequences = {{"a",
                  2,
                  {0, 1, 2, -1, 1, 2, 0, 2},
                  {.5f, .25f, odd, 0, 1, 2, 3, 4},
                  {3, 2, 1, none, none, 1, 1, 2, 3, 4, 5, 6},
                  {1, 0, -0.0f, .5f, odd, 0, 1, 2, 3, 4, 5, 6}}};
  write_trace(t, folder / "t.jsonl");
  const Trace back = read_traces({folder / "t.jsonl"});
  EXPECT_EQ(back.model, t.model);
  EXPECT_EQ(back.n_experts, 3);
  EXPECT_EQ(back.layers, t.layers);
  ASSERT_EQ(back.sequences.size(), 1u);
  EXPECT_EQ(back.sequences[0].ids, t.sequences[0].ids);
  EXPECT_EQ(back.sequences[0].weights, t.sequences[0].weights);
  EXPECT_EQ(back.sequences[0].rank, t.sequences[0].rank);
  EXPECT_EQ(back.sequences[0].mix, t.sequences[0].mix);
  EXPECT_TRUE(std::signbit(back.sequences[0].mix[2])) << "bit for bit";
  EXPECT_TRUE(back.has_scores());
  EXPECT_TRUE(back.notes.empty());
}

TEST(Traces, ALastLineThatWasCutShortIsLeftOutWithANote) {
  Folder folder;
  const std::string line = R"({"sequence":"a","position":0,"experts":[[1,2],[3,4]]})";
  const Trace t = read_traces({folder.write("t.jsonl", kHeader + "\n" + line + "\n" + line.substr(0, 30))});
  EXPECT_EQ(t.tokens(), 1);
  ASSERT_EQ(t.notes.size(), 1u);
  EXPECT_NE(t.notes[0].find("cut short"), std::string::npos);
  EXPECT_NE(problem({folder.write("u.jsonl", kHeader + "\n" + line.substr(0, 30) + "\n" + line + "\n")}).find("line 2"),
            std::string::npos)
      << "in the middle it is damage";
}

TEST(Traces, EveryBrokenLineIsNamed) {
  Folder folder;
  const std::pair<const char*, const char*> lines[] = {
      {R"({"sequence":"a","position":0,"experts":[[1,2]]})", "has 1 layers"},
      {R"({"sequence":"a","position":0,"experts":[[1,2,3],[1,2]]})", "3 in a layer"},
      {R"({"sequence":"a","position":0,"experts":[[1,8],[1,2]]})", "expert 8 is not one of 0 to 7"},
      {R"({"sequence":"a","position":0,"experts":[[1,-1],[1,2]]})", "expert -1"},
      {R"({"sequence":"a","position":0,"experts":[[1,"x"],[1,2]]})", "whole number"},
      {R"({"sequence":"a","position":0,"experts":[[1,2],[1,2]],"weights":[[1,2,3],[1]]})", "3 values"},
      {R"({"sequence":"a","position":0,"experts":[[1,2],[1,2]],"rank":[[1],[1]]})", "have none"},
      {R"({"sequence":"a","position":0,"experts":[[1,2],[1,2]],"weights":[[1,null],[1,1]]})", "expected a number"},
      {R"({"sequence":"a","position":0,"experts":[[1,2],[1,2]],"weights":[[1,1e39],[1,1]]})", "beyond float32"},
      {R"({"position":0,"experts":[[1,2],[1,2]]})", "sequence"},
      {R"({"sequence":"a","position":1,"experts":[[1,2],[1,2]]})", "must be 0"},
      {"{", "line 2"},
  };
  for (const auto& [line, what] : lines) {
    const std::string found = problem({folder.write("t.jsonl", kHeader + "\n" + line + "\n\n")});
    EXPECT_NE(found.find(what), std::string::npos) << line << ": " << found;
  }
  EXPECT_NE(problem({folder.write("t.jsonl", R"({"carpool_trace":2})")}).find("version 1"), std::string::npos);
  EXPECT_NE(problem({folder.write("t.jsonl", "hello\n")}).find("is no trace"), std::string::npos);
  EXPECT_NE(problem({folder / "absent"}), "");
  EXPECT_NE(problem({folder.write("t.jsonl", "")}).find("is no trace"), std::string::npos);
  EXPECT_NE(problem({folder.write("t.jsonl", kHeader + "\n")}).find("hold no tokens"), std::string::npos);
  std::filesystem::create_directories(folder / "empty");
  EXPECT_NE(problem({folder / "empty"}).find("holds no traces"), std::string::npos);
}

TEST(Traces, NullIsAnExpertThatMayNotBeChosenAndReadsBackAsThat) {
  Folder folder;
  const std::string row = "[[1,null,2,3,0,0,0,3],[1,1,1,1,1,1,1,1]]";
  const std::string line =
      R"({"sequence":"a","position":0,"experts":[[7,2],[1,2]],"rank":)" + row + R"(,"mix":)" + row + "}\n";
  const Trace t = read_traces({folder.write("t.jsonl", kHeader + "\n" + line)});
  EXPECT_EQ(t.sequences[0].rank[1], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(t.sequences[0].mix[1], 0);
  const Trace again =
      read_traces({folder.write("u.jsonl", trace_header(t) + "\n" + trace_line(t, t.sequences[0], 0, 0))});
  EXPECT_EQ(again.sequences[0].rank, t.sequences[0].rank);
  EXPECT_EQ(again.sequences[0].mix, t.sequences[0].mix);
}

TEST(Traces, AnEmptyFirstLayerIsNoNumberOfExperts) {
  Folder folder;
  EXPECT_NE(problem({folder.write("t.jsonl", "{\"tok\": 0, \"layers\": [[], [3, 0]]}\n")})
                .find("2 experts in a layer, expected 0"),
            std::string::npos);
  EXPECT_NE(problem({folder.write("t.jsonl", "{\"tok\": 0, \"layers\": [[], []]}\n")}).find("0 experts per token"),
            std::string::npos);
  const std::string finger = R"({"router_data": [{"token_7": {"layer_0": {"selected_experts": [], "selected_probs": []},
      "layer_1": {"selected_experts": [5, 2], "selected_probs": [0.75, 0.25]}}}]})";
  EXPECT_NE(problem({folder.write("f.json", finger)}).find("expected 0"), std::string::npos);
}

TEST(Traces, FingerprintsAreReadInTheOrderOfTokensAndLayers) {
  Folder folder;
  const std::string text = R"({"router_data": [{"token_7": {
      "layer_1": {"selected_experts": [5, 2], "selected_probs": [0.75, 0.25]},
      "layer_0": {"selected_experts": [1, 0], "selected_probs": [0.6, 0.4]}}},
    {"token_8": {"layer_0": {"selected_experts": [3, 0], "selected_probs": [0.6, 0.4]},
                 "layer_1": {"selected_experts": [4, 2], "selected_probs": [0.5, 0.5]}}}]})";
  const Trace t = read_traces({folder.write("f.json", text)});
  EXPECT_EQ(t.sequences[0].ids, (std::vector<int16_t>{1, 0, 5, 2, 3, 0, 4, 2}));
  EXPECT_EQ(t.layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(t.n_experts, 8) << "the smallest usual number that holds 5";
  EXPECT_EQ(read_traces({folder / "f.json"}, 6).n_experts, 6);
  EXPECT_NE(problem({folder / "f.json"}, 5).find("expert 5"), std::string::npos);
}

TEST(Traces, EsftTasksAreGatheredByLayerAndRankedByWeight) {
  Folder folder;
  folder.write("task/expert_weights_10.txt", "1\t2\t3\t4\t5\t6\t\t0.1\t0.2\t0.05\t0.3\t0.2\t0.0\n");
  folder.write("task/expert_weights_2.txt", "9\t8\t7\t6\t5\t4\t\t0.6\t0.5\t0.4\t0.3\t0.2\t0.1\n");
  const Trace t = read_traces({folder / "task"});
  EXPECT_EQ(t.layers, (std::vector<int>{2, 10})) << "by number, not by name";
  EXPECT_EQ(t.sequences[0].ids, (std::vector<int16_t>{9, 8, 7, 6, 5, 4, 4, 2, 5, 1, 3, 6})) << "equal weights by id";
  folder.write("task/expert_weights_2.txt",
               "9\t8\t7\t6\t5\t4\t9\t8\t7\t6\t5\t4\t\t0.6\t0.5\t0.4\t0.3\t0.2\t0.1\t1\t1\t1\t1\t1\t1\n");
  EXPECT_NE(problem({folder / "task"}).find("another length"), std::string::npos);
}

TEST(Traces, StreamsOfSortedIdsAreNotRanked) {
  Folder folder;
  const Trace t = read_traces({folder.write("s.jsonl",
                                            "{\"tok\": 1, \"layers\": [[1, 4], [0, 2]]}\n"
                                            "{\"tok\": 2, \"layers\": [[1, 9], [3, 5]]}\n")});
  EXPECT_FALSE(t.ranked);
  EXPECT_EQ(t.tokens(), 2);
  EXPECT_EQ(t.n_experts, 16);
  EXPECT_NE(problem({folder.write("s.jsonl", "{\"tok\": 1, \"layers\": [[1, 4], [0]]}\n")}).find("expected 2"),
            std::string::npos);
}

std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  std::string head = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  head.resize(118, ' ');
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(118) + std::string(1, '\0') + head + data;
}

TEST(Traces, ArraysOfRoutedExpertsAreRead) {
  Folder folder;
  const int16_t halves[] = {5, 1, 2, -1};
  const int32_t words[] = {5, 1, 2, -1};
  const auto bytes = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values), sizeof values);
  };
  for (const std::string& file : {npy("<i2", "(1, 2, 2)", bytes(halves)), npy("<i4", "(1, 2, 2)", bytes(words))}) {
    const Trace t = read_traces({folder.write("a.npy", file)});
    EXPECT_EQ(t.sequences[0].ids, (std::vector<int16_t>{5, 1, 2, -1}));
    EXPECT_EQ(t.layers.size(), 2u);
  }
  for (const std::string& file :
       {npy("<f4", "(1, 2, 2)", bytes(words)), npy("<i4", "(2, 2)", bytes(words)),
        npy("<i4", "(9, 2, 2)", bytes(words)), std::string("\x93NUMPY\x01\x00\xff\xff", 10)}) {
    EXPECT_NE(problem({folder.write("a.npy", file)}), "") << file.substr(10, 40);
  }
}

TEST(Traces, FilesOfDifferentModelsDoNotMix) {
  Folder folder;
  const int16_t three[] = {5, 1, 2};
  folder.write("a.npy", npy("<i2", "(1, 1, 3)", std::string(reinterpret_cast<const char*>(three), 6)));
  folder.write("b.jsonl", kHeader + "\n");
  EXPECT_NE(problem({folder / "a.npy", folder / "b.jsonl"}).find("not traces of one model"), std::string::npos);
}

}  // namespace
}  // namespace carpool
