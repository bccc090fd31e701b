#include "runtime/stream/token_stream.h"

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace brigade::runtime {
namespace {

TokenEvent token_event(int32_t token) {
  TokenEvent event;
  event.token = token;
  return event;
}

TokenEvent end_event() {
  TokenEvent event;
  event.finish = FinishReason::kLength;
  return event;
}

TEST(TokenStream, KeepsOrderAndEnds) {
  TokenStream stream(4, nullptr);
  for (int i = 0; i < 3; ++i) stream.push(token_event(i));
  stream.push(end_event());
  stream.close();
  for (int i = 0; i < 3; ++i) {
    auto event = stream.next(absl::Now() + absl::Seconds(1));
    ASSERT_TRUE(event.ok() && event->has_value());
    EXPECT_EQ((*event)->token, i);
  }
  EXPECT_EQ((*stream.next(absl::InfiniteFuture()))->finish, FinishReason::kLength);
  EXPECT_FALSE(stream.next(absl::InfiniteFuture())->has_value());
}

TEST(TokenStream, AFullQueueTakesOnlyEndEventsAndTellsWhenThereIsRoom) {
  int rooms = 0;
  TokenStream stream(2, [&] { ++rooms; });
  stream.push(token_event(1));
  EXPECT_TRUE(stream.has_room());
  stream.push(token_event(2));
  EXPECT_FALSE(stream.has_room());
  EXPECT_DEATH(stream.push(token_event(3)), "broken invariant");
  stream.push(end_event());
  TokenEvent event;
  bool ended = false;
  EXPECT_TRUE(stream.try_next(&event, &ended));
  EXPECT_FALSE(stream.has_room());  // two events still wait
  EXPECT_TRUE(stream.try_next(&event, &ended));
  EXPECT_TRUE(stream.has_room());
  EXPECT_EQ(rooms, 1);
}

// Three sequences that end a step together want three places: one free place is not enough.
TEST(TokenStream, TellsWhenRoomThatFellShortGrows) {
  int rooms = 0;
  TokenStream stream(4, [&] { ++rooms; });
  for (int i = 0; i < 3; ++i) stream.push(token_event(i));
  TokenEvent event;
  bool ended = false;
  EXPECT_EQ(stream.room(1), 1u);
  EXPECT_TRUE(stream.try_next(&event, &ended));
  EXPECT_EQ(rooms, 0);  // nobody waited
  EXPECT_EQ(stream.room(3), 2u);
  EXPECT_TRUE(stream.try_next(&event, &ended));
  EXPECT_EQ(rooms, 1);
  EXPECT_EQ(stream.room(3), 3u);
  EXPECT_TRUE(stream.try_next(&event, &ended));
  EXPECT_EQ(rooms, 1);
}

TEST(TokenStream, WaitsHaveDeadlines) {
  TokenStream stream(2, nullptr);
  EXPECT_EQ(stream.next(absl::Now() + absl::Milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(TokenStream, CancelDropsEventsAndWakesTheProducer) {
  std::atomic<int> rooms = 0;
  TokenStream stream(2, [&] { ++rooms; });
  stream.push(token_event(1));
  stream.cancel();
  stream.cancel();
  EXPECT_EQ(rooms, 1);
  EXPECT_TRUE(stream.cancelled());
  stream.push(token_event(2));  // dropped
  stream.close();
  EXPECT_FALSE(stream.next(absl::InfiniteFuture())->has_value());
}

TEST(TokenStream, TwoThreads) {
  constexpr int kEvents = 20000;
  TokenStream stream(8, nullptr);
  std::thread producer([&] {
    for (int i = 0; i < kEvents;) {
      if (!stream.has_room()) {
        std::this_thread::yield();
        continue;
      }
      stream.push(token_event(i++));
    }
    stream.close();
  });
  for (int i = 0; i < kEvents; ++i) {
    auto event = stream.next(absl::Now() + absl::Seconds(30));
    ASSERT_TRUE(event.ok() && event->has_value());
    ASSERT_EQ((*event)->token, i);
  }
  EXPECT_FALSE(stream.next(absl::Now() + absl::Seconds(30))->has_value());
  producer.join();
}

}  // namespace
}  // namespace brigade::runtime
