// POST /v1/chat/completions, and POST /apply-template, which shows the text that a chat becomes.
#include "server/chat.h"

#include "server/fields.h"
#include "server/generation.h"
#include "server/output_plan.h"

namespace carpool {
namespace {

Job read_job(const Call& call, const Served& served) {
  const json::object body = read_body(call.exchange.request().body);
  Job job;
  job.generation = read_chat(body, served.config);
  call.service.check_model(job.generation.model);
  const Fields fields(body);
  job.prompts.push_back(plan_output(served, read_chat_messages(body), &fields, job.generation));
  job.id = answer_id(call, "chatcmpl-");
  job.make_reply = chat_reply;
  return job;
}

}  // namespace

boost::asio::awaitable<void> post_chat_completions(Call& call) {
  const Served& served = served_for_work(call);
  auto work = [&] { return read_job(call, served); };
  Job job = co_await call.service.offload(call.caller, work);
  co_await answer_job(call, job);
}

boost::asio::awaitable<void> post_apply_template(Call& call) {
  const Served& served = call.service.served();
  auto work = [&] {
    const json::object body = read_body(call.exchange.request().body);
    return join(render(served.chat_template, served.tokenizer_config, read_chat_messages(body)));
  };
  json::object out;
  out["prompt"] = co_await call.service.offload(call.caller, work);
  Response response = json_response(out);
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
