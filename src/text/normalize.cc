// Decompose, sort marks, compose; see normalize.h.
#include "text/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace carpool {
namespace {

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Canonical ordering: within each run of marks (class above 0) sort by class, equal classes keep their order.
void sort_marks(std::vector<utf8proc_int32_t>& points) {
  for (size_t begin = 0; begin < points.size();) {
    if (combining_class(points[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < points.size() && combining_class(points[end]) != 0) ++end;
    std::stable_sort(points.begin() + static_cast<ptrdiff_t>(begin), points.begin() + static_cast<ptrdiff_t>(end),
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

std::string normalize_nfc(std::string_view text) {
  // Everything below U+0300 (lead bytes up to 0xCB) is in form C already.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0xCC; })) {
    return std::string(text);
  }
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const auto c = static_cast<utf8proc_int32_t>(read_code_point(text, pos));
    utf8proc_int32_t parts[32];  // canonical decompositions have at most 4 parts
    int bound_class = 0;
    const auto n = utf8proc_decompose_char(c, parts, 32, kOptions, &bound_class);
    CARPOOL_CHECK(n > 0 && n <= 32);
    points.insert(points.end(), parts, parts + n);
  }
  sort_marks(points);
  const auto n = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), kOptions);
  CARPOOL_CHECK(n >= 0);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < n; ++i)
    append_code_point(static_cast<char32_t>(points[static_cast<size_t>(i)]), out);
  return out;
}

}  // namespace carpool
