// Whose turn it is: least served first, first come first served inside a tenant, and no turns saved up.
#include "engine/fair_queue.h"

#include <gtest/gtest.h>

namespace carpool {
namespace {

std::unique_ptr<Sequence> request(RequestId id, int tenant) {
  auto s = std::make_unique<Sequence>();
  s->id = id;
  s->request.tenant = tenant;
  return s;
}

// Serves the queue `n` times, `tokens` prompt tokens each, and says whose turn it was.
std::vector<RequestId> turns(FairQueue& queue, int n, int64_t tokens) {
  std::vector<RequestId> out;
  for (int i = 0; i < n && queue.size() > 0; ++i) {
    const auto s = queue.pop();
    queue.serve(s->request.tenant, tokens, 0);
    out.push_back(s->id);
  }
  return out;
}

TEST(FairQueue, IsFirstComeFirstServedInsideATenant) {
  FairQueue queue;
  EXPECT_EQ(queue.front(), nullptr);
  EXPECT_EQ(queue.pop(), nullptr);
  for (RequestId id = 1; id <= 4; ++id) queue.push_back(request(id, 7));
  queue.push_front(request(9, 7));
  EXPECT_EQ(queue.size(), 5);
  EXPECT_EQ(queue.front()->id, 9);
  EXPECT_EQ(turns(queue, 9, 10), (std::vector<RequestId>{9, 1, 2, 3, 4}));
  EXPECT_EQ(queue.size(), 0);
}

TEST(FairQueue, OneWhoSendsLittleDoesNotWaitForOneWhoFloods) {
  FairQueue queue;
  for (RequestId id = 1; id <= 1000; ++id) queue.push_back(request(id, 0));
  turns(queue, 100, 50);
  queue.push_back(request(5001, 1));
  queue.push_back(request(5002, 1));
  const auto next = turns(queue, 4, 50);
  EXPECT_EQ(next, (std::vector<RequestId>{101, 5001, 102, 5002})) << "in turn with the flood, not behind it";
}

TEST(FairQueue, WhoWasServedDecodeTokensWaitsLonger) {
  FairQueue queue;
  for (RequestId id = 1; id <= 3; ++id) queue.push_back(request(id, 0));
  for (RequestId id = 11; id <= 13; ++id) queue.push_back(request(id, 1));
  queue.serve(0, 0, 5);  // weighs as much as 10 prompt tokens
  EXPECT_EQ(queue.served(0), 10);
  EXPECT_EQ(turns(queue, 4, 4), (std::vector<RequestId>{11, 12, 13, 1}));
}

TEST(FairQueue, NobodySavesUpTurnsWhileAsking) {
  FairQueue queue;
  queue.push_back(request(1, 1));
  turns(queue, 1, 10);  // tenant 1 was there once, long ago
  for (RequestId id = 100; id < 200; ++id) queue.push_back(request(id, 0));
  turns(queue, 50, 100);
  for (RequestId id = 2; id <= 20; ++id) queue.push_back(request(id, 1));
  EXPECT_EQ(queue.served(1), queue.served(0)) << "lifted to who waits";
  int own = 0;
  for (const RequestId id : turns(queue, 20, 100)) own += id < 100;
  EXPECT_EQ(own, 10) << "half of the turns, not all of them";
}

TEST(FairQueue, WhoComesToAnEmptyQueueStandsWhereTheLastOneStood) {
  FairQueue queue;
  queue.push_back(request(1, 0));
  turns(queue, 1, 10);
  queue.serve(0, 0, 100);
  queue.push_back(request(2, 1));
  EXPECT_EQ(queue.served(1), queue.served(0));
}

TEST(FairQueue, RemovesExactlyTheOneThatIsNamed) {
  FairQueue queue;
  for (RequestId id = 1; id <= 3; ++id) queue.push_back(request(id, static_cast<int>(id) % 2));
  EXPECT_EQ(queue.remove(4), nullptr);
  ASSERT_NE(queue.remove(2), nullptr);
  EXPECT_EQ(queue.remove(2), nullptr) << "twice";
  EXPECT_EQ(queue.size(), 2);
  EXPECT_EQ(turns(queue, 9, 1), (std::vector<RequestId>{1, 3}));
}

}  // namespace
}  // namespace carpool
