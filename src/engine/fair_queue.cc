// Whose request is admitted next. See fair_queue.h.
#include "engine/fair_queue.h"

#include <algorithm>

namespace carpool {

FairQueue::Tenants::const_iterator FairQueue::next() const {
  auto best = tenants_.end();
  for (auto t = tenants_.begin(); t != tenants_.end(); ++t) {
    if (t->second.waiting.empty()) continue;
    if (best == tenants_.end() || t->second.served < best->second.served) best = t;
  }
  return best;
}

FairQueue::Tenant& FairQueue::enter(int tenant) {
  const auto least = next();
  Tenant& out = tenants_[tenant];
  if (out.waiting.empty()) {
    out.served = std::max(out.served, least == tenants_.end() ? served(last_) : least->second.served);
  }
  ++size_;
  return out;
}

void FairQueue::leave(int tenant) {
  --size_;
  if (tenants_[tenant].waiting.empty()) last_ = tenant;
}

void FairQueue::push_back(std::unique_ptr<Sequence> sequence) {
  Tenant& tenant = enter(sequence->request.tenant);
  tenant.waiting.push_back(std::move(sequence));
}

void FairQueue::push_front(std::unique_ptr<Sequence> sequence) {
  Tenant& tenant = enter(sequence->request.tenant);
  tenant.waiting.push_front(std::move(sequence));
}

Sequence* FairQueue::front() const {
  const auto t = next();
  return t == tenants_.end() ? nullptr : t->second.waiting.front().get();
}

std::unique_ptr<Sequence> FairQueue::pop() {
  const auto t = next();
  if (t == tenants_.end()) return nullptr;
  Tenant& tenant = tenants_[t->first];
  std::unique_ptr<Sequence> out = std::move(tenant.waiting.front());
  tenant.waiting.pop_front();
  leave(t->first);
  return out;
}

std::unique_ptr<Sequence> FairQueue::remove(RequestId id) {
  for (auto& [number, tenant] : tenants_) {
    const auto found =
        std::find_if(tenant.waiting.begin(), tenant.waiting.end(), [id](const auto& s) { return s->id == id; });
    if (found == tenant.waiting.end()) continue;
    std::unique_ptr<Sequence> out = std::move(*found);
    tenant.waiting.erase(found);
    leave(number);
    return out;
  }
  return nullptr;
}

void FairQueue::serve(int tenant, int64_t prompt_tokens, int64_t decoded_tokens) {
  tenants_[tenant].served += kPromptWeight * prompt_tokens + kDecodeWeight * decoded_tokens;
}

int64_t FairQueue::served(int tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 0 : found->second.served;
}

}  // namespace carpool
