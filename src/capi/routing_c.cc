// The functions of include/carpool/routing.h: sizes of structs, exceptions to statuses, nothing else.
#include <carpool/routing.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "base/error.h"
#include "capi/router.h"

using carpool::capi::Router;

struct carpool_routing {
  Router router;
};

namespace {

// The first layout of each struct, the least that a caller may know.
constexpr size_t kModelSize = sizeof(carpool_routing_model), kBatchSize = sizeof(carpool_routing_batch),
                 kCountersSize = sizeof(carpool_routing_counters);

int32_t report(carpool_routing_error* error, int32_t status, std::string_view text) {
  if (error) {
    error->status = status;
    const size_t n = std::min(text.size(), sizeof error->text - 1);
    std::memcpy(error->text, text.data(), n);
    error->text[n] = 0;
  }
  return status;
}

// Runs `work`; what it throws becomes a status.
template <class Work>
int32_t guarded(carpool_routing_error* error, Work&& work) noexcept {
  try {
    work();
    return report(error, CARPOOL_ROUTING_OK, "");
  } catch (const carpool::Error& e) {
    const bool policy = e.kind() == carpool::ErrorKind::kConfig, input = e.kind() == carpool::ErrorKind::kMalformed;
    const int32_t status = policy  ? CARPOOL_ROUTING_BAD_POLICY
                           : input ? CARPOOL_ROUTING_BAD_ARGUMENT
                                   : CARPOOL_ROUTING_INTERNAL;
    return report(error, status, e.what());
  } catch (const std::bad_alloc&) {
    return report(error, CARPOOL_ROUTING_NO_MEMORY, "not enough memory");
  } catch (...) {
    return report(error, CARPOOL_ROUTING_INTERNAL, "an internal error of carpool");
  }
}

void require(const void* pointer, const char* name) {
  if (!pointer) throw carpool::Error(carpool::ErrorKind::kMalformed, std::string(name) + " is NULL");
}

// A caller compiled against a later header may know more fields; what it set there must not be ignored in silence.
void require_size(size_t size, size_t known, const char* name) {
  if (size == known) return;
  throw carpool::Error(carpool::ErrorKind::kMalformed, std::string(name) + " has size " + std::to_string(size) +
                                                           ", this library knows " + std::to_string(known) +
                                                           ": call its _init function with sizeof first");
}

}  // namespace

int32_t carpool_routing_abi(void) { return CARPOOL_ROUTING_ABI; }

const char* carpool_routing_version(void) { return CARPOOL_VERSION; }

const char* carpool_routing_policy_name(int32_t index) {
  const auto& list = carpool::policy_list();
  return index >= 0 && static_cast<size_t>(index) < list.size() ? list[static_cast<size_t>(index)].name.c_str()
                                                                : nullptr;
}

const char* carpool_routing_policy_summary(int32_t index) {
  const auto& list = carpool::policy_list();
  return index >= 0 && static_cast<size_t>(index) < list.size() ? list[static_cast<size_t>(index)].summary.c_str()
                                                                : nullptr;
}

const char* carpool_routing_reason_name(int32_t reason) {
  return reason >= 0 && reason < carpool::kPlainReasons ? carpool::name(static_cast<carpool::PlainReason>(reason))
                                                        : nullptr;
}

void carpool_routing_model_init(carpool_routing_model* model, size_t size) {
  if (!model) return;
  std::memset(static_cast<void*>(model), 0, size);
  if (size >= kModelSize) {
    model->renormalize = 1;
    model->n_group = 1;
    model->topk_group = 1;
    model->routed_scaling_factor = 1;
    model->shared_weight = 1;
  }
  if (size >= sizeof model->size) model->size = size;
}

void carpool_routing_batch_init(carpool_routing_batch* batch, size_t size) {
  if (!batch) return;
  std::memset(static_cast<void*>(batch), 0, size);
  if (size >= sizeof batch->size) batch->size = size;
}

int32_t carpool_routing_create(const char* policy, const carpool_routing_model* model, carpool_routing** out,
                               carpool_routing_error* error) {
  return guarded(error, [&] {
    require(out, "out");
    *out = nullptr;
    require(policy, "policy");
    require(model, "model");
    require_size(model->size, kModelSize, "model");
    *out = new carpool_routing{{policy, *model}};
  });
}

void carpool_routing_destroy(carpool_routing* routing) { delete routing; }

const char* carpool_routing_spec(const carpool_routing* routing) { return routing ? routing->router.spec() : nullptr; }

int32_t carpool_routing_columns(const carpool_routing* routing) { return routing ? routing->router.columns() : 0; }

int32_t carpool_routing_route(carpool_routing* routing, const carpool_routing_batch* batch,
                              carpool_routing_error* error) {
  return guarded(error, [&] {
    require(routing, "routing");
    require(batch, "batch");
    require_size(batch->size, kBatchSize, "batch");
    routing->router.route(*batch);
  });
}

int32_t carpool_routing_get_counters(carpool_routing* routing, carpool_routing_counters* out,
                                     carpool_routing_error* error) {
  return guarded(error, [&] {
    require(routing, "routing");
    require(out, "out");
    require_size(out->size, kCountersSize, "out");
    routing->router.read_counters(*out);
  });
}

void carpool_routing_reset_counters(carpool_routing* routing) {
  if (routing) routing->router.reset_counters();
}
