// A server whose policy routes by tables: read when it starts, named by no request.
#include "end_to_end_util.h"
#include "serve_process_util.h"

namespace carpool::end_to_end {
namespace {

TEST(ServeTables, AServerRoutesByTheTablesThatItStartedWith) {
  const TemporaryFolder folder;
  const std::string tables = folder / "books.tables";
  const Outcome made = carpool("calibrate " + kBooks + " " + kBooks +
                               "/eval.txt --quiet --no-sensitivity --documents 4 " + "--tokens 16 --out " + tables);
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string spec = "sere:table=" + tables + ",k0=2,rho=0";
  ServeProcess server({kBooks, "--policy", spec, "--admin-key", "root"});
  const RawResponse answer =
      server.post("/v1/completions", R"({"prompt": "The old lighthouse keeper", "n": 8, "max_tokens": 16, "seed": 1})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.header("x-carpool-routing").substr(0, spec.size()), spec);
  const json::value info = parse_json(server.get("/server_info").body, "/server_info");
  const json::object& state = info.at("internal_states").as_array().at(0).as_object();
  EXPECT_EQ(state.at("policy").as_string(), spec);
  const json::object& counted = state.at("routing_decode").as_object();
  EXPECT_LT(counted.at("distinct_experts_sum").to_number<int64_t>(),
            counted.at("distinct_experts_plain_sum").to_number<int64_t>());
  const RawResponse switched =
      server.post("/admin/policy", R"({"policy": "sere:table=/etc/passwd,k0=2"})", "x-api-key: root\r\n");
  EXPECT_EQ(switched.status, 400) << "a request names no file";
  EXPECT_NE(switched.body.find("its tables have not been read"), std::string::npos) << switched.body;
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

TEST(ServeTables, TablesThatCannotBeReadStopTheStart) {
  const Outcome o = carpool("serve " + kBooks + " --port 0 --policy sere:k0=2,table=/nowhere/tables");
  EXPECT_EQ(o.code, 66) << o.err;
  EXPECT_NE(o.err.find("/nowhere/tables"), std::string::npos) << o.err;
}

}  // namespace
}  // namespace carpool::end_to_end
