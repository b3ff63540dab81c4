// GET /, /page.js, /page.css: the page for people who only have a browser. It holds nothing secret; what it shows it
// asks from /live and /v1/chat/completions, with the key that its user types.
#include "server/page/page.h"

#include <string>

#include "server/router.h"

namespace carpool {
namespace {

// Only files of this server, and only the three of them: text of a model can never become a program.
Response file(std::string_view body, const char* content_type) {
  Response response;
  response.body = body;
  response.content_type = content_type;
  response.headers = {{"content-security-policy",
                       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
                       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                      {"x-content-type-options", "nosniff"},
                      {"referrer-policy", "no-referrer"},
                      {"cache-control", "no-cache"}};
  return response;
}

}  // namespace

boost::asio::awaitable<void> get_page(Call& call) {
  Response response = file(page::kHtml, "text/html; charset=utf-8");
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> get_page_script(Call& call) {
  Response response = file(page::kScript, "text/javascript; charset=utf-8");
  co_await call.exchange.respond(std::move(response));
}

boost::asio::awaitable<void> get_page_style(Call& call) {
  Response response = file(page::kStyle, "text/css; charset=utf-8");
  co_await call.exchange.respond(std::move(response));
}

}  // namespace carpool
