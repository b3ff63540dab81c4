// The programs under test. Their paths are compiled into one small file, as source_dir() is.
#pragma once

#include <string>

namespace carpool::end_to_end {

std::string carpool_binary();
std::string soak_binary();
std::string engine_fault_library();

}  // namespace carpool::end_to_end
