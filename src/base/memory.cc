// Parsing of /proc/meminfo and the memory files of the control groups (cgroup.h says where they are).
#include "base/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/cgroup.h"
#include "base/error.h"

namespace carpool {
namespace {

// The files of one control group version.
struct GroupFiles {
  std::string mount;       // "/sys/fs/cgroup"
  std::string_view limit;  // file names in a group's folder
  std::string_view usage;
  std::string_view cache_line;  // of memory.stat: file pages that nobody used for a while
};

std::string read_small_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  return text.str();
}

// The whole number that `text` starts with after spaces; nullopt for "max", an empty file or nonsense.
std::optional<uint64_t> leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// The number behind `key` at the start of a line.
std::optional<uint64_t> line_number(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (line.starts_with(key)) return leading_number(line.substr(key.size()));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return std::nullopt;
}

void take_min(std::optional<uint64_t>& result, uint64_t value) { result = std::min(result.value_or(value), value); }

// What one group leaves, if it has a limit.
std::optional<uint64_t> left_in_group(const std::string& folder, const GroupFiles& files) {
  const auto limit = leading_number(read_small_file(folder + "/" + std::string(files.limit)));
  const auto usage = leading_number(read_small_file(folder + "/" + std::string(files.usage)));
  if (!limit || !usage) return std::nullopt;
  const uint64_t cache = line_number(read_small_file(folder + "/memory.stat"), files.cache_line).value_or(0);
  const uint64_t used = *usage - std::min(*usage, cache);
  return *limit - std::min(*limit, used);
}

void take_groups(std::optional<uint64_t>& result, const std::string& root, const ControlGroup& group,
                 const GroupFiles& files) {
  for (const std::string& folder : folders_upwards(root + files.mount, group)) {
    if (const auto left = left_in_group(folder, files)) take_min(result, *left);
  }
}

}  // namespace

std::optional<uint64_t> available_memory(const std::string& root) {
  std::optional<uint64_t> result;
  if (const auto kib = line_number(read_small_file(root + "/proc/meminfo"), "MemAvailable:"))
    take_min(result, *kib * 1024);

  for (const ControlGroup& group : control_groups(root)) {  // a machine may have both versions mounted
    if (group.version2()) {
      take_groups(result, root, group, {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "});
    } else if (group.lists("memory")) {
      take_groups(result, root, group,
                  {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "});
    }
  }
  return result;
}

void require_memory(uint64_t bytes, const std::string& what, const std::string& root) {
  const std::optional<uint64_t> available = available_memory(root);
  if (!available || bytes <= *available) return;
  throw Error(ErrorKind::kNoMemory,
              fmt::format("{} needs {} MiB, {} MiB are available", what, bytes >> 20, *available >> 20));
}

}  // namespace carpool
