// `carpool bench-serve` as users call it, against a server of this process: every option changes something.
#include "cli/bench_serve.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "cli/command_test_util.h"
#include "measure/load_fake_server_test_util.h"

namespace carpool {
namespace {

using fake::FakeServer;
using fake::Got;
using fake::json_reply;
using fake::Reply;

// What a carpool server answers, as far as the client asks: `arms` switch by request or by /admin/policy, and the
// counters show fewer experts and re-routed tokens while a policy other than topk runs.
class Server {
 public:
  Server() : fake_([this](const Got& got) { return answer(got); }) {}

  std::string url() const { return fake_.url(); }
  FakeServer& fake() { return fake_; }
  // The bodies of /generate without the warm-up's.
  std::vector<json::object> generated(size_t warmups = 1) const {
    std::vector<json::object> out;
    for (const Got& got : fake_.got("/generate")) out.push_back(got.json());
    out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(std::min(warmups, out.size())));
    return out;
  }

  std::atomic<bool> metrics{true}, reroutes{true}, fails{false}, flushes{true};
  std::atomic<int> health{200};

 private:
  Reply answer(const Got& got) {
    const std::string& t = got.target;
    if (t == "/health") return json_reply("{}", health);
    if (t == "/v1/models") return json_reply("{\"data\": [{\"id\": \"books\"}]}");
    if (t == "/server_info") return json_reply("{\"version\": \"9.9\"}");
    if (t == "/model_info")
      return json_reply("{\"vocab_size\": 1000, \"num_experts\": 32, \"num_experts_per_tok\": 8}");
    if (t == "/tokenize") return json_reply("{\"count\": 1}");
    if (t == "/flush_cache") return json_reply("{}", flushes ? 200 : 401);
    if (t == "/metrics") return metrics ? counters() : json_reply("{}", 404);
    if (t == "/admin/policy") return policy(got);
    if (t == "/generate" || t == "/v1/completions" || t == "/v1/chat/completions") return generate(got);
    return json_reply("{}", 404);
  }

  Reply policy(const Got& got) {
    if (got.header("Authorization") != "Bearer root") return json_reply("{}", 401);
    if (got.method == "POST") policy_ = std::string(got.json().at("policy").as_string());
    return json_reply("{\"policy\": \"" + policy_ + "\"}");
  }

  Reply generate(const Got& got) {
    if (fails) return json_reply("{\"error\": {\"code\": \"overloaded\", \"message\": \"the queue is full\"}}", 503);
    const json::object body = got.json();
    const json::value* asked = body.if_contains("routing");
    const std::string routing = asked ? std::string(asked->as_string()) : policy_;
    ++steps_;
    if (routing != "topk" && reroutes) rerouted_ += 5;
    experts_ += routing == "topk" ? 20 : 15;
    Reply reply;
    if (got.target == "/generate") {
      reply = fake::native_stream(static_cast<int>(body.at("sampling_params").at("max_new_tokens").as_int64()));
      if (!body.at("stream").as_bool())
        reply = json_reply("{\"text\": \"a\", \"meta_info\": {\"completion_tokens\": 2}}");
    } else {
      const bool chat = got.target == "/v1/chat/completions";
      reply = fake::event_stream(
          {chat ? "{\"choices\": [{\"delta\": {\"content\": \"a\"}}]}" : "{\"choices\": [{\"text\": \"a\"}]}",
           "{\"choices\": [], \"usage\": {\"prompt_tokens\": 2, \"completion_tokens\": 1}}"});
    }
    reply.headers = {{"x-carpool-routing", routing + "; scope=tenant"}};
    return reply;
  }

  Reply counters() const {
    std::ostringstream out;
    out << "carpool:moe_layer_steps_total{steps=\"decode\"} " << steps_ << "\n"
        << "carpool:moe_distinct_experts_total{steps=\"decode\"} " << experts_ << "\n"
        << "carpool:moe_distinct_experts_plain_total{steps=\"decode\"} " << 20 * steps_ << "\n"
        << "carpool:moe_rerouted_tokens_total{steps=\"decode\"} " << rerouted_ << "\n"
        << "carpool:steps_total{steps=\"decode\"} " << steps_ << "\n";
    return json_reply(out.str());
  }

  std::string policy_ = "topk";  // these four: on the server's thread
  int steps_ = 0, rerouted_ = 0, experts_ = 0;
  FakeServer fake_;
};

Output run(const std::string& arguments) {
  std::vector<std::string> words = {"bench-serve"};
  std::istringstream in(arguments);
  for (std::string word; in >> word;) words.push_back(word);
  return run_command(words);
}

const std::string kSmall = " --num-prompts 4 --random-input-len 6 --random-output-len 3";

Output load(const Server& server, const std::string& more) { return run(server.url() + kSmall + " " + more); }

json::value json_of(const Output& o) {
  EXPECT_EQ(o.code, 0) << o.err;
  return o.code == 0 ? parse_json(o.out, "--json -") : json::value(json::object{});
}

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("carpool_bench_serve_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string slurp(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(BenchServe, PrintsTheBlockAndTheServersOwnCounters) {
  Server server;
  const Output o = load(server, "--max-concurrency 2");
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part : {"Serving Benchmark Result", "Successful requests:                     4",
                           "Max request concurrency:                 2", "20.0 distinct experts per layer",
                           "Routing that applied to 4 requests: topk; scope=tenant"}) {
    EXPECT_NE(o.out.find(part), std::string::npos) << part << " in\n" << o.out;
  }
  EXPECT_LE(server.fake().most_at_once("/generate"), 2);
  const auto sent = server.generated();
  ASSERT_EQ(sent.size(), 4u);
  for (const json::object& body : sent) {
    EXPECT_EQ(body.at("sampling_params").at("ignore_eos"), true);
    EXPECT_TRUE(body.contains("input_ids"));
  }
}

TEST(BenchServe, SamplingAndBodiesFollowTheOptions) {
  Server server;
  const Output o =
      load(server,
           "--temperature 0.5 --top-p 0.9 --seed 7 --disable-ignore-eos --disable-stream --warmup-requests 2 "
           "--extra-request-body {\"priority\":3} --header X-Team=blue --api-key abc --request-rate 500");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("Traffic request rate:                    500"), std::string::npos) << o.out;
  const auto sent = server.generated(2);
  ASSERT_EQ(sent.size(), 4u);
  std::set<int64_t> seeds;
  for (const json::object& body : sent) {
    const json::object& sampling = body.at("sampling_params").as_object();
    EXPECT_EQ(sampling.at("temperature"), 0.5);
    EXPECT_EQ(sampling.at("top_p"), 0.9);
    EXPECT_EQ(sampling.at("ignore_eos"), false);
    seeds.insert(sampling.at("sampling_seed").as_int64());
    EXPECT_EQ(body.at("stream"), false);
    EXPECT_EQ(body.at("priority"), 3);
  }
  EXPECT_EQ(seeds, (std::set<int64_t>{7, 8, 9, 10}));
  const Got got = server.fake().got("/generate").back();
  EXPECT_EQ(got.header("X-Team"), "blue");
  EXPECT_EQ(got.header("Authorization"), "Bearer abc");
}

TEST(BenchServe, LengthsAndVocabularyFollowTheOptions) {
  Server server;
  EXPECT_EQ(load(server, "--random-range-ratio 1 --vocab-size 3 --warmup-requests 0").code, 0);
  for (const json::object& body : server.generated(0)) {
    EXPECT_EQ(body.at("input_ids").as_array().size(), 6u);
    EXPECT_EQ(body.at("sampling_params").at("max_new_tokens"), 3);
    for (const json::value& id : body.at("input_ids").as_array()) EXPECT_LT(id.as_int64(), 3);
  }
}

TEST(BenchServe, TheOpenAiBackendsNameTheModel) {
  Server server;
  EXPECT_EQ(load(server, "--backend openai").code, 0);
  EXPECT_EQ(server.fake().got("/v1/completions").back().json().at("model"), "books");
  EXPECT_EQ(load(server, "--backend openai-chat --dataset-name random --model other").code, 0);
  const json::object body = server.fake().got("/v1/chat/completions").back().json();
  EXPECT_EQ(body.at("model"), "other");
  EXPECT_EQ(body.at("messages").at(0).at("role"), "user");
}

TEST(BenchServe, TheSharedPrefixDataSetFollowsItsOptions) {
  Server server;
  const Output o = run(server.url() +
                       " --dataset-name generated-shared-prefix --gsp-num-groups 2 --gsp-prompts-per-group 3 "
                       "--gsp-system-prompt-len 20 --gsp-question-len 4 --gsp-output-len 2 --gsp-range-ratio 0.5");
  EXPECT_EQ(o.code, 0) << o.err;
  std::map<std::string, int> groups;
  for (const json::object& body : server.generated()) {
    const std::string text(body.at("text").as_string());
    ++groups[text.substr(0, text.find("\n\n"))];
    EXPECT_LE(body.at("sampling_params").at("max_new_tokens").as_int64(), 2);
  }
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups.begin()->second, 3);
}

TEST(BenchServe, CustomPromptsComeFromAFile) {
  Server server;
  const Folder folder;
  std::ofstream(folder / "p.jsonl") << "{\"prompt\": \"One\"}\n{\"prompt\": \"Two\", \"output_len\": 9}\n";
  const Output o = load(server, "--dataset-name custom --dataset-path " + (folder / "p.jsonl"));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("4 requests repeat 2 prompts"), std::string::npos) << o.out;
  std::map<std::string, int64_t> lengths;
  for (const json::object& body : server.generated()) {
    lengths[std::string(body.at("text").as_string())] = body.at("sampling_params").at("max_new_tokens").as_int64();
  }
  EXPECT_EQ(lengths, (std::map<std::string, int64_t>{{"One", 3}, {"Two", 9}}));
  EXPECT_EQ(load(server, "--sharegpt-output-len 5 --dataset-name custom --dataset-path " + (folder / "p.jsonl")).code,
            0);
  EXPECT_EQ(server.generated().back().at("sampling_params").at("max_new_tokens"), 5);
}

TEST(BenchServe, AppendsJsonLinesAndWritesJsonAndMarkdown) {
  Server server;
  const Folder folder;
  const std::string lines = folder / "out.jsonl";
  const std::string options = "--tag night --percentiles 50,99.9 --output-details --output-file " + lines;
  EXPECT_EQ(load(server, options + " --json " + (folder / "a.json") + " --markdown " + (folder / "a.md")).code, 0);
  EXPECT_EQ(load(server, options).code, 0);
  std::istringstream in(slurp(lines));
  int count = 0;
  for (std::string line; std::getline(in, line); ++count) {
    const json::value v = parse_json(line, "line");
    EXPECT_EQ(v.at("tag"), "night");
    EXPECT_EQ(v.at("server_info").at("version"), "9.9");
    EXPECT_TRUE(v.as_object().contains("p99.9_ttft_ms"));
    EXPECT_EQ(v.at("ttfts").as_array().size(), 4u);
    EXPECT_EQ(v.at("total_output_tokens_retokenized"), 4) << "one token for each of four texts, by /tokenize";
  }
  EXPECT_EQ(count, 2) << "appended";
  const json::value v = parse_json(slurp(folder / "a.json"), "a.json");
  for (const char* key : {"command", "commit", "machine", "model", "settings", "results", "notes"}) {
    EXPECT_TRUE(v.as_object().contains(key)) << key;
  }
  EXPECT_EQ(v.at("results").at(0).at("completed"), 4);
  EXPECT_EQ(v.at("settings").at("server_version"), "9.9");
  EXPECT_NE(slurp(folder / "a.md").find("| TTFT |"), std::string::npos);
}

TEST(BenchServe, FlushesTheCacheWhenAskedAndSaysWhenThatFails) {
  Server server;
  EXPECT_EQ(load(server, "").code, 0);
  EXPECT_TRUE(server.fake().got("/flush_cache").empty());
  EXPECT_EQ(load(server, "--flush-cache").code, 0);
  EXPECT_EQ(server.fake().got("/flush_cache").size(), 1u);
  server.flushes = false;
  const Output o = load(server, "--flush-cache");
  EXPECT_EQ(o.code, 69);
  EXPECT_NE(o.err.find("did not flush"), std::string::npos) << o.err;
}

TEST(BenchServe, NothingThatSucceededIsAnErrorWithTheFirstReason) {
  Server server;
  server.fails = true;
  const Output o = load(server, "--warmup-requests 0");
  EXPECT_EQ(o.code, 69);
  EXPECT_NE(o.out.find("Failed requests:                         4"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("4 requests failed: HTTP 503 overloaded; the first said: the queue is full"), std::string::npos)
      << o.out;
  EXPECT_NE(o.err.find("none of 4 requests succeeded: HTTP 503 overloaded: the queue is full"), std::string::npos)
      << o.err;
  const Output warm = load(server, "");
  EXPECT_EQ(warm.code, 69);
  EXPECT_NE(warm.err.find("warm-up"), std::string::npos) << warm.err;
}

TEST(BenchServe, AServerThatIsNotThereOrNotReadyIsOneSentence) {
  Server server;
  server.health = 503;
  // On a busy machine a short time may be too short for any answer: then with more.
  Output o;
  std::string said;
  for (const char* seconds : {"0.1", "3", "30"}) {
    o = load(server, std::string("--ready-check-timeout-sec ") + seconds);
    EXPECT_EQ(o.code, 69);
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    said = std::string("is not ready after ") + seconds + " s (HTTP 503)";
    if (o.err.find("HTTP") != std::string::npos) break;
  }
  EXPECT_NE(o.err.find(said), std::string::npos) << o.err;
  EXPECT_EQ(load(server, "--ready-check-timeout-sec 0").code, 0) << "0 = do not ask";
}

TEST(BenchServe, ARequestOverItsTimeLimitIsGivenUp) {
  FakeServer never([](const Got& got) {
    Reply reply = json_reply("{}", got.target == "/health" ? 200 : 404);
    reply.never = got.target == "/generate";
    return reply;
  });
  const Output o = run("--base-url " + never.url() + kSmall + " --vocab-size 9 --warmup-requests 0 --timeout 0.2");
  EXPECT_EQ(o.code, 69);
  EXPECT_NE(o.out.find("4 requests failed: timeout"), std::string::npos) << o.out;
}

TEST(BenchServe, TheAbSendsEachArmsRoutingAndReportsRatiosBesideTheCounters) {
  Server server;
  const json::value v =
      json_of(run(server.url() + kSmall + " --ab topk --ab oea:k0=5 --concurrency 1,3 --repeat 5 --json -"));
  const json::array& rows = v.at("results").as_array();
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].at("policy"), "topk");
  EXPECT_EQ(rows[0].at("batch"), 1);
  EXPECT_EQ(rows[0].at("distinct_experts"), 20.0);
  EXPECT_EQ(rows[3].at("batch"), 3);
  EXPECT_EQ(rows[3].at("distinct_experts"), 15.0);
  EXPECT_EQ(rows[3].at("distinct_experts_ratio"), 0.75);
  EXPECT_TRUE(rows[3].at("objections").as_array().empty()) << json::serialize(rows[3].at("objections"));
  EXPECT_TRUE(rows[3].as_object().contains("predicted_experts_ratio")) << "the server says how many experts there are";
  EXPECT_NE(json::serialize(v.at("notes")).find("carpool ab MODEL --a topk --b oea:k0=5"), std::string::npos);
  // Two arms, each with a warm-up and four requests, in five repeats and at two levels.
  std::map<std::string, std::vector<std::string>> bodies;
  for (json::object& body : server.generated(0)) {
    const std::string arm(body.at("routing").as_string());
    body.erase("routing");
    bodies[arm].push_back(json::serialize(body));
  }
  EXPECT_EQ(bodies.at("topk").size(), 50u);
  std::multiset<std::string> a(bodies["topk"].begin(), bodies["topk"].end()),
      b(bodies["oea:k0=5"].begin(), bodies["oea:k0=5"].end());
  EXPECT_EQ(a, b) << "both arms send the same requests";
  EXPECT_EQ(server.fake().got("/flush_cache").size(), 20u)
      << "before every run, so that no arm finds the other's prefixes";
}

TEST(BenchServe, TheQualityOfAnotherCommandStandsBesideTheSpeeds) {
  Server server;
  const Folder folder;
  std::ofstream(folder / "ab.json")
      << "{\"results\": [{\"policy\": \"oea:k0=5\", \"batch\": 2, \"cross_entropy_delta\": 0.0123, "
         "\"cross_entropy_delta_lo\": 0.01, \"cross_entropy_delta_hi\": 0.02, \"kl_mean\": 0.03, \"top1_agreement\": "
         "0.9}]}";
  const std::string with = " --concurrency 2 --repeat 1 --quality " + (folder / "ab.json");
  const Output o = load(server, "--ab topk --ab oea:k0=5" + with);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("+0.0123 [+0.0100, +0.0200]"), std::string::npos) << o.out;
  EXPECT_EQ(load(server, "--ab topk --ab oea:k0=3" + with).code, 64) << "that policy is not in the file";
  EXPECT_EQ(load(server, "--quality " + (folder / "ab.json")).code, 64);
}

TEST(BenchServe, AnArmThatNeverReRoutedGetsNoWinner) {
  Server server;
  server.reroutes = false;
  const Output o = load(server, "--ab topk --ab oea:k0=5 --concurrency 2 --repeats 5");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("no winner is named, because oea:k0=5 never re-routed a token"), std::string::npos) << o.out;
  server.metrics = false;
  EXPECT_NE(load(server, "--ab topk --ab oea:k0=5 --concurrency 2").out.find("the server has no routing counters"),
            std::string::npos);
}

TEST(BenchServe, TheAbCanSwitchTheServersPolicyAndPutsItBack) {
  Server server;
  EXPECT_EQ(load(server, "--ab topk --ab oea:k0=5 --concurrency 2 --repeat 2 --ab-via admin --admin-key root").code, 0);
  std::string order;
  for (const Got& got : server.fake().got("/admin/policy")) {
    order += got.method == "GET" ? "GET " : std::string(got.json().at("policy").as_string()) + " ";
  }
  EXPECT_EQ(order, "GET topk oea:k0=5 oea:k0=5 topk topk ");
  EXPECT_FALSE(server.generated().back().contains("routing"));
  const Output o = load(server, "--ab topk --ab oea:k0=5 --concurrency 2 --ab-via admin");
  EXPECT_EQ(o.code, 69);
  EXPECT_NE(o.err.find("--admin-key"), std::string::npos) << o.err;
}

TEST(BenchServe, ContradictionsAreRefusedBeforeAnythingIsSent) {
  Server server;
  for (const char* bad : {"--dataset-name sharegpt",
                          "--dataset-name custom",
                          "--dataset-path x",
                          "--backend trt",
                          "--ab topk",
                          "--ab topk --ab topk",
                          "--ab topk --ab oea:k0=5 --max-concurrency 3",
                          "--concurrency 3",
                          "--output-details",
                          "--ab topk --ab oea:k0=5 --ab-via magic",
                          "--backend openai-chat",
                          "--request-rate 0",
                          "--request-rate fast",
                          "--percentiles 0",
                          "--extra-request-body [1]",
                          "--header nonsense",
                          "--json a --markdown a",
                          "--ab topk --ab oea:k0=5 --concurrency 5000",
                          "--max-concurrency 5000",
                          "--temperature -1",
                          "--timeout 0"}) {
    const Output o = load(server, bad);
    EXPECT_EQ(o.code, 64) << bad << "\n" << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  }
  EXPECT_TRUE(server.fake().got("/generate").empty());
}

TEST(BenchServeOptions, HeadersAreNameAndValue) {
  EXPECT_EQ(parse_header("X-A=b=c"), (std::pair<std::string, std::string>{"X-A", "b=c"}));
  EXPECT_EQ(parse_header("X-A: b c"), (std::pair<std::string, std::string>{"X-A", "b c"}));
  for (const char* bad : {"", "=x", "a b: c", "a", "a: b\r\nc: d", "a: \x01"})
    EXPECT_THROW(parse_header(bad), Error) << bad;
}

TEST(BenchServeOptions, PercentilesAreSortedAndKeepTheUsualOnes) {
  EXPECT_EQ(parse_percentiles("99.9,50,90"), (std::vector<double>{50, 90, 95, 99, 99.9}));
  for (const char* bad : {"", "a", "50,", "0", "101", "5x", "nan"}) EXPECT_THROW(parse_percentiles(bad), Error) << bad;
}

TEST(BenchServeOptions, RatesArePositiveOrInfinite) {
  EXPECT_EQ(parse_request_rate("2.5"), 2.5);
  EXPECT_EQ(parse_request_rate("inf"), std::numeric_limits<double>::infinity());
  for (const char* bad : {"", "0", "-1", "nan", "1e99", "2 "}) EXPECT_THROW(parse_request_rate(bad), Error) << bad;
}

TEST(BenchServeOptions, AnAbHasTwoRequestsPerPlaceUnlessMoreAreAskedFor) {
  EXPECT_EQ(ab_requests(false, 0, 1), 8);
  EXPECT_EQ(ab_requests(false, 0, 64), 128);
  EXPECT_EQ(ab_requests(true, 100, 64), 100);
  EXPECT_EQ(ab_requests(true, 4, 64), 64);
}

}  // namespace
}  // namespace carpool
