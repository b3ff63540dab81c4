// Requests that wait for admission, and whose turn it is.
//
// Owns one queue per tenant and what each tenant was served: a virtual token counter as in arXiv 2401.00588. The tenant
// that was served least is next; inside a tenant, first come, first served. Who comes back with nothing waiting is
// lifted to the least served of those who wait, so that nobody saves up turns. Does not know blocks or batches.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "engine/sequence.h"

namespace carpool {

class FairQueue {
 public:
  // What a token costs: one that is decoded takes a step of its own and reads the weights again.
  static constexpr int64_t kPromptWeight = 1, kDecodeWeight = 2;

  // To the end of its tenant's queue, or, when it was running before and gave way, to the front.
  void push_back(std::unique_ptr<Sequence> sequence);
  void push_front(std::unique_ptr<Sequence> sequence);
  // Whose turn it is; null when nobody waits. Ties go to the lower tenant.
  Sequence* front() const;
  std::unique_ptr<Sequence> pop();  // what front() says
  // Takes a sequence out; null when the id does not wait here.
  std::unique_ptr<Sequence> remove(RequestId id);
  // `tenant` was served so many tokens.
  void serve(int tenant, int64_t prompt_tokens, int64_t decoded_tokens);

  int size() const { return size_; }
  int64_t served(int tenant) const;  // weighted, lifts included

 private:
  struct Tenant {
    std::deque<std::unique_ptr<Sequence>> waiting;
    int64_t served = 0;
  };
  using Tenants = std::map<int, Tenant>;
  Tenants::const_iterator next() const;
  // The queue of `tenant`, lifted when nothing of it waits.
  Tenant& enter(int tenant);
  void leave(int tenant);  // one sequence less

  Tenants tenants_;
  int size_ = 0;
  int last_ = 0;  // the tenant whose queue ran empty last
};

}  // namespace carpool
