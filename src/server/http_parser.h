// From the bytes of a connection to one request, or to the sentence that says what is wrong with them.
//
// Owns HttpLimits and RequestParser: a strict reader of RFC 9112 that is fed as bytes arrive. It is our own rather than
// Beast's because every byte that two readers may see differently is refused here (bare LF, folded lines, spaces before
// colons, two lengths, trailers that pose as headers), and because every limit has its own status. Knows no sockets and
// no time. Read next: http_session.cc, which feeds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http.h"

namespace carpool {

struct HttpLimits {
  size_t body = size_t{8} << 20;
  size_t header_line = 8 << 10, header_total = 32 << 10, header_count = 100, target = 8 << 10;
  size_t chunks = 65536;            // per body; and 64 bytes each on average after the first 100
  size_t bodies = size_t{1} << 30;  // of all requests together, while they arrive and are answered
  // A body must bring 1 KiB/s over any body_idle_s. Stalled: the client takes nothing of what is to be sent.
  double header_s = 10, body_idle_s = 30, write_stall_s = 30, keep_alive_s = 60;
  int connections = 2048;
  double give_way_s = 5;  // at the limit of connections the one that is idle for longest, and for so long, is closed
};

class RequestParser {
 public:
  explicit RequestParser(const HttpLimits& limits) : limits_(limits) {}

  // Takes bytes of one request from the front of `bytes` and returns how many; takes none behind its end. Where the
  // stream is cut changes nothing. Throws ApiError (400, 413, 414, 417, 431, 501, 505); the connection has then lost
  // its framing and the parser must not be fed again.
  size_t feed(std::string_view bytes);

  bool started() const { return started_; }  // a byte of the request line was taken
  bool in_body() const { return state_ > State::kFields && state_ != State::kComplete; }
  bool complete() const { return state_ == State::kComplete; }
  bool expects_continue() const { return expects_continue_; }
  bool keep_alive() const { return keep_alive_; }  // as the client wishes; known with the head
  bool http_1_0() const { return http_1_0_; }
  size_t body_bytes() const { return request_.body.size(); }

  // Without request_id and received. Headers are those of the head; trailers are checked and dropped.
  HttpRequest& request() { return request_; }

 private:
  enum class State { kRequestLine, kFields, kFixedBody, kChunkSize, kChunkData, kChunkEnd, kTrailers, kComplete };

  size_t take_line(std::string_view bytes);
  size_t take_data(std::string_view bytes);
  void check_line_length(size_t bytes) const;
  void on_line(std::string_view line);
  void on_request_line(std::string_view line);
  void on_target(std::string_view target);
  void on_field(std::string_view line);
  void on_head();
  void check_host() const;
  void find_body();
  void on_chunk_size(std::string_view line);

  const HttpLimits& limits_;
  State state_ = State::kRequestLine;
  bool started_ = false, http_1_0_ = false, keep_alive_ = true, expects_continue_ = false, skipped_empty_line_ = false;
  std::string line_;       // of the head or a chunk, as far as it is there
  std::string authority_;  // of a target in absolute form
  HttpRequest request_;
  size_t header_bytes_ = 0, header_lines_ = 0;
  uint64_t remaining_ = 0;              // of the body, or of the chunk
  size_t chunks_ = 0, late_bytes_ = 0;  // late: of chunks after the first 100
};

}  // namespace carpool
