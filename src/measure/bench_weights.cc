#include "measure/bench_weights.h"

#include "base/checked.h"
#include "base/memory.h"

namespace carpool {

RandomPanels::RandomPanels(Ops& ops, const PanelView& shape, int count, uint64_t seed, const std::string& what) {
  const std::optional<uint64_t> bytes = checked_mul(shape.bytes(), static_cast<uint64_t>(count));
  require_memory(bytes.value_or(UINT64_MAX), what);
  memory_ = LargeBuffer(*bytes, HugePages::kAuto, what);
  std::byte* const base = memory_.bytes().data();
  views_.assign(static_cast<size_t>(count), shape);
  for (size_t i = 0; i < views_.size(); ++i) views_[i].data = base + i * shape.bytes();
  const int64_t panels = shape.panels();
  ops.parallel(count, [&](int i, int) {
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t number = i * panels + p;
      code(shape.format)
          .random_panel(shape.cols, seed + static_cast<uint64_t>(number),
                        base + static_cast<size_t>(number) * shape.panel_bytes());
    }
  });
}

}  // namespace carpool
