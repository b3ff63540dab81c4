// POST /v1/completions: text or token ids, one prompt or many, echo and logprobs as evaluation harnesses ask for them.
#include "server/fields.h"
#include "server/generation.h"

namespace carpool {
namespace {

Job read_job(const Call& call, const Served& served) {
  const json::object body = read_body(call.exchange.request().body);
  Job job;
  job.generation = read_completion(body, served.config);
  call.service.check_model(job.generation.model);
  job.prompts = read_prompts(Fields(body).required("prompt"), "prompt", served.config.vocab).items;
  check_choices(job.prompts.size(), job.generation.n);
  for (Prompt& prompt : job.prompts) {
    encode(served.tokenizer, job.generation.add_special_tokens, "prompt", prompt);
  }
  job.id = answer_id(call, "cmpl-");
  job.make_reply = completion_reply;
  return job;
}

}  // namespace

boost::asio::awaitable<void> post_completions(Call& call) {
  const Served& served = served_for_work(call);
  auto work = [&] { return read_job(call, served); };
  Job job = co_await call.service.offload(call.caller, work);
  co_await answer_job(call, job);
}

}  // namespace carpool
