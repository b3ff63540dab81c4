// Raw requests and the status each must get, to a live server and to the parser cut into pieces in every way.
// Catalogue: H1, H2, H4 to H8 of the reliability reference. Time limits and clients that leave: http_server_test.cc.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/api_error.h"
#include "server/http_client_test_util.h"
#include "server/http_server.h"

namespace carpool {
namespace {

HttpLimits small_limits() {
  HttpLimits limits;
  limits.body = 20000;
  limits.chunks = 300;
  return limits;
}

std::string repeat(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

// POST with these header lines (besides Host) and this body.
std::string post(const std::string& headers, const std::string& body = "") {
  return "POST /x HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n" + body;
}
std::string get(const std::string& headers) { return "GET /x HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n"; }
std::string chunked(const std::string& chunks) { return post("Transfer-Encoding: chunked\r\n", chunks); }

struct Case {
  std::string name;
  std::string request;
  int status;
  std::string code = "malformed_request";
};

std::vector<Case> bad_lines() {
  using namespace std::string_literals;
  return {
      {"a TLS greeting", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"s, 400},
      {"a bare line feed", "\n", 400},
      {"two empty lines", "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a request line that ends with LF", "GET / HTTP/1.1\nHost: a\r\n\r\n", 400},
      {"HTTP/0.9", "GET /\r\n", 400},
      {"two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a space at the end", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400},
      {"a space at the beginning", " GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a tab between", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a method that is no token", "G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a method without end", repeat("G", 40) + " / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"lower-case http", "GET / http/1.1\r\nHost: a\r\n\r\n", 400},
      {"HTTP without number", "GET / HTTP/x.y\r\nHost: a\r\n\r\n", 400},
      {"HTTP/1.10", "GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400},
      {"HTTP/3.0", "GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505, "http_version_not_supported"},
      {"HTTP/2.0 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_version_not_supported"},
      {"HTTP/0.9 by number", "GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505, "http_version_not_supported"},
      {"NUL in the target", "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n"s, 400},
      {"a byte above ASCII in the target", "GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a carriage return in the target", "GET /\r HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a fragment", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a broken escape", "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"half an escape", "GET /%2 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"an escaped NUL", "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a target that is no path", "GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"CONNECT", "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 400},
      {"* with GET", "GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a target whose host is another", "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a target without host", "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a target over the limit", "GET /" + repeat("a", 8192) + " HTTP/1.1\r\nHost: a\r\n\r\n", 414, "uri_too_long"},
      {"a request line without end", "GET /" + repeat("a", 20000), 414, "uri_too_long"},
  };
}

std::vector<Case> bad_headers() {
  using namespace std::string_literals;
  std::string many;
  for (int i = 0; i < 10000; ++i) many += "h" + std::to_string(i) + ": 1\r\n";
  const std::string total = "x: " + repeat("a", 8000) + "\r\n";
  return {
      {"no Host", "GET / HTTP/1.1\r\nAccept: */*\r\n\r\n", 400},
      {"two Hosts", get("Host: a\r\n"), 400},
      {"an empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
      {"a Host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"a Host with a user", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400},
      {"two Hosts in one", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400},
      {"two Hosts with HTTP/1.0", "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400},
      {"a folded line", get("x: a\r\n b\r\n"), 400},
      {"a folded first line", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
      {"a space before the colon", get("x : a\r\n"), 400},
      {"a header that ends with LF", get("x: a\n"), 400},
      {"a head that ends with LF", "GET / HTTP/1.1\r\nHost: a\r\n\n", 400},
      {"a header without colon", get("xyz\r\n"), 400},
      {"a header without name", get(": a\r\n"), 400},
      {"a name with a bracket", get("x[: a\r\n"), 400},
      {"a name above ASCII", get("\xc3\xa4: a\r\n"), 400},
      {"NUL in a value", get("x: a\0b\r\n"s), 400},
      {"NUL in a name", get("x\0: ab\r\n"s), 400},
      {"a carriage return in a value", get("x: a\rb\r\n"), 400},
      {"DEL in a value", get("x: a\x7f\r\n"), 400},
      {"an expectation", post("Expect: cookies\r\nContent-Length: 2\r\n", "{}"), 417, "expectation_failed"},
      {"a header line over the limit", get("x: " + repeat("a", 8200) + "\r\n"), 431, "headers_too_large"},
      {"a header line without end", "GET / HTTP/1.1\r\nx: " + repeat("a", 30000), 431, "headers_too_large"},
      {"ten thousand headers", get(many), 431, "headers_too_large"},
      {"headers over the total", get(repeat(total, 5)), 431, "headers_too_large"},
  };
}

std::vector<Case> bad_bodies() {
  using namespace std::string_literals;
  const std::string te = "Transfer-Encoding: chunked\r\n", cl = "Content-Length: 5\r\n";
  const std::string kib = "400\r\n" + repeat("x", 1024) + "\r\n";
  const char* const unknown = "unsupported_transfer_encoding";
  return {
      {"TE and CL", post(te + cl, "0\r\n\r\n"), 400},
      {"CL and TE", post(cl + te, "0\r\n\r\n"), 400},
      {"two CL that differ", post(cl + "Content-Length: 6\r\n", "hello!"), 400},
      {"two CL that agree", post(cl + cl, "hello"), 400},
      {"two CL in one", post("Content-Length: 5, 5\r\n", "hello"), 400},
      {"an empty CL", post("Content-Length:\r\n"), 400},
      {"a signed CL", post("Content-Length: +5\r\n", "hello"), 400},
      {"a negative CL", post("Content-Length: -5\r\n", "hello"), 400},
      {"a hexadecimal CL", post("Content-Length: 0x5\r\n", "hello"), 400},
      {"a CL with a space", post("Content-Length: 1 2\r\n", "hello"), 400},
      {"TE twice", post(te + te, "0\r\n\r\n"), 400},
      {"chunked twice", post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 400},
      {"chunked not last", post("Transfer-Encoding: chunked, gzip\r\n", "0\r\n\r\n"), 400},
      {"an empty TE", post("Transfer-Encoding:\r\n"), 400},
      {"TE with HTTP/1.0", "POST / HTTP/1.0\r\nHost: a\r\n" + te + "\r\n0\r\n\r\n", 400},
      {"identity", post("Transfer-Encoding: identity\r\n"), 501, unknown},
      {"gzip and chunked", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501, unknown},
      {"nearly chunked", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), 501, unknown},
      {"quoted chunked", post("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"), 501, unknown},
      {"a length over the limit", post("Content-Length: 20001\r\n"), 413, "body_too_large"},
      {"a length that overflows", post("Content-Length: 99999999999999999999999\r\n"), 413, "body_too_large"},
      {"chunks over the limit", chunked(repeat(kib, 20)), 413, "body_too_large"},
      {"a chunk over the limit", chunked("fffffffffffffff\r\n"), 413, "body_too_large"},
      {"a chunk of 2^64", chunked("10000000000000000\r\n"), 400},
      {"a chunk of 2^64 - 1", chunked("ffffffffffffffff\r\n"), 413, "body_too_large"},
      {"a signed chunk", chunked("-5\r\nhello\r\n0\r\n\r\n"), 400},
      {"a chunk with plus", chunked("+5\r\nhello\r\n0\r\n\r\n"), 400},
      {"a chunk with 0x", chunked("0x5\r\nhello\r\n0\r\n\r\n"), 400},
      {"a chunk without size", chunked("\r\nhello\r\n0\r\n\r\n"), 400},
      {"a space behind a size", chunked("5 \r\nhello\r\n0\r\n\r\n"), 400},
      {"a size that ends with LF", chunked("5\nhello\r\n0\r\n\r\n"), 400},
      {"a chunk that ends with LF", chunked("5\r\nhello\n0\r\n\r\n"), 400},
      {"a chunk that runs away", chunked("5\r\nhello!\r\n0\r\n\r\n"), 400},
      {"a chunk with no end", chunked("5\r\nhello5\r\nhello\r\n0\r\n\r\n"), 400},
      {"NUL in an extension", chunked("5;\0\r\nhello\r\n0\r\n\r\n"s), 400},
      {"a long extension", chunked("5;" + repeat("x", 300) + "\r\nhello\r\n0\r\n\r\n"), 400},
      {"a folded trailer", chunked("0\r\nx: 1\r\n 2\r\n\r\n"), 400},
      {"a trailer without colon", chunked("0\r\nx\r\n\r\n"), 400},
      {"a trailer over the limit", chunked("0\r\nx: " + repeat("a", 9000)), 431, "headers_too_large"},
      {"too many trailers", chunked("0\r\n" + repeat("x: 1\r\n", 100)), 431, "headers_too_large"},
      {"many small chunks", chunked(repeat("1\r\nx\r\n", 150)), 400, "too_many_chunks"},
      {"too many chunks", chunked(repeat("40\r\n" + repeat("x", 64) + "\r\n", 301)), 400, "too_many_chunks"},
  };
}

std::vector<Case> all_bad() {
  std::vector<Case> all = bad_lines();
  for (const auto& more : {bad_headers(), bad_bodies()}) all.insert(all.end(), more.begin(), more.end());
  return all;
}

asio::awaitable<void> echo(Exchange& exchange) {
  Response response;
  const HttpRequest& request = exchange.request();
  response.body = request.method + "|" + request.path + "|" + request.query + "|" + request.body;
  co_await exchange.respond(response);
}

void expect_one_refusal(RawClient& client, int status, const std::string& code) {
  const RawResponse response = client.read_response();
  EXPECT_EQ(response.status, status);
  EXPECT_EQ(response.header("content-type"), "application/json");
  EXPECT_EQ(response.header("connection"), "close");
  EXPECT_FALSE(response.header("x-request-id").empty());
  const json::value body = parse_json(response.body, "response");
  const json::object& error = body.as_object().at("error").as_object();
  EXPECT_EQ(error.size(), 4u);
  EXPECT_EQ(error.at("type").as_string(), "invalid_request_error");
  EXPECT_EQ(error.at("code").as_string(), code);
  EXPECT_TRUE(error.at("param").is_null());
  EXPECT_FALSE(error.at("message").as_string().empty());
  client.half_close();
  EXPECT_TRUE(client.closed_by_server());
}

TEST(HttpFraming, EveryMalformedRequestGetsItsStatusAndTheServerGoesOn) {
  HttpOptions options;
  options.port = 0;
  options.limits = small_limits();
  std::atomic<int> refusals{0};
  HttpObserver observer;
  observer.refused = [&](int, const char*) { ++refusals; };
  HttpServer server(options, echo, observer);
  server.start();
  const std::vector<Case> cases = all_bad();
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    RawClient client(server.port());
    client.try_send(c.request);
    expect_one_refusal(client, c.status, c.code);
    RawClient other(server.port());
    EXPECT_EQ(other.ask(request_text("GET", "/alive")).status, 200);
  }
  EXPECT_EQ(refusals, static_cast<int>(cases.size()));
}

TEST(HttpFraming, AnswersPipelinedRequestsInOrderUpToTheFirstError) {
  HttpOptions options;
  options.port = 0;
  options.limits = small_limits();
  HttpServer server(options, echo);
  server.start();
  for (const Case& c : all_bad()) {
    SCOPED_TRACE(c.name);
    RawClient client(server.port());
    client.try_send(request_text("GET", "/1") + request_text("POST", "/2", "{}") + c.request +
                    request_text("GET", "/4"));
    EXPECT_EQ(client.read_response().body, "GET|/1||");
    EXPECT_EQ(client.read_response().body, "POST|/2||{}");
    expect_one_refusal(client, c.status, c.code);
  }
}

// Requests that are right, and what the handler makes of them.
struct Good {
  std::string name, request, seen;
};
std::vector<Good> good() {
  return {
      {"a plain GET", "GET /a?b=c HTTP/1.1\r\nHost: a\r\n\r\n", "GET|/a|b=c|"},
      {"odd spelling", "GET / HTTP/1.1\r\nhOsT:a:80\t \r\nX-Empty:\r\n\r\n", "GET|/||"},
      {"an IPv6 host", "GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", "GET|/||"},
      {"an absolute target", "GET http://A:80/p?q HTTP/1.1\r\nHost: a:80\r\n\r\n", "GET|/p|q|"},
      {"an absolute target without path", "GET http://a?q HTTP/1.1\r\nHost: a\r\n\r\n", "GET|/|q|"},
      {"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS|*||"},
      {"escapes, once", "GET /%2e%2e/%2525?%41 HTTP/1.1\r\nHost: a\r\n\r\n", "GET|/../%25|%41|"},
      {"an empty line before", "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET|/||"},
      {"a length", post("Content-Length: 005\r\n", "hello"), "POST|/x||hello"},
      {"a length of nothing", post("Content-Length: 0\r\n"), "POST|/x||"},
      {"the longest body", post("Content-Length: 20000\r\n", repeat("x", 20000)), "POST|/x||" + repeat("x", 20000)},
      {"no chunks", chunked("0\r\n\r\n"), "POST|/x||"},
      {"chunks", chunked("5\r\nhello\r\n00A\r\n, world...\r\n0\r\n\r\n"), "POST|/x||hello, world..."},
      {"extensions and trailers", chunked("5;a=\"b\";c\r\nhello\r\n0;z\r\nHost: evil\r\nx: 1\r\n\r\n"),
       "POST|/x||hello"},
      {"Chunked", post("Transfer-Encoding: Chunked\r\n", "0\r\n\r\n"), "POST|/x||"},
      {"a hundred small chunks", chunked(repeat("1\r\nx\r\n", 100) + "0\r\n\r\n"), "POST|/x||" + repeat("x", 100)},
      {"a hundred headers", get(repeat("x: 1\r\n", 99)), "GET|/x||"},
      {"the longest header", get("x: " + repeat("a", 8189) + "\r\n"), "GET|/x||"},
      {"the longest target", "GET /" + repeat("a", 8191) + " HTTP/1.1\r\nHost: a\r\n\r\n",
       "GET|/" + repeat("a", 8191) + "||"},
      {"a body with GET", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", "GET|/||{}"},
  };
}

TEST(HttpFraming, AnswersWhatIsRightOnOneConnection) {
  HttpOptions options;
  options.port = 0;
  options.limits = small_limits();
  HttpServer server(options, echo);
  server.start();
  RawClient client(server.port());
  for (const Good& c : good()) EXPECT_EQ(client.ask(c.request).body, c.seen) << c.name;
  std::string all;
  for (const Good& c : good()) all += c.request;
  client.send(all);
  for (const Good& c : good()) EXPECT_EQ(client.read_response().body, c.seen) << c.name;
}

// What the parser makes of a stream that arrives in pieces that end at `cuts` (ascending): one line per request, and
// the error that ends it.
std::string outcome(std::string_view stream, const std::vector<size_t>& cuts) {
  const HttpLimits limits = small_limits();
  RequestParser parser(limits);
  std::string result, pending;
  size_t at = 0;
  std::vector<size_t> ends = cuts;
  ends.push_back(stream.size());
  try {
    for (const size_t end : ends) {
      pending.append(stream.substr(at, end - at));
      at = end;
      while (!pending.empty()) {
        pending.erase(0, parser.feed(pending));
        if (!parser.complete()) break;
        const HttpRequest& r = parser.request();
        result += r.method + " " + r.path + " " + r.query + " " + r.body;
        for (const auto& [name, value] : r.headers) result.append(" ").append(name).append("=").append(value);
        result += parser.keep_alive() ? "\n" : " closes\n";
        std::destroy_at(&parser);
        std::construct_at(&parser, limits);
      }
    }
  } catch (const ApiError& error) {
    return result + std::to_string(error.status()) + " " + error.code() + " " + error.what();
  }
  return result + (parser.started() ? "unfinished" : "");
}

std::vector<size_t> every_byte(size_t size) {
  std::vector<size_t> cuts;
  for (size_t i = 1; i < size; ++i) cuts.push_back(i);
  return cuts;
}

TEST(RequestParser, ReadsTheSameWhereverTheStreamIsCut) {
  const std::string pair = post("Content-Length: 5\r\nConnection: x, close\r\n", "hello") +
                           chunked("5;e\r\nhello\r\n1\r\n!\r\n0\r\nt: 1\r\n\r\n") + get("");
  const std::string whole = outcome(pair, {});
  EXPECT_EQ(whole,
            "POST /x  hello host=a content-length=5 connection=x, close closes\n"
            "POST /x  hello! host=a transfer-encoding=chunked\n"
            "GET /x   host=a\n");
  EXPECT_EQ(outcome(pair, every_byte(pair.size())), whole);
  for (size_t i = 1; i < pair.size(); ++i)
    for (size_t j = i; j < pair.size(); ++j) ASSERT_EQ(outcome(pair, {i, j}), whole) << i << " " << j;
}

TEST(RequestParser, RefusesTheSameWhereverTheStreamIsCut) {
  for (const Case& c : all_bad()) {
    const std::string whole = outcome(c.request, {});
    EXPECT_EQ(whole.substr(0, 4 + c.code.size()), std::to_string(c.status) + " " + c.code) << c.name;
    EXPECT_EQ(outcome(c.request, every_byte(c.request.size())), whole) << c.name;
    if (c.request.size() > 1000) continue;
    for (size_t i = 1; i < c.request.size(); ++i) ASSERT_EQ(outcome(c.request, {i}), whole) << c.name << " at " << i;
  }
}

TEST(RequestParser, ReadsDamagedStreamsTheSameWhereverTheyAreCut) {
  std::string valid;
  for (const Good& c : good())
    if (c.request.size() < 200) valid += c.request;
  const std::string_view likely("\r\n\0 \t:;,0aF-+/%#\x7f\xff", 19);
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string stream = valid;
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % stream.size();
      const char byte = likely[random() % likely.size()];
      const unsigned kind = random() % 3;
      if (kind == 0) stream[at] = byte;
      if (kind == 1) stream.insert(at, 1, byte);
      if (kind == 2) stream.erase(at, 1 + random() % 4);
    }
    const std::string whole = outcome(stream, {});
    ASSERT_EQ(outcome(stream, every_byte(stream.size())), whole) << round;
    const size_t cut = 1 + random() % (stream.size() - 1);
    ASSERT_EQ(outcome(stream, {cut}), whole) << round;
    if (whole.find("malformed_request") != std::string::npos) ++refused;
  }
  EXPECT_GT(refused, 1000);  // damage is noticed
}

}  // namespace
}  // namespace carpool
