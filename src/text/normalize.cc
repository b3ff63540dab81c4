// Form C (decompose, sort marks, compose) and the list of steps; see normalize.h.
#include "text/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "text/sequence.h"
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

std::string replace_all(std::string_view text, std::string_view old, std::string_view with) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(old); at != std::string_view::npos; at = text.find(old, done)) {
    out.append(text, done, at - done).append(with);
    done = at + old.size();
  }
  return out.append(text, done);
}

// The part of a text, stretch by stretch.
template <class Visit>
void for_each_stretch(const MarkedText& marked, ByteRange part, const Visit& visit) {
  const auto visit_range = [&](size_t begin, size_t end, bool trusted) {
    if (begin < end) visit(std::string_view(marked.text).substr(begin, end - begin), trusted);
  };
  size_t pos = part.begin;
  auto stretch = std::partition_point(marked.trusted.begin(), marked.trusted.end(),
                                      [&](const ByteRange& r) { return r.end <= part.begin; });
  for (; stretch != marked.trusted.end() && stretch->begin < part.end; ++stretch) {
    const size_t begin = std::max(stretch->begin, part.begin), end = std::min(stretch->end, part.end);
    visit_range(pos, begin, false);
    visit_range(begin, end, true);
    pos = end;
  }
  visit_range(pos, part.end, false);
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

Normalizer Normalizer::load(const JsonObject& root) {
  Normalizer result;
  if (!root.has("normalizer")) return result;
  for_each_member(root.object("normalizer"), "normalizers", [&](const JsonObject& object) {
    const std::string type = object.string("type");
    if (type == "NFC") {
      result.steps_.push_back({Step::Kind::kNfc, {}, {}});
    } else if (type == "Prepend") {
      result.steps_.push_back({Step::Kind::kPrepend, {}, object.string("prepend")});
    } else if (type == "Replace") {
      const JsonObject pattern = object.object("pattern");
      result.steps_.push_back({Step::Kind::kReplace, pattern.string("String"), object.string("content")});
      if (result.steps_.back().pattern.empty()) pattern.fail("String", "is empty");
    } else {
      refuse_type(object, "normalizer");
    }
  });
  return result;
}

std::string Normalizer::apply(std::string_view text) const {
  const MarkedText marked{std::string(text), {}};
  return apply(marked, {0, text.size()}).text;
}

MarkedText Normalizer::apply(const MarkedText& text, ByteRange part) const {
  MarkedText out;
  for_each_stretch(text, part, [&](std::string_view stretch, bool trusted) { out.append(stretch, trusted); });
  for (const Step& step : steps_) {
    if (out.text.empty()) break;
    MarkedText next;
    if (step.kind == Step::Kind::kPrepend) {
      next.append(step.content, !out.trusted.empty() && out.trusted.front().begin == 0);
    }
    for_each_stretch(out, {0, out.text.size()}, [&](std::string_view stretch, bool trusted) {
      if (step.kind == Step::Kind::kNfc) {
        next.append(normalize_nfc(stretch), trusted);
      } else if (step.kind == Step::Kind::kReplace) {
        next.append(replace_all(stretch, step.pattern, step.content), trusted);
      } else {
        next.append(stretch, trusted);
      }
    });
    out = std::move(next);
  }
  return out;
}

}  // namespace carpool
