// GET /load, /get_load, /v1/loads: how busy the server is, for those who choose between several. One rank, as vLLM and
// SGLang name things.
#include "model/kv_cache.h"
#include "server/endpoints/engine_access.h"
#include "server/router.h"

namespace carpool {
namespace {

json::value load_of(const LoopState& s, bool as_list) {
  const int used = s.kv_total_blocks - s.kv_free_blocks - s.kv_cached_blocks;
  json::object rank{{"dp_rank", 0},
                    {"num_reqs", s.running + s.waiting},
                    {"num_running_reqs", s.running},
                    {"num_waiting_reqs", s.waiting},
                    {"num_tokens", int64_t{used} * KvCache::kBlockTokens},
                    {"num_used_tokens", int64_t{used} * KvCache::kBlockTokens},
                    {"max_total_num_tokens", int64_t{s.kv_total_blocks} * KvCache::kBlockTokens},
                    {"token_usage", s.kv_total_blocks > 0 ? static_cast<double>(used) / s.kv_total_blocks : 0.0},
                    {"gen_throughput", s.tokens_per_second},
                    {"estimated_wait_s", s.estimated_wait}};
  json::array ranks;
  ranks.emplace_back(rank);
  if (as_list) return ranks;
  rank["server_load"] = s.running + s.waiting;
  rank["loads"] = std::move(ranks);
  return rank;
}

}  // namespace

boost::asio::awaitable<void> get_load(Call& call) {
  const bool as_list = call.exchange.request().path == "/get_load";
  Response response = json_response(load_of(loaded(call.service).loop->state(), as_list));
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
