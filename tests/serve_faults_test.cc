// What a server does when something under it breaks: its engine, or the file that it was loaded from. Catalogue F5, F7.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "end_to_end_util.h"
#include "programs.h"
#include "serve_canary_util.h"

namespace carpool::end_to_end {
namespace {

namespace fs = std::filesystem;

TEST(ServeFaults, AnExceptionOnTheEnginesThreadEndsTheProcessWith70) {
#ifdef CARPOOL_SANITIZED
  GTEST_SKIP() << "a sanitizer's own calls cannot be stood in for";
#endif
  const TemporaryFolder folder;
  const std::string fault = folder / "fault";
  ::setenv("LD_PRELOAD", engine_fault_library().c_str(), 1);
  ::setenv("CARPOOL_TEST_FAULT", fault.c_str(), 1);
  std::optional<ServeProcess> server;
  server.emplace(std::vector<std::string>{"dummy:canary,step_us=2000", "--max-running-requests", "1"});
  ::unsetenv("LD_PRELOAD");
  ::unsetenv("CARPOOL_TEST_FAULT");
  // One runs, one waits.
  const Ask ask{canary_prompt(1, 20), 3000, true, true, ""};
  RawClient running(server->port(), 60), waiting(server->port(), 60);
  running.send(ask.bytes());
  read_answer(running, ask, 2);
  waiting.send(Ask{canary_prompt(2, 20), 10, false, true, ""}.bytes());
  wait_for(*server, "both there", [](const EngineState& s) { return s.running == 1 && s.waiting == 1; });
  std::ofstream(fault).put('x');
  std::string last;
  while (const auto event = running.read_event()) last = event->data;
  EXPECT_EQ(parse_json(last, "the last event").at("error").at("code"), "engine_dead");
  const RawResponse refused = waiting.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(json_of(refused).at("error").at("code"), "engine_dead");
  EXPECT_EQ(server->wait(), 70) << server->err();
  EXPECT_NE(server->err().find("the engine has stopped after an internal error error=\"the fault of a test\""),
            std::string::npos)
      << server->err();
  EXPECT_TRUE(server->err().ends_with("error: the engine has stopped after an internal error (exit 70)\n"))
      << server->err();
}

const char* const kBody = R"({"prompt":"The old lighthouse keeper","max_tokens":8,"temperature":0})";

std::string text_of(ServeProcess& server) {
  const RawResponse response = server.post("/v1/completions", kBody);
  EXPECT_EQ(response.status, 200) << response.body;
  return std::string(json_of(response).at("choices").at(0).at("text").as_string());
}

TEST(ServeFaults, AModelFileThatIsOverwrittenInPlaceIsNoticedAndSaid) {
  const TemporaryFolder folder;
  const std::string model = folder / "model", file = model + "/model.safetensors";
  fs::copy(kBooks, model, fs::copy_options::recursive);
  ServeProcess server({model, "--kv-tokens", "2048"});
  text_of(server);
  EXPECT_EQ(json_of(server.get("/server_info")).at("model_files"), "unchanged");
  EXPECT_FALSE(json_of(server.get("/health")).contains("model_files"));
  const auto size = fs::file_size(file);
  {
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(-1, std::ios::end);  // not of the embedding: whatever was written, it is said
    out.put('\0');
  }
  ASSERT_EQ(fs::file_size(file), size);
  server.wait_for_line("answers may be wrong until a restart");
  const RawResponse health = server.get("/health");
  EXPECT_EQ(health.status, 200) << "it generates, and who wrote may have written the same";
  EXPECT_EQ(json_of(health).at("model_files"), "written");
  EXPECT_EQ(health.body.find(model), std::string::npos) << "no paths without a key";
  EXPECT_EQ(json_of(server.get("/server_info")).at("model_files"),
            json::value(file + ": written to since it was opened"));
  text_of(server);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.err();
}

TEST(ServeFaults, AModelFileThatIsReplacedLeavesTheServerWithTheOldOne) {
  const TemporaryFolder folder;
  const std::string model = folder / "model", file = model + "/model.safetensors";
  fs::copy(kBooks, model, fs::copy_options::recursive);
  ServeProcess server({model, "--kv-tokens", "2048"});
  const std::string before = text_of(server);
  std::ofstream(file + ".new") << "another model";
  fs::rename(file + ".new", file);
  server.wait_for_line("a model file was replaced: this server goes on with the old one");
  EXPECT_FALSE(json_of(server.get("/health")).contains("model_files"));
  EXPECT_NE(std::string(json_of(server.get("/server_info")).at("model_files").as_string()).find(file),
            std::string::npos);
  EXPECT_EQ(server.post("/flush_cache", "").status, 200);
  EXPECT_EQ(text_of(server), before);
}

}  // namespace
}  // namespace carpool::end_to_end
