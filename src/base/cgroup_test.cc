// The lines of /proc/self/cgroup and the way up; what is read from there is tested in memory_test.cc and
// threads_test.cc.
#include "base/cgroup.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace carpool {
namespace {

TEST(ControlGroups, BothVersionsAreReadAndNonsenseIsLeftOut) {
  char name[] = "/tmp/carpool_cgroup_XXXXXX";
  const std::string root = ::mkdtemp(name);
  EXPECT_TRUE(control_groups(root).empty());
  std::filesystem::create_directories(root + "/proc/self");
  std::ofstream(root + "/proc/self/cgroup")
      << "\n:\n0\nx:y\n12:cpu,cpuacct:/a/b\n3:pids:/\n0::/../../elsewhere\n0::/c:d\n";
  const auto groups = control_groups(root);
  std::filesystem::remove_all(root);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].path, "/a/b");
  EXPECT_FALSE(groups[0].version2());
  EXPECT_TRUE(groups[0].lists("cpu"));
  EXPECT_TRUE(groups[0].lists("cpuacct"));
  EXPECT_FALSE(groups[0].lists("cpua"));
  EXPECT_EQ(groups[1].path, "");
  EXPECT_TRUE(groups[2].version2());
  EXPECT_EQ(groups[2].path, "") << "outside of this namespace";
  EXPECT_EQ(groups[3].path, "/c:d");
}

TEST(ControlGroups, TheWayUpEndsAtTheMount) {
  EXPECT_EQ(folders_upwards("/m", {"", "/a/b"}), (std::vector<std::string>{"/m/a/b", "/m/a", "/m"}));
  EXPECT_EQ(folders_upwards("/m", {"", ""}), (std::vector<std::string>{"/m"}));
}

}  // namespace
}  // namespace carpool
