// POST /v1/messages and /v1/messages/count_tokens: Anthropic's API.
#include "server/chat.h"
#include "server/fields.h"
#include "server/generation.h"
#include "server/output_plan.h"

namespace carpool {
namespace {

Job read_job(const Call& call, const Served& served) {
  const json::object body = read_body(call.exchange.request().body);
  Job job;
  job.generation = read_messages(body, served.config);
  call.service.check_model(job.generation.model);
  job.prompts.push_back(plan_output(served, read_anthropic_messages(body), nullptr, job.generation));
  job.id = answer_id(call, "msg_");
  job.make_reply = messages_reply;
  return job;
}

size_t count_tokens(const Call& call, const Served& served) {
  const json::object body = read_body(call.exchange.request().body);
  refuse_message_extras(body);
  call.service.check_model(Fields(body).string("model"));
  Generation unused;
  return plan_output(served, read_anthropic_messages(body), nullptr, unused).ids.size();
}

}  // namespace

boost::asio::awaitable<void> post_messages(Call& call) {
  const Served& served = served_for_work(call);
  auto work = [&] { return read_job(call, served); };
  Job job = co_await call.service.offload(call.caller, work);
  co_await answer_job(call, job);
}

boost::asio::awaitable<void> post_count_tokens(Call& call) {
  const Served& served = call.service.served();
  auto work = [&] { return count_tokens(call, served); };
  json::object out;
  out["input_tokens"] = co_await call.service.offload(call.caller, work);
  Response response = json_response(out);
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
