// `carpool bench-serve URL`: the load client, and the A/B of routing policies on a live server.
//
// Owns the command's options and what is worth a test of its own: the reading of --header, --percentiles,
// --request-rate and --extra-request-body. What is measured is in measure/load_*.h.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace carpool {

// "Name=value" or "Name: value". Error{kUsage} for anything that is no header.
std::pair<std::string, std::string> parse_header(std::string_view text);

// "90,95,99.9": ascending, without repeats; 90, 95 and 99 are always there. Error{kUsage} outside of (0, 100].
std::vector<double> parse_percentiles(const std::string& text);

// A positive number of requests per second, or "inf". Error{kUsage}.
double parse_request_rate(const std::string& text);

// A JSON object, or "" for none. Error{kUsage}.
json::object parse_extra_body(const std::string& text);

// Requests per arm and repeat of an A/B: what was asked for, at least one per place; by default two per place, at least
// eight.
int ab_requests(bool given, int num_prompts, int concurrency);

}  // namespace carpool
