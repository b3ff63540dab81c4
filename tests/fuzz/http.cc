// HTTP/1.1 framing: a stream of requests means the same wherever it is cut, and what is taken keeps every limit.
#include <memory>
#include <vector>

#include "fuzz.h"
#include "server/api_error.h"
#include "server/http_parser.h"

namespace carpool {
namespace {

HttpLimits small() {
  HttpLimits limits;
  limits.body = 300;
  limits.header_line = 120;
  limits.header_total = 400;
  limits.header_count = 8;
  limits.target = 60;
  limits.chunks = 20;
  return limits;
}

void check_request(const RequestParser& parser, HttpRequest& r, const HttpLimits& limits) {
  FUZZ_CHECK(parser.started() && !parser.in_body(), "complete");
  FUZZ_CHECK(r.body.size() <= limits.body && parser.body_bytes() == r.body.size(), "a body over its limit");
  FUZZ_CHECK(r.headers.size() <= limits.header_count, "more headers than may be");
  FUZZ_CHECK(r.path.size() + r.query.size() <= limits.target + limits.header_line, "a target over its limit");
  size_t total = 0;
  for (const auto& [name, value] : r.headers) {
    total += name.size() + value.size();
    FUZZ_CHECK(!name.empty() && name.size() + value.size() <= limits.header_line, name);
    for (const char c : name) FUZZ_CHECK(c > ' ' && c < 0x7f && c != ':' && !(c >= 'A' && c <= 'Z'), name);
    for (const char c : value) FUZZ_CHECK((c >= ' ' || c == '\t' || c < 0) && c != 0x7f, "a control character");
  }
  FUZZ_CHECK(total <= limits.header_total, "a head over its limit");
  for (const char c : r.method) FUZZ_CHECK(c > ' ' && c < 0x7f, "a method");
  FUZZ_CHECK(r.path.find('\0') == std::string::npos, "NUL in a path");
  const std::string_view length = r.header("content-length");
  if (!length.empty())
    FUZZ_CHECK(length == std::to_string(r.body.size()) || length.starts_with('0'), "length and body");
}

// One line per request, and the error that ends the stream.
std::string outcome(std::string_view stream, const std::vector<size_t>& ends, const HttpLimits& limits) {
  auto parser = std::make_unique<RequestParser>(limits);
  std::string result, pending;
  size_t at = 0;
  try {
    for (const size_t end : ends) {
      pending.append(stream.substr(at, end - at));
      at = end;
      while (!pending.empty()) {
        const size_t taken = parser->feed(pending);
        FUZZ_CHECK(taken <= pending.size(), "took more than there is");
        pending.erase(0, taken);
        if (!parser->complete()) {
          FUZZ_CHECK(pending.empty(), "left bytes of an unfinished request");
          break;
        }
        HttpRequest& r = parser->request();
        check_request(*parser, r, limits);
        result += r.method + " " + r.path + " " + r.query + " " + r.body;
        for (const auto& [name, value] : r.headers) result.append(" ").append(name).append("=").append(value);
        result += std::string(parser->keep_alive() ? "" : " closes") + (parser->http_1_0() ? " 1.0" : "") +
                  (parser->expects_continue() ? " expects" : "") + "\n";
        parser = std::make_unique<RequestParser>(limits);
      }
    }
  } catch (const ApiError& error) {
    const int s = error.status();
    FUZZ_CHECK(s == 400 || s == 413 || s == 414 || s == 417 || s == 431 || s == 501 || s == 505, std::to_string(s));
    // Which of its limits a head breaks first depends on where it is cut; that it is refused does not.
    return result + std::to_string(s) + " " + error.code() + (s == 431 ? "" : std::string(" ") + error.what());
  }
  return result + (parser->started() ? "unfinished" : "");
}

}  // namespace
}  // namespace carpool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace carpool;
  fuzz::Bytes bytes(data, size);
  const HttpLimits limits = bytes.byte() % 2 == 0 ? small() : HttpLimits();
  std::vector<size_t> random, every;
  const unsigned step = 1 + bytes.byte();
  const std::string_view stream = bytes.rest();
  for (size_t i = step; i < stream.size(); i += 1 + (i * 7 + step) % 41) random.push_back(i);
  for (size_t i = 1; i < stream.size() && i < 8192; ++i) every.push_back(i);
  random.push_back(stream.size());
  every.push_back(stream.size());
  const std::string whole = outcome(stream, {stream.size()}, limits);
  const std::string byte_by_byte = outcome(stream, every, limits), cut = outcome(stream, random, limits);
  FUZZ_CHECK(byte_by_byte == whole, "whole:\n" + whole + "\nbyte by byte:\n" + byte_by_byte);
  FUZZ_CHECK(cut == whole, "whole:\n" + whole + "\ncut:\n" + cut);
  return 0;
}
