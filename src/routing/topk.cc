// topk: plain routing, the model's own choice. The baseline of every comparison and the default.
//
// Each row takes its K best experts and knows nothing of the batch. Every other policy falls back to the same function
// (push_plain in scope.h), so "plain" is one code path. Read next: oea.cc.
#include "routing/registry.h"
#include "routing/scope.h"

namespace carpool {
namespace {

class TopK final : public PolicyBase {
 public:
  using PolicyBase::PolicyBase;

  void select(const RouterInput& in, Scratch& scratch, Selection& out) const override {
    select_plain(in, scratch, out);
  }
  bool is_plain(int) const override { return true; }
  void check(int, int) const override {}  // nothing to contradict: K is the model's own
};

}  // namespace

PolicyDescription describe_topk() {
  return {.summary = "the model's own choice: every row takes its K best experts",
          .arguments = {},
          .examples = {"topk"},
          .make = [](Arguments& arguments, const PolicyProperties& declared) -> std::unique_ptr<Policy> {
            return std::make_unique<TopK>(arguments.spec(), declared);
          }};
}

}  // namespace carpool
