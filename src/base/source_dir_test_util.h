// Where the sources are, for tests that read golden files and the embedded models. The path is compiled into one small
// file (source_dir_test_util.cc), so that what ccache compiled for one clone serves the others.
#pragma once

#include <string>

namespace carpool {

std::string source_dir();

}  // namespace carpool
