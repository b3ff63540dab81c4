// Where the control groups of this process keep their files, version 1 and 2.
//
// Owns reading /proc/self/cgroup and the way from a group up to its mount; what the files there mean is the business of
// memory.cc (how much memory is left) and threads.cc (how many CPUs are allowed). Inside a container the path may be
// the host's, which does not exist below the container's own mount: such folders simply have no files, and the mount's
// top, which always is there, is on every way up.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace carpool {

// One line of /proc/self/cgroup.
struct ControlGroup {
  std::string controllers;  // "cpu,cpuacct"; empty for version 2, which has all of them in one tree
  std::string path;         // "/a/b"; empty for the top or a group outside of what is visible here

  bool version2() const { return controllers.empty(); }
  bool lists(std::string_view controller) const;
};

// The groups of this process; lines that make no sense are left out. `root` is where /proc is found, for tests.
std::vector<ControlGroup> control_groups(const std::string& root);

// The folders whose limits bind a group under `mount`: its own, its parents', and `mount`, in this order.
std::vector<std::string> folders_upwards(const std::string& mount, const ControlGroup& group);

}  // namespace carpool
