// The table itself; see byte_alphabet.h.
#include "text/byte_alphabet.h"

#include "text/utf8.h"

namespace carpool {

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const char32_t c = printable ? static_cast<char32_t>(b) : next++;
    byte_of_[c] = b;
    append_code_point(c, spellings_[static_cast<size_t>(b)]);
  }
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view spelled) const {
  std::string bytes;
  bytes.reserve(spelled.size());
  for (size_t pos = 0; pos < spelled.size();) {
    const char32_t c = read_code_point(spelled, pos);
    if (c >= kEnd || byte_of_[c] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_of_[c]);
  }
  return bytes;
}

}  // namespace carpool
