// The table of element types: the safetensors format's own list, narrow to wide.
#include "io/dtype.h"

#include <array>

namespace carpool {
namespace {

constexpr uint64_t kExponent16 = 0x7c00, kExponentB16 = 0x7f80, kExponent32 = 0x7f800000;
constexpr uint64_t kExponent64 = 0x7ff0000000000000;

// IEEE-like types are non-finite when all exponent bits are set. E4M3 has no infinity and one NaN per sign, the
// FNUZ types have a single NaN at "minus zero", E8M0 (a power of two) has a single NaN at 0xff. A complex number
// would need a test per half: it has no pattern and counts as finite.
constexpr std::array kDtypes = {
    DtypeInfo{"BOOL", 8, 0, 0},
    DtypeInfo{"F4", 4, 0, 0},
    DtypeInfo{"F6_E2M3", 6, 0, 0},
    DtypeInfo{"F6_E3M2", 6, 0, 0},
    DtypeInfo{"U8", 8, 0, 0},
    DtypeInfo{"I8", 8, 0, 0},
    DtypeInfo{"F8_E5M2", 8, 0x7c, 0x7c},
    DtypeInfo{"F8_E4M3", 8, 0x7f, 0x7f},
    DtypeInfo{"F8_E5M2FNUZ", 8, 0xff, 0x80},
    DtypeInfo{"F8_E4M3FNUZ", 8, 0xff, 0x80},
    DtypeInfo{"F8_E8M0", 8, 0xff, 0xff},
    DtypeInfo{"I16", 16, 0, 0},
    DtypeInfo{"U16", 16, 0, 0},
    DtypeInfo{"F16", 16, kExponent16, kExponent16},
    DtypeInfo{"BF16", 16, kExponentB16, kExponentB16},
    DtypeInfo{"I32", 32, 0, 0},
    DtypeInfo{"U32", 32, 0, 0},
    DtypeInfo{"F32", 32, kExponent32, kExponent32},
    DtypeInfo{"C64", 64, 0, 0},
    DtypeInfo{"F64", 64, kExponent64, kExponent64},
    DtypeInfo{"I64", 64, 0, 0},
    DtypeInfo{"U64", 64, 0, 0},
};

}  // namespace

const DtypeInfo* find_dtype(std::string_view name) {
  for (const DtypeInfo& d : kDtypes) {
    if (d.name == name) return &d;
  }
  return nullptr;
}

std::string dtype_names() {
  std::string out;
  for (const DtypeInfo& d : kDtypes) out += (out.empty() ? "" : ", ") + std::string(d.name);
  return out;
}

}  // namespace carpool
