// Unicode normalization form C, in time that grows linearly with the text.
//
// utf8proc supplies the tables and the composition. The reordering of combining marks is done here with a stable
// sort, because utf8proc's own is quadratic in the length of a run of marks, which a prompt may choose.
#pragma once

#include <string>
#include <string_view>

namespace carpool {

// NFC of valid UTF-8.
std::string normalize_nfc(std::string_view text);

}  // namespace carpool
