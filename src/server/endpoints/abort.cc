// POST /abort_request {"rid": ...} or {"abort_all": true}: ends requests of the caller's own key. Exact names, and once
// is as good as twice: what is unknown or has ended counts as aborted.
#include <string>

#include "server/api_error.h"
#include "server/fields.h"
#include "server/router.h"

namespace carpool {
namespace {

json::object answer_of(int aborted) { return {{"success", true}, {"aborted", aborted}}; }

}  // namespace

boost::asio::awaitable<void> post_abort_request(Call& call) {
  const json::object body = read_body(call.exchange.request().body);
  const Fields fields(body);
  const bool all = fields.boolean_or("abort_all", false);
  const std::string rid = fields.string("rid").value_or("");
  if (!all && rid.empty()) throw bad_request("missing_field", "rid must name a request, or abort_all be true", "rid");
  const int aborted = call.service.abort(call.caller, all ? "" : rid);
  Response response = json_response(answer_of(aborted));
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
