// Parsing of "hierarchy:controllers:/path" lines; see cgroup.h.
#include "base/cgroup.h"

#include <algorithm>
#include <fstream>

namespace carpool {

bool ControlGroup::lists(std::string_view controller) const {
  for (std::string_view rest = controllers; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(','));
    if (name == controller) return true;
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
  }
  return false;
}

std::vector<ControlGroup> control_groups(const std::string& root) {
  std::vector<ControlGroup> groups;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    if (path == "/" || path.find("..") != std::string::npos) path.clear();  // ..: outside of this namespace
    groups.push_back({line.substr(first + 1, second - first - 1), std::move(path)});
  }
  return groups;
}

std::vector<std::string> folders_upwards(const std::string& mount, const ControlGroup& group) {
  std::vector<std::string> folders;
  for (std::string path = group.path; !path.empty();) {
    folders.push_back(mount + path);
    const size_t cut = path.rfind('/');
    path.resize(cut == std::string::npos ? 0 : cut);
  }
  folders.push_back(mount);
  return folders;
}

}  // namespace carpool
