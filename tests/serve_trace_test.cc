// A server's trace: requests that shared experts, each run again alone, with the same bits. Problem M16, over HTTP.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>
#include <vector>

#include "end_to_end_util.h"
#include "serve_process_util.h"

namespace carpool::end_to_end {
namespace {

TEST(ServeTrace, M16RequestsThatSharedExpertsHaveTheSameBitsAloneFromTheServersTrace) {
  const TemporaryFolder folder;
  const std::string trace = folder / "serve.jsonl";
  ServeProcess server({kBooks, "--policy", "oea:k0=2", "--disable-radix-cache", "--trace", trace});
  std::vector<std::thread> users;
  for (int u = 0; u < 4; ++u) {
    users.emplace_back([&server, u] {
      const json::object body{{"prompt", "In the year " + std::to_string(u) + " the men of the village"},
                              {"max_tokens", 24},
                              {"ignore_eos", true}};
      EXPECT_EQ(server.post("/v1/completions", json::serialize(body)).status, 200);
    });
  }
  for (std::thread& user : users) user.join();
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
  struct stat status{};
  ASSERT_EQ(::stat(trace.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u) << "text can be read from it";
  const json::value forced = carpool_json("trace force " + kBooks + " " + trace + " --quiet --json -");
  const json::value& row = forced.at("results").at(0);
  EXPECT_EQ(row.at("sequences"), 4);
  EXPECT_EQ(row.at("compared"), 4 * 24);
  EXPECT_EQ(row.at("equal"), row.at("compared"));
  expect_refused("serve " + kBooks + " --port 0 --disable-radix-cache --trace " + trace, 73, "cannot be created");
}

}  // namespace
}  // namespace carpool::end_to_end
