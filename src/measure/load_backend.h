// The APIs a load test can speak: what is sent, and how a reply becomes a timeline.
//
// Owns EventSplitter (server-sent events from bytes in pieces of any size), LoadBackend, the bodies of requests and
// ReplyReader. Every time is passed in, so that definitions are tested on timelines made by hand. Knows no sockets.
// Read next: load_metrics.h, load_client.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "measure/load_dataset.h"
#include "measure/load_metrics.h"

namespace carpool {

// One server-sent event; comments are no events.
struct ServerEvent {
  std::string name, data;
};

// Takes a stream of bytes apart; line ends may be \n, \r\n or \r, and pieces may end anywhere.
class EventSplitter {
 public:
  // Appends the events that `bytes` completes. Error{kMalformed} when one event exceeds 64 MiB.
  void feed(std::string_view bytes, std::vector<ServerEvent>& out);

 private:
  void line(std::vector<ServerEvent>& out);

  std::string line_;
  ServerEvent event_;
  bool has_data_ = false, after_return_ = false;
};

enum class LoadBackend { kNative, kCompletions, kChat };  // /generate, /v1/completions, /v1/chat/completions

// "sglang", "openai", "openai-chat", and the other names SGLang's client gives them. Error{kUsage} listing them.
LoadBackend parse_backend(std::string_view name);

// One request, ready to be sent.
struct LoadRequest {
  std::string path, body;
  int prompt_tokens = 0;  // as the data set counts them
  int output_tokens = 0;  // asked for
};

// What all requests of a load share.
struct LoadSettings {
  LoadBackend backend = LoadBackend::kNative;
  std::string model;
  double temperature = 0, top_p = 1;
  bool ignore_eos = true, stream = true;
  uint64_t seed = 42;   // sent, with the request's number added, when temperature > 0
  std::string routing;  // the `routing` field; empty = not sent
  json::object extra;   // merged into the body last; objects merge into objects
};

// Request `index` of a load. Error{kConfig} for token ids on the chat API.
LoadRequest make_request(const LoadSettings& settings, const LoadPrompt& prompt, int index);

// Follows one reply and fills `outcome`, which must outlive it. `now` is in seconds since the request's start.
class ReplyReader {
 public:
  ReplyReader(LoadBackend backend, const LoadRequest& request, LoadOutcome& outcome);

  // An event of a stream. Throws Error{kMalformed} for what is not the API's JSON.
  void event(const ServerEvent& event, double now);
  // The body of a reply that is no stream: it has a latency, and no times within.
  void whole(std::string_view body, double now);
  // The reply ended as HTTP; decides about success: a stream needs its [DONE].
  void end();

 private:
  void native(const json::value& value, double now);
  void choice(const json::value& value, double now);
  void usage(const json::value& value);
  // Visible text came, which brings the number of tokens to `total` (native) or is one chunk (negative).
  void visible(double now, int64_t total);

  LoadBackend backend_;
  LoadOutcome& outcome_;
  double last_ = 0;         // time of the last visible chunk
  int64_t last_total_ = 0;  // tokens until then
  int chunks_ = 0;
  bool done_ = false, whole_ = false;
};

// Fills failure and message from a reply that is not 200: "HTTP 503 overloaded" from an error body of either shape.
void read_refusal(int status, std::string_view body, LoadOutcome& outcome);

}  // namespace carpool
