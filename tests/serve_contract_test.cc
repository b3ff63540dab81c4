// What hostile and mistaken requests get from a `carpool serve` process, while others are served: each its status and
// code, and nobody else notices. docs/reliability.md says which case of the catalogue is which test.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "end_to_end_util.h"
#include "programs.h"
#include "serve_canary_util.h"

namespace carpool::end_to_end {
namespace {

// Somebody else's stream, which must say all it has to say.
class Witness {
 public:
  explicit Witness(ServeProcess& server, const std::string& headers = "") : client_(server.port(), 300) {
    std::string bytes = ask_.bytes();
    bytes.insert(bytes.find("\r\n") + 2, headers);
    client_.send(bytes);
    got_ = read_answer(client_, ask_, 2);
    EXPECT_EQ(got_.status, 200);
  }
  ~Witness() {
    read_rest(client_, ask_, got_);
    EXPECT_EQ(got_.text, ask_.text()) << "somebody else's stream was disturbed";
    EXPECT_TRUE(got_.done);
  }

 private:
  Ask ask_{canary_prompt(9, 40), 400, true, false, "witness"};
  RawClient client_;
  Got got_;
};

std::string code_of(const RawResponse& response) {
  const json::object body = json_of(response);
  const json::object& error = body.at("error").as_object();
  EXPECT_LE(error.at("message").as_string().size(), 300u);
  EXPECT_TRUE(response.has("x-request-id"));
  EXPECT_EQ(response.header("content-type"), "application/json");
  EXPECT_TRUE(error.contains("type") && error.contains("param"));
  return std::string(error.at("code").as_string());
}

std::string param_of(const RawResponse& response) {
  const json::value param = json_of(response).at("error").at("param");
  return param.is_string() ? std::string(param.get_string()) : "";
}

// "400 invalid_value"
std::string refusal(const RawResponse& response) { return std::to_string(response.status) + " " + code_of(response); }

std::string repeat(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

const std::vector<std::string> kCanary = {"dummy:canary,step_us=1000"};

TEST(ServeContract, BodiesOverTheLimitByLengthOrByChunksGet413AndTheConnectionCloses) {
  ServeProcess server({"dummy:canary,step_us=1000", "--max-body-bytes", "4096"});
  const Witness witness(server);
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n";
  const std::string chunk = "400\r\n" + std::string(1024, 'x') + "\r\n";
  for (const std::string& request :
       {head + "Content-Length: 4097\r\n\r\n", head + "Content-Length: 99999999999999999999\r\n\r\n",
        head + "Transfer-Encoding: chunked\r\n\r\n" + repeat(chunk, 5),
        head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"}) {
    RawClient client(server.port());
    client.send(request);
    const RawResponse response = client.read_response();
    EXPECT_EQ(refusal(response), "413 body_too_large");
    EXPECT_TRUE(client.closed_by_server());
  }
  // A client that never stops sending is not read for ever.
  RawClient endless(server.port(), 60);
  endless.send(head + "Transfer-Encoding: chunked\r\n\r\n");
  size_t sent = 0;
  while (endless.try_send(chunk) && sent < (size_t{64} << 20)) sent += chunk.size();
  EXPECT_LT(sent, size_t{64} << 20);
}

TEST(ServeContract, SlowRequestsAndClientsThatDoNotReadHoldNobodyUp) {
  ServeProcess server({"dummy:canary", "--max-running-requests", "128"});
  std::vector<std::unique_ptr<RawClient>> slow, deaf;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(std::make_unique<RawClient>(server.port(), 120));
    slow.back()->send(i % 2 ? "POST /v1/completions HT"
                            : "POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{");
  }
  const Ask much{canary_prompt(3, 20), 4000, true, true, ""};
  for (int i = 0; i < 32; ++i) {
    deaf.push_back(std::make_unique<RawClient>(server.port(), 120, 4096));
    deaf.back()->send(much.bytes());  // and never reads: the stream is cumulative, megabytes of it
  }
  {
    const Witness witness(server);
  }
  EXPECT_EQ(server.get("/health").status, 200);
  deaf.clear();
  slow.clear();
  expect_nothing_left(server);
}

TEST(ServeContract, RequestsWhoseLengthCanBeReadInTwoWaysAreRefusedAndTheConnectionCloses) {
  ServeProcess server(kCanary);
  const Witness witness(server);
  const std::string post = "POST /v1/completions HTTP/1.1\r\nHost: a\r\n",
                    smuggled = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
  const std::string te = "Transfer-Encoding: chunked\r\n", cl = "Content-Length: 4\r\n";
  const std::pair<std::string, std::string> cases[] = {
      {post + te + cl + "\r\n0\r\n\r\n" + smuggled, "400 malformed_request"},
      {post + cl + te + "\r\n0\r\n\r\n" + smuggled, "400 malformed_request"},
      {post + cl + "Content-Length: 5\r\n\r\nbody" + smuggled, "400 malformed_request"},
      {post + te + te + "\r\n0\r\n\r\n" + smuggled, "400 malformed_request"},
      {"POST /v1/completions HTTP/1.0\r\nHost: a\r\n" + te + "\r\n0\r\n\r\n" + smuggled, "400 malformed_request"},
      {post + "Transfer-Encoding: gzip\r\n\r\n" + smuggled, "501 unsupported_transfer_encoding"},
  };
  for (const auto& [request, expected] : cases) {
    RawClient client(server.port());
    client.send(request);
    EXPECT_EQ(refusal(client.read_response()), expected) << request;
    EXPECT_TRUE(client.closed_by_server()) << "a second answer: " << request;
  }
}

TEST(ServeContract, DeepNestingIsRefusedWhereverItIs) {
  ServeProcess server(kCanary);
  const Witness witness(server);
  for (const int depth : {64, 3000, 100'000}) {
    const std::string lists = repeat("[", depth) + repeat("]", depth);
    const std::string objects = repeat("{\"a\":", depth) + "1" + repeat("}", depth);
    for (const std::string& deep : {lists, objects}) {
      for (const std::string& body :
           {"{\"prompt\":" + deep + "}", "{\"prompt\":\"a\",\"unknown\":" + deep + "}",
            "{\"messages\":[{\"role\":\"user\",\"content\":" + deep + "}]}",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"function\":{\"parameters\":" + deep +
                "}}]}",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":{\"k\":" + deep + "}}",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":\"json_schema\","
            "\"json_schema\":{\"schema\":" +
                deep + "}}}"}) {
        const std::string path =
            body.find("messages") == std::string::npos ? "/v1/completions" : "/v1/chat/completions";
        EXPECT_EQ(refusal(server.post(path, body)), "400 json_too_deep") << path << " " << depth;
      }
    }
  }
}

TEST(ServeContract, WhatIsNoUnicodeOrNoJsonIsRefusedAndNotEchoed) {
  ServeProcess server(kCanary);
  const Witness witness(server);
  const std::pair<std::string, std::string> cases[] = {
      {"{\"prompt\":\"hunter2\xff\"}", "400 invalid_unicode"},
      {"{\"prompt\":\"hunter2\xc0\xaf\"}", "400 invalid_unicode"},
      {"{\"prompt\":\"hunter2\xed\xa0\x80\"}", "400 invalid_unicode"},
      {R"({"prompt":"hunter2\ud800"})", "400 invalid_unicode"},
      {R"({"prompt":"hunter2\udc00\ud800"})", "400 invalid_unicode"},
      {R"({"prompt":"hunter2\u0000"})", "400 invalid_unicode"},
      {"{\"hunter2\xff\":1}", "400 invalid_unicode"},
      {"{\"prompt\":\"hunter2\"", "400 invalid_json"},
      {"{\"prompt\":\"hunter2\"} {}", "400 invalid_json"},
      {"{\"prompt\":\"hunter2\",\"prompt\":\"hunter2\"}", "400 invalid_json"},
      {"\xef\xbb\xbf{\"prompt\":\"hunter2\"}", "400 invalid_json"},
      {"[\"hunter2\"]", "400 invalid_json"},
  };
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/messages", "/generate", "/tokenize",
                           "/detokenize", "/apply-template", "/v1/messages/count_tokens", "/abort_request"}) {
    for (const auto& [body, expected] : cases) {
      const RawResponse response = server.post(path, body);
      EXPECT_EQ(refusal(response), expected) << path << " " << body;
      EXPECT_EQ(response.body.find("hunter2"), std::string::npos) << response.body;
    }
    EXPECT_EQ(refusal(server.post(path, "")), "400 invalid_json") << path;
  }
}

TEST(ServeContract, NumbersOutsideTheirRangesAreRefusedByEveryApi) {
  ServeProcess server(kCanary);
  const Witness witness(server);
  const auto ask = [&server](const std::string& path, const std::string& field) {
    if (path == "/generate") return server.post(path, R"({"text":"a","sampling_params":{)" + field + "}}");
    if (path == "/v1/completions") return server.post(path, R"({"prompt":"a",)" + field + "}");
    return server.post(path, R"({"messages":[{"role":"user","content":"a"}],)" + field + "}");
  };
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/generate"}) {
    const bool native = std::string(path) == "/generate";
    const std::string max = native ? "max_new_tokens" : "max_tokens";
    for (const std::string& field : {"\"" + max + "\":0",
                                     "\"" + max + "\":-5",
                                     "\"" + max + "\":1.5",
                                     "\"" + max + "\":1e30",
                                     std::string("\"temperature\":-1"),
                                     std::string("\"temperature\":1e999"),
                                     std::string("\"top_p\":0"),
                                     std::string("\"top_p\":1.01"),
                                     std::string("\"top_k\":-2"),
                                     std::string("\"min_p\":1"),
                                     std::string("\"repetition_penalty\":0"),
                                     std::string("\"presence_penalty\":-2.1"),
                                     std::string("\"frequency_penalty\":3"),
                                     std::string("\"n\":0"),
                                     std::string("\"n\":-1"),
                                     std::string("\"seed\":1180591620717411303424"),
                                     std::string("\"logit_bias\":{\"5\":101}"),
                                     std::string("\"logit_bias\":{\"99999\":1}"),
                                     std::string("\"stop_token_ids\":[99999]"),
                                     std::string("\"stop_token_ids\":[-1]")}) {
      EXPECT_EQ(refusal(ask(path, field)), "400 invalid_value") << path << " " << field;
    }
    EXPECT_EQ(refusal(ask(path, "\"temperature\":NaN")), "400 invalid_json") << path;
    EXPECT_EQ(refusal(ask(path, "\"temperature\":Infinity")), "400 invalid_json") << path;
    EXPECT_EQ(ask(path, "\"temperature\":1e-9,\"" + max + "\":3").status, 200) << path << ": tiny is greedy";
  }
}

TEST(ServeContract, HugeCountsAreRefusedBeforeAnyWorkForTheirItems) {
  ServeProcess server(kCanary);
  const Witness witness(server);
  const auto list = [](const std::string& item, int n) { return "[" + item + repeat("," + item, n - 1) + "]"; };
  std::string bias;
  for (int i = 0; i < 5000; ++i) bias += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  for (const std::string& field : {std::string("\"n\":16384"), std::string("\"logprobs\":100000"),
                                   std::string("\"best_of\":1000"), "\"stop\":" + list("\"x\"", 500'000),
                                   "\"stop_token_ids\":" + list("1", 100'000), "\"logit_bias\":{" + bias + "}"}) {
    EXPECT_EQ(refusal(server.post("/v1/completions", "{\"prompt\":\"a\"," + field + "}")), "400 too_many_items")
        << field.substr(0, 40);
  }
  const RawResponse prompts = server.post("/v1/completions", "{\"prompt\":" + list("\"a\"", 100'000) + "}");
  EXPECT_EQ(refusal(prompts), "400 too_many_items");
  EXPECT_EQ(param_of(prompts), "prompt");
  EXPECT_EQ(refusal(server.post("/v1/chat/completions",
                                R"({"messages":[{"role":"user","content":"a"}],"tools":)" + list("{}", 100'000) + "}")),
            "400 too_many_items");
  EXPECT_EQ(
      refusal(server.post("/v1/messages", R"({"max_tokens":5,"messages":[{"role":"user","content":"a"}],"tools":)" +
                                              list("{}", 100'000) + "}")),
      "400 too_many_items");
}

TEST(ServeContract, ARequestOfMoreCompletionsThanMayWaitIsNotToldToComeAgain) {
  ServeProcess server({"dummy:canary", "--max-queued-requests", "4"});
  const RawResponse response = server.post("/v1/completions", R"({"prompt":["a","b","c","d","e"],"max_tokens":1})");
  EXPECT_EQ(refusal(response), "400 too_many_items");
  EXPECT_FALSE(response.has("retry-after"));
  EXPECT_EQ(server.post("/v1/completions", R"({"prompt":["a","b","c","d"],"max_tokens":1})").status, 200);
}

TEST(ServeContract, WhatDoesNotFitTheContextOrThePoolIsRefusedWithBothCounts) {
  ServeProcess server({"dummy:canary,context=256", "--kv-tokens", "128", "--max-running-requests", "2"});
  const auto ask = [&](int prompt, const std::string& rest) {
    return server.post("/v1/completions",
                       R"({"prompt":")" + std::string(static_cast<size_t>(prompt), 'a') + "\"" + rest + "}");
  };
  const auto refused = [&](const RawResponse& response, const std::string& prompt, const std::string& other) {
    EXPECT_EQ(refusal(response), "400 context_length_exceeded");
    const std::string message(json_of(response).at("error").at("message").as_string());
    EXPECT_NE(message.find(prompt + " in the messages"), std::string::npos) << message;
    EXPECT_NE(message.find(other), std::string::npos) << message;
  };
  refused(ask(256, ""), "256", "maximum context length is 256");
  refused(ask(300, ",\"max_tokens\":1"), "300", "maximum context length is 256");
  refused(ask(10, ",\"max_tokens\":247"), "10", "maximum context length is 256");
  refused(ask(10, ",\"max_tokens\":2147483647"), "10", "maximum context length is 256");
  refused(ask(130, ""), "130", "128 tokens");
  refused(ask(100, ",\"max_tokens\":100"), "100", "128 tokens");
  // The edges: what just fits is served, and a default is cut to what is left.
  EXPECT_EQ(ask(100, ",\"max_tokens\":29").status, 200) << "the last token is never stored";
  EXPECT_EQ(json_of(ask(125, "")).at("usage").at("completion_tokens"), 3);
  EXPECT_EQ(refusal(ask(0, "")), "400 invalid_value") << "an empty prompt";
  EXPECT_EQ(refusal(server.post("/v1/completions", R"({"prompt":[]})")), "400 invalid_value");
  EXPECT_EQ(refusal(server.post("/v1/completions", R"({"max_tokens":1})")), "400 missing_field");
  EXPECT_EQ(json_of(ask(10, ",\"max_tokens\":2,\"n\":3")).at("choices").as_array().size(), 3u);
}

TEST(ServeContract, WhatWouldSilentlyChangeTheAnswerIsRefusedByEveryApi) {
  ServeProcess server(kCanary);
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],)";
  for (const char* field : {R"("grammar":"root ::= a")", R"("ebnf":"root ::= a")", R"("structural_tag":{"a":1})",
                            R"("t_max_predict_ms":5)", R"("n_predict":5)", R"("repeat_last_n":64)"}) {
    EXPECT_EQ(refusal(server.post("/v1/completions", R"({"prompt":"a",)" + std::string(field) + "}")),
              "400 unsupported_value")
        << field;
    EXPECT_EQ(refusal(server.post("/v1/chat/completions", chat + field + "}")), "400 unsupported_value") << field;
    EXPECT_EQ(refusal(server.post("/v1/messages", chat + R"("max_tokens":3,)" + field + "}")), "400 unsupported_value")
        << field;
    EXPECT_EQ(refusal(server.post("/generate", R"({"text":"a",)" + std::string(field) + "}")), "400 unsupported_value")
        << field;
    EXPECT_EQ(refusal(server.post("/generate", R"({"text":"a","sampling_params":{)" + std::string(field) + "}}")),
              "400 unsupported_value")
        << field;
  }
  EXPECT_EQ(refusal(server.post("/v1/completions", R"({"prompt":"a","max_new_tokens":5})")), "400 unsupported_value");
  EXPECT_EQ(refusal(server.post("/generate", R"({"text":"a","max_new_tokens":5})")), "400 unsupported_value")
      << "its place is sampling_params";
}

TEST(ServeContract, EveryRouteButLivenessNeedsTheWholeKey) {
  ServeProcess server({"dummy:canary,step_us=1000", "--api-key", "alpha-and-omega", "--admin-key", "root"});
  const Witness witness(server, "x-api-key: alpha-and-omega\r\n");
  const std::string generate = R"({"prompt":"a","max_tokens":1})";
  for (const char* wrong :
       {"", "x-api-key: alpha\r\n", "x-api-key: alpha-and-omegas\r\n", "x-api-key: ALPHA-AND-OMEGA\r\n",
        "Authorization: alpha-and-omega\r\n", "Authorization: Basic alpha-and-omega\r\n", "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n", "Authorization: Bearer wrong\r\nx-api-key: alpha-and-omega\r\n"}) {
    for (const char* path :
         {"/v1/models", "/metrics", "/server_info", "/model_info", "/load", "/tokenizer_info", "/version", "/props",
          "/health_generate", "/flush_cache", "/admin/policy", "/no/such/path"}) {
      const RawResponse response = server.get(path, wrong);
      EXPECT_EQ(refusal(response), "401 invalid_api_key") << path << " " << wrong;
      EXPECT_EQ(response.body.find("omega"), std::string::npos);
    }
    EXPECT_EQ(refusal(server.post("/v1/completions", generate, wrong)), "401 invalid_api_key") << wrong;
    EXPECT_EQ(server.get("/health", wrong).status, 200);
  }
  EXPECT_EQ(server.post("/v1/completions", generate, "Authorization: Bearer alpha-and-omega\r\n").status, 200);
  EXPECT_EQ(refusal(server.post("/admin/policy", R"({"policy":"topk"})", "x-api-key: alpha-and-omega\r\n")),
            "403 admin_key_required");
}

TEST(ServeContract, NamesThatLookLikePathsReachNoFile) {
  const TemporaryFolder folder;
  ServeProcess server(kCanary);
  const Witness witness(server);
  const std::string secret = folder / "secret";
  std::ofstream(secret) << "hunter2";
  for (const std::string& name : {secret, std::string("../../../../../../../../") + secret, std::string("/etc/passwd"),
                                  std::string("..\\\\..\\\\x"), std::string("%2e%2e%2f"), std::string(10'000, 'x'),
                                  std::string("a\\nb\\u001b[31m")}) {
    const RawResponse response = server.post("/v1/completions", R"({"prompt":"a","model":")" + name + "\"}");
    EXPECT_EQ(refusal(response), "404 model_not_found") << name.substr(0, 80);
    EXPECT_EQ(response.body.find("hunter2"), std::string::npos);
  }
  EXPECT_EQ(refusal(server.get("/v1/models/%2e%2e/%2e%2e/etc/passwd")), "404 model_not_found");
  EXPECT_EQ(refusal(server.get("/%2e%2e/%2e%2e/etc/passwd")), "404 route_not_found");
  EXPECT_EQ(refusal(server.get("//etc/passwd")), "404 route_not_found");
  EXPECT_EQ(refusal(server.post("/generate", R"({"text":"a","lora_path":")" + secret + "\"}")),
            "400 unsupported_value");
  EXPECT_EQ(refusal(server.post("/v1/completions", R"({"prompt":"a","routing":")" + secret + "\"}")),
            "400 invalid_value");
  const std::string written = folder / "dump";
  EXPECT_EQ(server.post("/start_expert_distribution_record", R"({"path":")" + written + "\"}").status, 200);
  EXPECT_EQ(server.post("/dump_expert_distribution_record", R"({"path":")" + written + "\"}").status, 200);
  EXPECT_FALSE(fs::exists(written)) << "a dump is an answer, never a file";
}

// Header lines of an answer never come from what a client says.
TEST(ServeContract, NothingAClientSendsBecomesAHeaderLine) {
  ServeProcess server(kCanary);
  for (const char* target : {"/x%0d%0aset-cookie:%20a=b", "/v1/models/x%0d%0aset-cookie:%20a=b"}) {
    const RawResponse response = server.get(target, "X-Request-Id: mine\r\n");
    EXPECT_EQ(response.status, 404);
    EXPECT_FALSE(response.has("set-cookie"));
    EXPECT_EQ(response.header("x-request-id").rfind("req-", 0), 0u) << "the id is always ours";
  }
  const RawResponse wish =
      server.post("/v1/completions", R"({"prompt":"a","max_tokens":1,"routing":"topk\r\nset-cookie: a=b"})");
  EXPECT_EQ(wish.status, 400);
  EXPECT_FALSE(wish.has("set-cookie"));
}

TEST(ServeContract, SigtermAtManyMomentsOfALoadTellsEveryStreamAndEndsWithCodeZero) {
  for (int moment = 0; moment < 6; ++moment) {
    SCOPED_TRACE(moment);
    ServeProcess server({"dummy:canary,step_us=2000", "--drain-timeout", "0", "--max-running-requests", "4"});
    std::vector<Ask> asks;
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < 6; ++i) {  // some end by themselves, two are queued at first
      asks.push_back({canary_prompt(i, 20), 10 + 40 * i, true, false, ""});
      clients.push_back(std::make_unique<RawClient>(server.port(), 120));
      clients.back()->send(asks.back().bytes());
    }
    for (auto& client : clients) EXPECT_EQ(client->read_head().status, 200);
    std::this_thread::sleep_for(std::chrono::milliseconds(25 * moment));
    server.signal(moment % 2 ? SIGTERM : SIGINT);
    for (size_t i = 0; i < asks.size(); ++i) {
      std::string text, last;
      while (const auto event = clients[i]->read_event()) {
        if (!event->data.empty()) last = event->data;
        if (event->data.empty() || last == "[DONE]" || last.find("\"error\"") != std::string::npos) continue;
        const json::value chunk = parse_json(last, "a chunk");
        text += std::string(chunk.at("choices").at(0).at("text").as_string());
      }
      const bool told = last.find("\"draining\"") != std::string::npos;
      EXPECT_TRUE(told || last == "[DONE]") << last;
      EXPECT_EQ(text, asks[i].text().substr(0, text.size()));
      EXPECT_TRUE(told || text == asks[i].text()) << text;
    }
    clients.clear();
    EXPECT_EQ(server.wait(), 0) << server.err();
  }
}

TEST(ServeContract, AFullDiskUnderTheResultsOfALoadEndsItWith74AndLeavesEarlierResults) {
  const TemporaryFolder folder;
  ServeProcess server({"dummy:canary"});
  const std::string load = "bench-serve http://127.0.0.1:" + std::to_string(server.port()) +
                           " --num-prompts 2 --random-input-len 4 --random-output-len 2 --output-file ";
  const std::string lines = folder / "lines.jsonl";
  EXPECT_EQ(carpool(load + lines).code, 0);
  const std::string before = slurp(lines);
  const std::string more = std::to_string(before.size() / 512);  // sh counts blocks of 512 bytes
  const std::string command = "trap '' XFSZ; ulimit -f " + more + "; exec " + carpool_binary() + " " + load + lines;
  const int status = std::system(("sh -c \"" + command + "\" >/dev/null 2>&1").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 74);
  EXPECT_EQ(slurp(lines), before);
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Outcome full = carpool(load + "/dev/full");
  EXPECT_EQ(full.code, 74) << full.err;
  EXPECT_NE(full.err.find("/dev/full"), std::string::npos) << full.err;
}

TEST(ServeContract, ALogThatCannotBeWrittenEndsNothing) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  // The address is known beforehand, since the log cannot say it.
  const int port = ServeProcess({"dummy:canary"}).port();
  std::vector<std::string> words = {carpool_binary(), "serve",  "dummy:canary",      "--log-level",
                                    "debug",          "--port", std::to_string(port)};
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::vector<char*> raw;
    for (std::string& word : words) raw.push_back(word.data());
    raw.push_back(nullptr);
    if (!std::freopen("/dev/full", "w", stderr)) ::_exit(127);
    ::execv(raw[0], raw.data());
    ::_exit(127);
  }
  int status = 0;
  for (int looks = 0; looks < 6000 && status != 200; ++looks) {
    try {
      status = RawClient(port).ask(request_text("GET", "/health")).status;
    } catch (const std::runtime_error&) {  // nobody listens yet
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  EXPECT_EQ(status, 200);
  for (int i = 0; i < 3 && status == 200; ++i) {
    RawClient client(port);
    EXPECT_EQ(client.ask(request_text("POST", "/v1/completions", R"({"prompt":"a","max_tokens":2})")).status, 200);
  }
  ::kill(pid, status == 200 ? SIGTERM : SIGKILL);
  int ended = 0;
  EXPECT_EQ(::waitpid(pid, &ended, 0), pid);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
}

}  // namespace
}  // namespace carpool::end_to_end
