#include "programs.h"

namespace carpool::end_to_end {

std::string carpool_binary() { return CARPOOL_BINARY; }
std::string soak_binary() { return CARPOOL_SOAK; }
std::string engine_fault_library() { return CARPOOL_ENGINE_FAULT; }

}  // namespace carpool::end_to_end
