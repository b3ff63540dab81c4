// What every generating endpoint does once its request is read: submit, wait, answer.
//
// Owns Job and answer_job. A job's prompts times n become as many engine requests, which run at once; the client's
// leaving cancels them all, and so does any error. Pings fill the silence of a stream. Formats are in reply.h, waiting
// for one engine request in subscription.h.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/parameters.h"
#include "server/prompt.h"
#include "server/reply.h"
#include "server/router.h"

namespace carpool {

struct Job {
  Generation generation;
  std::vector<Prompt> prompts;  // encoded
  std::string id;               // of the answer; what POST /abort_request may name, as may `names`
  std::vector<std::string> names;
  std::function<std::unique_ptr<Reply>(Reply::Setup)> make_reply;
};

// The max_tokens of each prompt's answers: what was asked for, or the endpoint's default cut to what the context, the
// KV pool (fit_max_tokens) and the limit of log-probabilities leave, for an answer is made whole in memory. Throws
// too_many_items when more of those were asked for, or no length of at least min_tokens fits.
std::vector<int> fit_lengths(const Job& job, const RequestLimits& limits);

// Answers the call, or throws ApiError (also within a stream), or ClientGone. `job` must outlive the wait; its prompts
// are taken.
boost::asio::awaitable<void> answer_job(Call& call, Job& job);

// "cmpl-" and the id of the request, so that logs can be searched for it.
std::string answer_id(const Call& call, const char* prefix);

// The loaded model, for reading a request: throws as Service::served does, and when the queue has no room for the
// caller, before any work is done for him.
Served& served_for_work(Call& call);

}  // namespace carpool
