// `carpool bench decode|prefill|layer|kernels`: offline benches.
//
// Owns the command's options and the parsing of their lists; what is measured is in measure/bench_*.h. Every bench
// prints command, commit, machine and settings, medians with spread, and the read bandwidth of the same run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/format.h"

namespace carpool {

// "all", or names of formats. Error{kConfig} listing them.
std::vector<Format> parse_formats(const std::vector<std::string>& names);

// "all" (every table of this machine, fastest last), or names of tables. Error{kConfig} listing them.
std::vector<std::string> parse_isas(const std::vector<std::string>& names);

// "KxN": inputs and outputs of a matrix. Error{kConfig} otherwise.
std::pair<int64_t, int64_t> parse_matrix(std::string_view text);

}  // namespace carpool
