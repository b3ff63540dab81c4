// Escaping byte by byte, and the one place where a broken invariant ends the process.
#include "base/error.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace carpool {

std::string escape(std::string_view text, size_t limit) {
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (out.size() >= limit) return out + "...";
    switch (c) {
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      default:
        if (byte >= 32 && byte < 127) {
          out += c;
        } else {
          out += fmt::format("\\x{:02x}", byte);
        }
    }
  }
  return out;
}

void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "carpool: internal error at %s:%d: %s\n", file, line, condition);
  std::abort();
}

}  // namespace carpool
