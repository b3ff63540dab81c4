#include "base/source_dir_test_util.h"

std::string carpool::source_dir() { return CARPOOL_SOURCE_DIR; }
