// Running the scripts of python/clients against a server.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "end_to_end_util.h"

namespace carpool::end_to_end {

inline std::string python() {
  if (const char* name = std::getenv("CARPOOL_PYTHON")) return name;
  const std::string venv = kSource + "/.venv/bin/python";
  return fs::exists(venv) ? venv : "python3";
}

inline bool has_packages() {
  return std::system((python() + " -c 'import openai, anthropic' >/dev/null 2>&1").c_str()) == 0;
}

inline constexpr const char* kSkipped =
    "the packages openai and anthropic of python/requirements.txt are not installed; CARPOOL_PYTHON names an "
    "interpreter that has them";

// The script at `url`; its output is shown when a check fails.
inline void expect_script_passes_at(const std::string& url, const std::string& script,
                                    const std::string& options = "") {
  const TemporaryFolder folder;
  const std::string command = "timeout 600 " + python() + " " + kSource + "/python/clients/" + script + " --url " +
                              url + " " + options + " >" + (folder / "out") + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << command << "\n" << slurp(folder / "out");
}

}  // namespace carpool::end_to_end
