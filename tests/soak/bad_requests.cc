// Read first: bad_requests.h.
#include "soak/bad_requests.h"

#include <fmt/format.h>

#include "server/http_client_test_util.h"

namespace carpool::soak {
namespace {

std::string repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

struct BadBody {
  const char* name;
  const char* path;
  std::string body;
};

std::vector<BadBody> bad_json() {
  const char* const completions = "/v1/completions";
  const auto text = [](std::string_view prompt) {
    return fmt::format("{{\"prompt\":\"{}\",\"max_tokens\":4}}", prompt);
  };
  return {{"half an object", completions, "{\"prompt\":\"a\""},
          {"two values", completions, text("a") + text("b")},
          {"a byte order mark", completions, "\xef\xbb\xbf" + text("a")},
          {"the same key twice", completions, "{\"prompt\":\"a\",\"prompt\":\"b\"}"},
          {"no JSON", completions, "prompt=a&max_tokens=4"},
          {"a list", completions, "[1,2,3]"},
          {"a hundred thousand brackets", completions, "{\"prompt\":" + repeat("[", 100000)},
          {"deep brackets", "/v1/chat/completions", "{\"messages\":" + repeat("[", 200) + repeat("]", 200) + "}"},
          {"overlong UTF-8", completions, text("\xc0\xaf")},
          {"half a character", completions, text("\xe4\xbd")},
          {"a lone surrogate", completions, text("\\ud800")},
          {"NaN", completions, "{\"prompt\":\"a\",\"temperature\":NaN}"},
          {"Infinity", completions, "{\"prompt\":\"a\",\"temperature\":Infinity}"},
          {"a number that overflows", completions, "{\"prompt\":\"a\",\"temperature\":1e999}"}};
}

std::vector<BadBody> bad_values(const ModelFacts& facts) {
  const char* const completions = "/v1/completions";
  const auto with = [](const std::string& field) { return "{\"prompt\":\"a\"," + field + "}"; };
  std::string bias = "\"logit_bias\":{";
  for (int i = 0; i < 301; ++i) bias += fmt::format("{}\"{}\":1", i > 0 ? "," : "", i % 200 + 1000 * (i / 200));
  bias += "}";
  return {{"no prompt", completions, "{\"max_tokens\":4}"},
          {"an empty prompt", completions, "{\"prompt\":\"\"}"},
          {"an empty list", completions, "{\"prompt\":[]}"},
          {"a prompt that is a number", completions, "{\"prompt\":7}"},
          {"a token above the vocabulary", completions, fmt::format("{{\"prompt\":[{}]}}", facts.vocab)},
          {"a negative token", completions, "{\"prompt\":[-1]}"},
          {"a token of 2^40", completions, "{\"prompt\":[1099511627776]}"},
          {"0 tokens", completions, with("\"max_tokens\":0")},
          {"-5 tokens", completions, with("\"max_tokens\":-5")},
          {"tokens as text", completions, with("\"max_tokens\":\"many\"")},
          {"temperature -1", completions, with("\"temperature\":-1")},
          {"top_p 0", completions, with("\"top_p\":0")},
          {"top_p 1.5", completions, with("\"top_p\":1.5")},
          {"seed 2^70", completions, with("\"seed\":1180591620717411303424")},
          {"n 100000", completions, with("\"n\":100000")},
          {"n 0", completions, with("\"n\":0")},
          {"logprobs 1000", completions, with("\"logprobs\":1000")},
          {"five hundred stops", completions, with("\"stop\":[" + repeat("\"x\",", 499) + "\"x\"]")},
          {"a stop id outside", completions, with("\"stop_token_ids\":[999999999]")},
          {"three hundred and one biases", completions, with(bias)},
          {"stream that is a word", completions, with("\"stream\":\"yes\"")},
          {"an unknown policy", completions, with("\"routing\":\"oea:k0=banana\"")},
          {"a grammar", completions, with("\"grammar\":\"root ::= x\"")},
          {"no messages", "/v1/chat/completions", "{\"messages\":[]}"},
          {"null content", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":null}]}"},
          {"an unknown role", "/v1/chat/completions", "{\"messages\":[{\"role\":\"king\",\"content\":\"a\"}]}"},
          {"an image", "/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]}"},
          {"a template in the request", "/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template\":\"{{ x }}\"}"},
          {"no max_tokens", "/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"},
          {"text and ids", "/generate", "{\"text\":\"a\",\"input_ids\":[5]}"},
          {"an unknown sampling parameter", "/generate", "{\"text\":\"a\",\"sampling_params\":{\"luck\":1}}"},
          {"an abort of nothing", "/abort_request", "{}"}};
}

std::string post(const std::string& headers, const std::string& body = "") {
  return "POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + "\r\n" + body;
}

std::vector<BadRequest> bad_framing() {
  using namespace std::string_literals;
  const std::string te = "Transfer-Encoding: chunked\r\n", cl = "Content-Length: 5\r\n";
  return {{"a TLS greeting", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s, 400, true},
          {"a bare line feed", "GET / HTTP/1.1\nHost: a\r\n\r\n", 400, true},
          {"NUL in the target", "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n"s, 400, true},
          {"no Host", "GET /health HTTP/1.1\r\n\r\n", 400, true},
          {"two Hosts", "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n", 400, true},
          {"a folded line", "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nx: a\r\n b\r\n\r\n", 400, true},
          {"HTTP/3.0", "GET / HTTP/3.0\r\nHost: 127.0.0.1\r\n\r\n", 505, true},
          {"a target over the limit", "GET /" + repeat("a", 9000) + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 414, true},
          {"a header over the limit", post("x: " + repeat("a", 9000) + "\r\n"), 431, true},
          {"two hundred headers", post(repeat("x: a\r\n", 200)), 431, true},
          {"TE and CL", post(te + cl, "0\r\n\r\n"), 400, true},
          {"two CL", post(cl + "Content-Length: 6\r\n", "hello!"), 400, true},
          {"a signed CL", post("Content-Length: +5\r\n", "hello"), 400, true},
          {"TE with HTTP/1.0", "POST /generate HTTP/1.0\r\nHost: 127.0.0.1\r\n" + te + "\r\n0\r\n\r\n", 400, true},
          {"identity", post("Transfer-Encoding: identity\r\n"), 501, true},
          {"a body over the limit", post("Content-Length: 99999999999\r\n"), 413, true},
          {"a chunk of 2^64", post(te, "10000000000000000\r\n"), 400, true},
          {"a chunk without size", post(te, "\r\nhello\r\n0\r\n\r\n"), 400, true},
          {"small chunks", post(te, repeat("1\r\nx\r\n", 150)), 400, true},
          {"an expectation", post("Expect: cookies\r\nContent-Length: 2\r\n", "{}"), 417, true}};
}

}  // namespace

std::vector<BadRequest> bad_requests(const ModelFacts& facts) {
  std::vector<BadRequest> all = bad_framing();
  std::vector<BadBody> bodies = bad_json();
  for (BadBody& bad : bad_values(facts)) bodies.push_back(std::move(bad));
  for (const BadBody& bad : bodies) {
    all.push_back({bad.name, request_text("POST", bad.path, bad.body), 400, false});
  }
  all.push_back({"an empty body", post("Content-Length: 0\r\n"), 400, false});
  all.push_back({"an unknown path", request_text("POST", "/v1/nothing", "{}"), 404, false});
  all.push_back({"a wrong method", request_text("DELETE", "/v1/models"), 405, false});
  all.push_back({"an unknown model",
                 request_text("POST", "/v1/completions", "{\"model\":\"../../etc\",\"prompt\":\"a\"}"), 404, false});
  all.push_back(
      {"a page of another site", request_text("GET", "/health", "", "Origin: http://evil.example\r\n"), 403, false});
  return all;
}

}  // namespace carpool::soak
