// How much memory this process may still take, before it tries to.
//
// Owns the answer to "will the model fit": the smaller of what the machine has available and what the control
// groups (v2 or v1) around this process leave. Reads a few files of /proc and /sys; allocates nothing big and
// keeps nothing. Does not reserve: the answer can be outdated a moment later.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace carpool {

// Bytes: the minimum of MemAvailable of /proc/meminfo and, for the memory control group of this process and every
// group above it, limit - (usage - file cache the kernel can drop). Zero when a limit is already exceeded; nullopt
// when the system says nothing at all. `root` is prepended to every path, for tests.
std::optional<uint64_t> available_memory(const std::string& root = "");

// Throws Error{kNoMemory} with both numbers, "WHAT needs N MiB, M MiB are available", unless `bytes` fit. `root` as
// above.
void require_memory(uint64_t bytes, const std::string& what, const std::string& root = "");

}  // namespace carpool
