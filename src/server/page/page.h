// The page at /: its three files, compiled into the program (page.cc.in).
#pragma once

#include <string_view>

namespace carpool::page {

extern const std::string_view kHtml, kScript, kStyle;

}  // namespace carpool::page
