// A state machine over lines and counted data. Read first: http_parser.h.
#include "server/http_parser.h"

#include <algorithm>
#include <optional>

#include "server/api_error.h"

namespace carpool {
namespace {

constexpr size_t kMaxMethod = 32, kMaxChunkLine = 256, kMaxClientId = 128;
constexpr size_t kFreeChunks = 100, kMeanChunk = 64;

ApiError malformed(const char* what) { return bad_request("malformed_request", what); }

ApiError refused(int status, const char* code, const char* what) {
  return ApiError(status, "invalid_request_error", code, what);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
// "tchar" of RFC 9110
bool is_token(char c) {
  return is_digit(c) || is_alpha(c) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return is_token(c); });
}
bool is_visible(char c) { return c > 0x20 && c < 0x7f; }
// What may stand in a field value: visible characters, blanks and bytes above ASCII.
bool is_text(char c) { return is_visible(c) || c == ' ' || c == '\t' || static_cast<unsigned char>(c) >= 0x80; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Whether the comma-separated list holds `item`; case does not count.
bool lists(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (lower(trim(list.substr(0, comma))) == item) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// Decodes %xx once; nothing when an escape is broken or stands for NUL.
std::optional<std::string> percent_decoded(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_value(text[i + 1]), low = hex_value(text[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return std::nullopt;
    result += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return result;
}

}  // namespace

size_t RequestParser::feed(std::string_view bytes) {
  size_t used = 0;
  while (used < bytes.size() && state_ != State::kComplete) {
    const std::string_view rest = bytes.substr(used);
    used += state_ == State::kFixedBody || state_ == State::kChunkData ? take_data(rest) : take_line(rest);
  }
  return used;
}

size_t RequestParser::take_line(std::string_view bytes) {
  if (state_ == State::kRequestLine && line_.empty()) {
    // What cannot begin a request (a TLS greeting, say) is refused at once rather than at the end of its line.
    if (!is_token(bytes[0]) && bytes[0] != '\r') throw malformed("this is not HTTP: a request begins with a method");
    started_ = started_ || bytes[0] != '\r';
  }
  const size_t newline = bytes.find('\n');
  const bool whole = newline != std::string_view::npos;
  const size_t taken = whole ? newline + 1 : bytes.size();
  line_.append(bytes.substr(0, taken));
  std::string_view line = line_;
  if (whole) line.remove_suffix(1);
  const bool ends_well = !line.empty() && line.back() == '\r';
  // The carriage return at the very end may be the line's end, so it does not count.
  check_line_length(line.size() - (ends_well ? 1 : 0));
  if (!whole) return taken;
  if (!ends_well) throw malformed("lines end with CR LF");
  line.remove_suffix(1);
  const std::string complete(line);
  line_.clear();
  on_line(complete);
  return taken;
}

void RequestParser::check_line_length(size_t bytes) const {
  switch (state_) {
    case State::kRequestLine:
      if (bytes > limits_.target + kMaxMethod + sizeof " HTTP/1.1")
        throw refused(414, "uri_too_long", "the request line is too long");
      return;
    case State::kFields:
    case State::kTrailers:
      if (bytes > limits_.header_line) throw refused(431, "headers_too_large", "a header line is too long");
      if (header_bytes_ + bytes > limits_.header_total)
        throw refused(431, "headers_too_large", "the headers are too large");
      return;
    case State::kChunkSize:
      if (bytes > kMaxChunkLine) throw malformed("the line with a chunk's size is too long");
      return;
    default:
      if (bytes > 0) throw malformed("a chunk is longer than its size says");
  }
}

void RequestParser::on_line(std::string_view line) {
  switch (state_) {
    case State::kRequestLine:
      if (!line.empty()) return on_request_line(line);
      // Some old clients send an empty line behind a body (RFC 9112, 2.2).
      if (skipped_empty_line_) throw malformed("the request line is empty");
      skipped_empty_line_ = true;
      return;
    case State::kFields:
    case State::kTrailers:
      if (!line.empty()) return on_field(line);
      if (state_ == State::kFields) return on_head();
      state_ = State::kComplete;
      return;
    case State::kChunkSize:
      return on_chunk_size(line);
    default:  // kChunkEnd; check_line_length saw that it is empty
      state_ = State::kChunkSize;
  }
}

void RequestParser::on_request_line(std::string_view line) {
  const size_t first = line.find(' ');
  const size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos || line.find(' ', second + 1) != std::string_view::npos)
    throw malformed("the request line is not: method, target, version");
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, second - first - 1),
                         version = line.substr(second + 1);
  if (!is_token(method) || method.size() > kMaxMethod) throw malformed("the method is no token");
  if (target.size() > limits_.target) throw refused(414, "uri_too_long", "the request target is too long");
  const bool versioned = version.size() == 8 && version.substr(0, 5) == "HTTP/" && is_digit(version[5]) &&
                         version[6] == '.' && is_digit(version[7]);
  if (!versioned) throw malformed("the request line does not end with an HTTP version");
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    throw refused(505, "http_version_not_supported", "this server speaks HTTP/1.1");
  http_1_0_ = version == "HTTP/1.0";
  keep_alive_ = !http_1_0_;
  request_.method = method;
  on_target(target);
  state_ = State::kFields;
}

void RequestParser::on_target(std::string_view target) {
  if (target.empty() || !std::all_of(target.begin(), target.end(), is_visible) ||
      target.find('#') != std::string_view::npos)
    throw malformed("the request target holds characters that must be escaped");
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (lower(target.substr(0, scheme.size())) != scheme) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    authority_ = lower(target.substr(0, end));
    if (authority_.empty()) throw malformed("the request target has no host");
    target.remove_prefix(end);
    if (target.empty()) target = "/";
    break;
  }
  if (target[0] != '/' && target[0] != '?' && !(target == "*" && request_.method == "OPTIONS"))
    throw malformed("the request target is no path");
  const size_t question = std::min(target.find('?'), target.size());
  std::optional<std::string> path = percent_decoded(target.substr(0, question));
  if (!path) throw malformed("the request target has a broken percent escape");
  request_.path = path->empty() ? "/" : *path;
  if (question < target.size()) request_.query = target.substr(question + 1);
}

void RequestParser::on_field(std::string_view line) {
  header_bytes_ += line.size();
  if (++header_lines_ > limits_.header_count) throw refused(431, "headers_too_large", "there are too many headers");
  if (line[0] == ' ' || line[0] == '\t') throw malformed("header lines cannot be folded");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) throw malformed("a header line has no colon");
  if (!is_token(line.substr(0, colon))) throw malformed("a header's name is no token");
  const std::string_view value = trim(line.substr(colon + 1));
  if (!std::all_of(value.begin(), value.end(), is_text)) throw malformed("a header's value holds a control character");
  if (state_ == State::kFields) request_.headers.emplace_back(lower(line.substr(0, colon)), value);
}

void RequestParser::on_head() {
  check_host();
  for (const auto& [name, value] : request_.headers) {
    if (name == "connection" && lists(value, "close")) keep_alive_ = false;
    if (name == "x-request-id" && request_.client_id.empty() && value.size() <= kMaxClientId &&
        std::all_of(value.begin(), value.end(), is_visible))
      request_.client_id = value;
    if (name != "expect") continue;
    if (lower(value) != "100-continue") throw refused(417, "expectation_failed", "only 100-continue can be expected");
    expects_continue_ = !http_1_0_;
  }
  find_body();
}

void RequestParser::check_host() const {
  const std::string* host = nullptr;
  for (const auto& [name, value] : request_.headers) {
    if (name != "host") continue;
    if (host) throw malformed("there are two Host headers");
    host = &value;
  }
  if (!host) {
    if (!http_1_0_) throw malformed("there is no Host header");
    return;
  }
  const auto may_stand = [](char c) {
    return is_digit(c) || is_alpha(c) || std::string_view(".-_:[]").find(c) != std::string_view::npos;
  };
  if (host->empty() || !std::all_of(host->begin(), host->end(), may_stand))
    throw malformed("the Host header names no host");
  if (!authority_.empty() && authority_ != lower(*host)) throw malformed("Host and the request target disagree");
}

// Which framing the body has. Whatever could be understood in two ways is refused (RFC 9112, 6.3 and 11.2).
void RequestParser::find_body() {
  const std::string *length = nullptr, *encoding = nullptr;
  for (const auto& [name, value] : request_.headers) {
    const std::string** const which = name == "content-length"      ? &length
                                      : name == "transfer-encoding" ? &encoding
                                                                    : nullptr;
    if (!which) continue;
    if (*which) throw malformed("Content-Length or Transfer-Encoding is there twice");
    *which = &value;
  }
  if (length && encoding) throw malformed("both Content-Length and Transfer-Encoding are there");
  if (encoding) {
    if (http_1_0_) throw malformed("HTTP/1.0 has no Transfer-Encoding");
    if (lower(*encoding) != "chunked") {
      // "chunked" that is not alone and last is a trick; other codings are real but not understood.
      const size_t comma = encoding->rfind(',');
      if (comma != std::string::npos && lists(std::string_view(*encoding).substr(0, comma), "chunked"))
        throw malformed("chunked must be the last transfer encoding, and once");
      if (encoding->empty()) throw malformed("Transfer-Encoding is empty");
      throw refused(501, "unsupported_transfer_encoding", "chunked is the only transfer encoding understood");
    }
    state_ = State::kChunkSize;
    return;
  }
  if (length) {
    if (length->empty() || !std::all_of(length->begin(), length->end(), is_digit))
      throw malformed("Content-Length is no number");
    for (const char digit : *length) {
      remaining_ = remaining_ * 10 + static_cast<uint64_t>(digit - '0');
      if (remaining_ > limits_.body) throw refused(413, "body_too_large", "the body is too large");
    }
  }
  state_ = remaining_ > 0 ? State::kFixedBody : State::kComplete;
}

size_t RequestParser::take_data(std::string_view bytes) {
  const size_t taken = static_cast<size_t>(std::min<uint64_t>(bytes.size(), remaining_));
  request_.body.append(bytes.substr(0, taken));
  remaining_ -= taken;
  if (remaining_ == 0) state_ = state_ == State::kFixedBody ? State::kComplete : State::kChunkEnd;
  return taken;
}

void RequestParser::on_chunk_size(std::string_view line) {
  uint64_t size = 0;
  size_t digits = 0;
  for (; digits < line.size() && hex_value(line[digits]) >= 0; ++digits) {
    if (digits == 16) throw malformed("a chunk's size has too many digits");
    size = size * 16 + static_cast<uint64_t>(hex_value(line[digits]));
  }
  if (digits == 0) throw malformed("a chunk's size is no hexadecimal number");
  const std::string_view extension = line.substr(digits);
  if (!extension.empty() && (extension[0] != ';' || !std::all_of(extension.begin(), extension.end(), is_text)))
    throw malformed("a chunk's size is followed by something that is no extension");
  if (size == 0) {
    state_ = State::kTrailers;
    return;
  }
  if (size > limits_.body - request_.body.size()) throw refused(413, "body_too_large", "the body is too large");
  if (chunks_ == limits_.chunks) throw bad_request("too_many_chunks", "the body has too many chunks");
  if (chunks_ > kFreeChunks && late_bytes_ < (chunks_ - kFreeChunks) * kMeanChunk)
    throw bad_request("too_many_chunks", "the body has many chunks that are too small");
  if (++chunks_ > kFreeChunks) late_bytes_ += size;
  remaining_ = size;
  state_ = State::kChunkData;
}

}  // namespace carpool
