// String operations on marked text, with Python's meaning. Positions are bytes; characters are code points.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace carpool::jinja {

enum class Side { kLeft, kRight, kBoth };

// Removes white space, or the characters of `characters`.
Text strip(const Text& text, Side side, std::optional<std::string_view> characters);
// Without a separator: at runs of white space. `max` below 0: no limit.
std::vector<Text> split(const Text& text, std::optional<std::string_view> separator, int64_t max, Budget& budget);
Text replace(const Text& text, std::string_view old, const Text& with, int64_t max, Budget& budget);
Text upper(const Text& text);
Text lower(const Text& text);
Text capitalize(const Text& text);
// Capitalizes each word; a word begins behind a character that is not a letter, or (filter) behind one of "-([{<"
// and white space.
Text title(const Text& text, bool as_filter);
Text indent(const Text& text, std::string_view by, bool first, bool blank, Budget& budget);
std::vector<Text> characters(const Text& text, Budget& budget);
size_t character_count(const Text& text);
// Where `needle` begins in `text` at or after `from`, in linear time; npos when absent.
size_t find(std::string_view text, std::string_view needle, size_t from = 0);

}  // namespace carpool::jinja
