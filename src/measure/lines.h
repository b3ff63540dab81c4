// The lines of a file of JSON lines and the like, with what messages about them begin with.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"

namespace carpool {

// One line: without its end, a carriage return included.
struct Line {
  std::string_view text;
  int number = 0;     // from 1
  bool last = false;  // without a newline behind it: a writer may have been stopped within it

  // "PATH: line 7"
  std::string where(std::string_view path) const { return fmt::format("{}: line {}", escape(path, 400), number); }
};

// Calls `use(const Line&)` for every line that is not blank, in order.
template <class Use>
void for_each_line(std::string_view text, Use use) {
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) use(Line{line, number, end == text.size()});
    at = end + 1;
  }
}

}  // namespace carpool
