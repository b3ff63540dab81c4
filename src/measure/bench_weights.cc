#include "measure/bench_weights.h"

#include <sys/mman.h>

#include <cstdlib>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

namespace carpool {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

void RandomPanels::Free::operator()(std::byte* p) const { std::free(p); }

RandomPanels::RandomPanels(Ops& ops, const PanelView& shape, int count, uint64_t seed, const std::string& what) {
  const std::optional<uint64_t> bytes = checked_mul(shape.bytes(), static_cast<uint64_t>(count));
  require_memory(bytes.value_or(UINT64_MAX), what);
  const size_t rounded = (*bytes + kHugePage - 1) / kHugePage * kHugePage;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded)));
  if (!memory_) throw Error(ErrorKind::kNoMemory, what + " cannot be allocated");
  ::madvise(memory_.get(), rounded, MADV_HUGEPAGE);  // advice only; a kernel without huge pages is slower, not wrong
  views_.assign(static_cast<size_t>(count), shape);
  for (size_t i = 0; i < views_.size(); ++i) views_[i].data = memory_.get() + i * shape.bytes();
  const int64_t panels = shape.panels();
  ops.parallel(count, [&](int i, int) {
    for (int64_t p = 0; p < panels; ++p) {
      const uint64_t panel_seed =
          seed + static_cast<uint64_t>(i) * static_cast<uint64_t>(panels) + static_cast<uint64_t>(p);
      auto* out = memory_.get() + static_cast<size_t>(i) * shape.bytes() + static_cast<size_t>(p) * shape.panel_bytes();
      code(shape.format).random_panel(shape.cols, panel_seed, out);
    }
  });
}

}  // namespace carpool
