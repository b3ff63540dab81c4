// Runs a parsed template within a budget.
//
// A tree walk: statements append to the output, expressions give values. Scopes are Jinja's: a loop's body and a macro
// have their own, `if` has not; macros see the template's own names but not their caller's.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/jinja/ast.h"

namespace carpool::jinja {

struct RunOptions {
  std::optional<int64_t> now;  // seconds since 1970 for strftime_now, which is an error without it
  std::chrono::milliseconds max_time;
};

// Throws Error{kMalformed} with the line, or Error{kUsage} when the template itself objects (raise_exception).
Text run_template(const std::vector<Statement>& body, std::map<std::string, Value, std::less<>> variables,
                  const RunOptions& options);

}  // namespace carpool::jinja
