// POST or PUT /generate: SGLang's own API, which its bench_serving drives. A stream's text is cumulative.
#include <fmt/format.h>

#include "server/fields.h"
#include "server/generation.h"

namespace carpool {
namespace {

constexpr size_t kMaxRid = 256;

Prompts read_input(const Fields& fields, int vocab) {
  const json::value* text = fields.find("text");
  const json::value* ids = fields.find("input_ids");
  if (!text && !ids) throw bad_request("missing_field", "text or input_ids is missing", "text");
  if (text && ids) throw invalid_value("input_ids", "text and input_ids exclude each other");
  return text ? read_texts(*text, "text") : read_id_lists(*ids, "input_ids", vocab);
}

// A name for every choice: as given, made from the one given, or from the id of the request.
std::vector<std::string> read_ids(const Fields& fields, const std::string& request_id, size_t prompts, int n) {
  std::vector<std::string> given;
  if (const json::value* rid = fields.find("rid"); rid && rid->is_array()) {
    for (const json::value& name : *fields.array("rid", kMaxPrompts)) {
      if (!name.is_string()) throw invalid_value("rid", "rid must be a string or a list of strings");
      given.emplace_back(name.get_string());
    }
    if (given.size() != prompts) throw invalid_value("rid", "rid must name every prompt");
  } else {
    given.assign(1, fields.string("rid").value_or(request_id));
  }
  for (const std::string& name : given) {
    if (name.empty() || name.size() > kMaxRid) {
      throw invalid_value("rid", fmt::format("a rid must have 1 to {} bytes", kMaxRid));
    }
  }
  std::vector<std::string> ids;
  for (size_t p = 0; p < prompts; ++p) {
    for (int i = 0; i < n; ++i) {
      std::string id = given.size() == prompts ? given[p] : fmt::format("{}_{}", given[0], p);
      ids.push_back(n == 1 ? id : fmt::format("{}_{}", id, i));
    }
  }
  return ids;
}

void read_logprobs(const Fields& fields, const Prompts& prompts, NativeOptions& options, Request& request) {
  options.return_logprob = fields.boolean_or("return_logprob", false);
  options.return_text = fields.boolean_or("return_text_in_logprobs", false);
  const int64_t top = fields.integer("top_logprobs_num", 0, INT32_MAX).value_or(0);
  const int64_t start = fields.integer("logprob_start_len", -1, INT32_MAX).value_or(-1);
  if (top > kMaxLogprobs) {
    throw bad_request("too_many_items", fmt::format("top_logprobs_num must be 0 to {}, got {}", kMaxLogprobs, top),
                      "top_logprobs_num");
  }
  if (!options.return_logprob) return;
  for (const Prompt& prompt : prompts.items) {
    if (start < static_cast<int64_t>(prompt.ids.size())) continue;
    throw invalid_value("logprob_start_len",
                        fmt::format("logprob_start_len is {}, the prompt has {} tokens", start, prompt.ids.size()));
  }
  options.top_logprobs = static_cast<int>(top);
  options.logprob_start = static_cast<int>(start);
  request.logprobs = options.top_logprobs;
  request.prompt_logprobs = start >= 0;
}

Job read_job(const Call& call, const Served& served) {
  const json::object body = read_body(call.exchange.request().body);
  const Fields fields(body);
  const json::value* params = fields.find("sampling_params");
  if (params && params->is_array()) {
    throw unsupported("sampling_params", "a list of sampling_params is not supported by this server");
  }
  const json::object none;
  const json::object& sampling = params ? Fields::of(*params, "sampling_params").raw() : none;
  Job job;
  job.generation = read_native(sampling, "sampling_params", body, served.config);
  call.service.check_model(job.generation.model);
  Prompts prompts = read_input(fields, served.config.vocab);
  check_choices(prompts.items.size(), job.generation.n);
  for (Prompt& prompt : prompts.items) encode(served.tokenizer, true, "text", prompt);
  NativeOptions options;
  read_logprobs(fields, prompts, options, job.generation.request);
  options.ids = read_ids(fields, call.exchange.request().request_id, prompts.items.size(), job.generation.n);
  options.list = prompts.list || job.generation.n > 1;
  job.id = call.exchange.request().request_id;
  job.names = options.ids;
  job.prompts = std::move(prompts.items);
  job.make_reply = [options](Reply::Setup setup) { return native_reply(std::move(setup), options); };
  return job;
}

}  // namespace

boost::asio::awaitable<void> post_generate(Call& call) {
  const Served& served = served_for_work(call);
  auto work = [&] { return read_job(call, served); };
  Job job = co_await call.service.offload(call.caller, work);
  co_await answer_job(call, job);
}

}  // namespace carpool
