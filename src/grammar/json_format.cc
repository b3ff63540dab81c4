// See json_format.h. Each format is a regular expression; what it allows is less than what the standards allow, and
// never more.
#include "grammar/json_format.h"

#include <fmt/format.h>

#include <string>

#include "grammar/regex.h"

namespace carpool {
namespace {

// RFC 3339. Years 1000 to 2999; the leap day is left out.
const char* const kDate =
    "[12][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)";
const char* const kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const char* const kHost = "[a-z0-9](?:[a-z0-9-]{0,40}[a-z0-9])?(?:\\.[a-z0-9](?:[a-z0-9-]{0,40}[a-z0-9])?){0,3}";

std::string expression(std::string_view format) {
  if (format == "date") return kDate;
  if (format == "time") return kTime;
  if (format == "date-time") return fmt::format("{}T{}", kDate, kTime);
  if (format == "uuid") return "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
  if (format == "ipv4") {
    return "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  }
  if (format == "email") {
    return "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,2}@[a-z0-9](?:[a-z0-9-]{0,40}[a-z0-9])?(?:\\.[a-z]{2,10})"
           "{1,2}";
  }
  if (format == "hostname") return kHost;
  if (format == "uri")
    return fmt::format("https?://{}(?::[1-9][0-9]{{1,3}})?(?:/[A-Za-z0-9._~/?=&+-]{{0,128}})?", kHost);
  if (format == "duration") {
    const char* const time = "T(?:[0-9]{1,3}H(?:[0-9]{1,2}M(?:[0-9]{1,2}S)?)?|[0-9]{1,3}M(?:[0-9]{1,2}S)?|[0-9]{1,3}S)";
    return fmt::format("P(?:[0-9]{{1,4}}W|[0-9]{{1,4}}D(?:{0})?|{0})", time);
  }
  return "";
}

}  // namespace

std::optional<NodeId> format_node(GrammarBuilder& builder, std::string_view format) {
  const std::string regex = expression(format);
  if (regex.empty()) return std::nullopt;
  return regex_node(builder, regex, "");
}

}  // namespace carpool
