// The simulation under seeds, its negative control, and fairness. A seed decides all; the one that fails is printed.
#include <gtest/gtest.h>

#include <random>

#include "engine/simulation_test_util.h"

namespace carpool {
namespace {

using test::SimulatedModel;
using test::Simulation;

TEST(Simulation, NoTokenIsAnybodyElsesAndNoBlockIsLostWhateverComesTogether) {
  SimulatedModel model;
  int64_t preemptions = 0, hits = 0, tokens = 0, cancels = 0;
  for (unsigned seed = 1; seed <= 2000; ++seed) {
    Simulation simulation(model, std::mt19937(seed));
    ASSERT_EQ(simulation.run(60), "") << "seed " << seed;
    preemptions += simulation.preemptions();
    hits += simulation.hits();
    tokens += simulation.tokens();
    cancels += simulation.cancels();
  }
  // That all of it was there to go wrong.
  EXPECT_GT(preemptions, 2000);
  EXPECT_GT(hits, 100000);
  EXPECT_GT(tokens, 100000);
  EXPECT_GT(cancels, 1000);
}

TEST(Simulation, AWrongBlockIsNoticed) {
  SimulatedModel model;
  model.corrupt = true;
  int noticed = 0, runs = 0;
  for (unsigned seed = 1; seed <= 50; ++seed) {
    model.corrupted = 0;
    Simulation simulation(model, std::mt19937(seed));
    const std::string wrong = simulation.run(60);
    runs += model.corrupted > 0;
    noticed += wrong.find("is not its own") != std::string::npos;
  }
  EXPECT_GT(runs, 40);
  EXPECT_EQ(noticed, runs);
}

// Two tenants who both always wait are served the same, whatever the sizes of their requests: virtual token counters
// bound the difference by twice the larger of a prompt and what the pool holds (arXiv 2401.00588, theorem 4.4).
TEST(Simulation, TenantsWhoAlwaysWaitAreServedTheSame) {
  SimulatedModel model;
  for (const bool preempt : {false, true}) {
    EngineOptions options;
    options.max_batch = 4;
    options.kv_tokens = 512;
    options.preempt = preempt;
    Engine engine(model, nullptr, make_policy("topk"), options);
    std::map<RequestId, int> tenant_of;
    std::map<RequestId, Request> requests;
    const auto submit = [&](int tenant, int prompt, int tokens) {
      Request r;
      r.prompt.assign(static_cast<size_t>(prompt), 'a');
      r.max_tokens = tokens;
      r.tenant = tenant;
      const RequestId id = engine.submit(r);
      tenant_of[id] = tenant;
      requests[id] = r;
    };
    for (int i = 0; i < 60; ++i) submit(0, 60, 60);
    for (int i = 0; i < 1500; ++i) submit(1, 5, 4);
    int64_t served[2] = {0, 0}, waiting[2] = {60, 1500}, worst = 0;
    while (waiting[0] > 0 && waiting[1] > 0) {
      ASSERT_TRUE(engine.step());
      for (const RequestId id : engine.last_step().admitted) {
        served[tenant_of[id]] += FairQueue::kPromptWeight * static_cast<int64_t>(requests[id].prompt.size());
        --waiting[tenant_of[id]];
      }
      for (const Event& e : engine.last_step().events) served[tenant_of[e.id]] += FairQueue::kDecodeWeight;
      worst = std::max(worst, std::abs(served[0] - served[1]));
    }
    EXPECT_GT(served[0], 2000);
    EXPECT_LE(worst, 2 * FairQueue::kDecodeWeight * options.kv_tokens);
  }
}

}  // namespace
}  // namespace carpool
