// The draft worker's rules towards its coordinator, and what its outbox makes of drafts.
#include "runtime/draft_worker/draft_session.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/core/build_version.h"
#include "runtime/draft_worker/draft_outbox.h"

namespace brigade::tests {
namespace {

using namespace runtime;                // NOLINT
using namespace runtime::draft_worker;  // NOLINT

// The kinds of actions in order, such as "Dial Note".
std::string kinds(const Actions& actions) {
  static const char* const kNames[] = {"Dial",   "HangUp",    "SendVocabulary", "Obey",
                                       "Answer", "ForgetAll", "Note",           "Exit"};
  std::string text;
  for (const Action& action : actions) {
    if (!text.empty()) text += " ";
    text += kNames[action.index()];
  }
  return text;
}

template <typename T>
const T& only(const Actions& actions) {
  for (const Action& action : actions) {
    if (const T* found = std::get_if<T>(&action)) return *found;
  }
  static const T kNone{};
  ADD_FAILURE() << "not there";
  return kNone;
}

struct Bed {
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  DraftSession session{{.coordinator = "c:1",
                        .vocabulary_hash = 7,
                        .rejoin_timeout = absl::Minutes(1),
                        .random = [] { return uint64_t{0}; }}};

  CoordinatorHello hello() {
    return {.build_version = kBuildVersion,
            .vocabulary_hash = 7,
            .ping_interval_ms = 100,
            .lost_after_ms = 1000};
  }
  void serve() {
    (void)session.start(now);
    (void)session.on_message(session.attempt(), hello(), now);
    ASSERT_EQ(session.state(), DraftSession::State::kServing);
  }
};

TEST(DraftSession, GreetsServesAndObeys) {
  Bed bed;
  EXPECT_EQ(kinds(bed.session.start(bed.now)), "Dial");
  EXPECT_EQ(kinds(bed.session.on_message(1, bed.hello(), bed.now)), "Note");
  const Actions obeyed =
      bed.session.on_message(1, DraftCommands{{CloseDraft{.sequence = 3, .epoch = 1}}}, bed.now);
  EXPECT_EQ(kinds(obeyed), "Obey");
  EXPECT_EQ(only<Obey>(obeyed).commands.commands.size(), 1u);
  EXPECT_EQ(only<Answer>(bed.session.on_message(1, DraftPing{9}, bed.now)).ping.number, 9);
  EXPECT_EQ(kinds(bed.session.on_stop("a signal")), "HangUp Exit");
}

TEST(DraftSession, SilenceAndBrokenStreamsAreDialledAgainWithGrowingDelays) {
  Bed bed;
  bed.serve();
  // Pings keep it.
  for (int i = 0; i < 10; ++i) {
    bed.now += absl::Milliseconds(500);
    EXPECT_EQ(kinds(bed.session.on_time(bed.now)), "");
    (void)bed.session.on_message(1, DraftPing{i}, bed.now);
  }
  bed.now = bed.session.next_time();
  EXPECT_EQ(kinds(bed.session.on_time(bed.now)), "HangUp ForgetAll Note");
  absl::Duration last = absl::ZeroDuration();
  for (int i = 0; i < 5; ++i) {
    const absl::Duration delay = bed.session.next_time() - bed.now;
    EXPECT_GT(delay, last);
    last = delay;
    bed.now = bed.session.next_time();
    ASSERT_EQ(kinds(bed.session.on_time(bed.now)), "Dial");
    // The same loss is not told again and again.
    EXPECT_EQ(kinds(bed.session.on_stream_ended(bed.session.attempt(), absl::UnavailableError("no"),
                                                bed.now)),
              i == 0 ? "Note" : "");
  }
  // Events of an attempt before are not heard.
  EXPECT_EQ(kinds(bed.session.on_message(1, bed.hello(), bed.now)), "");
  EXPECT_EQ(kinds(bed.session.on_stream_ended(1, absl::OkStatus(), bed.now)), "");
}

TEST(DraftSession, GivesUpWithoutACoordinator) {
  Bed bed;
  (void)bed.session.start(bed.now);
  const absl::Time start = bed.now;
  for (int i = 0; i < 1000; ++i) {
    (void)bed.session.on_stream_ended(bed.session.attempt(), absl::UnavailableError("no"), bed.now);
    bed.now = bed.session.next_time();
    const Actions actions = bed.session.on_time(bed.now);
    if (kinds(actions) == "Dial") continue;
    EXPECT_EQ(only<Exit>(actions).code, kExitLost);
    EXPECT_EQ(bed.now - start, absl::Minutes(1));
    return;
  }
  FAIL() << "it never gives up";
}

TEST(DraftSession, ARefusalEndsItOnlyWhenNoOtherTryCanHelp) {
  Bed refused;
  (void)refused.session.start(refused.now);
  const Actions actions = refused.session.on_stream_ended(
      1, absl::FailedPreconditionError("the vocabularies differ first at id 5"), refused.now);
  EXPECT_EQ(only<Exit>(actions).code, kExitRefused);
  EXPECT_NE(only<Exit>(actions).reason.find("id 5"), std::string::npos);

  Bed full;
  (void)full.session.start(full.now);
  EXPECT_EQ(
      kinds(full.session.on_stream_ended(1, absl::ResourceExhaustedError("64 joined"), full.now)),
      "Note");
  // Refused after it had served: the coordinator may be another one by now.
  Bed served;
  served.serve();
  EXPECT_EQ(kinds(served.session.on_stream_ended(1, absl::InvalidArgumentError("bad"), served.now)),
            "ForgetAll Note");
}

TEST(DraftSession, ACoordinatorOutOfTurnIsLeft) {
  Bed bed;
  (void)bed.session.start(bed.now);
  EXPECT_EQ(kinds(bed.session.on_message(1, DraftPing{1}, bed.now)), "HangUp Note");
  Bed other;
  (void)other.session.start(other.now);
  CoordinatorHello hello = other.hello();
  hello.vocabulary_hash = 8;
  EXPECT_EQ(kinds(other.session.on_message(1, hello, other.now)), "HangUp Note");
  Bed slow;
  (void)slow.session.start(slow.now);
  slow.now += absl::Seconds(30);
  EXPECT_EQ(kinds(slow.session.on_time(slow.now)), "HangUp Note");
  Bed asked;
  (void)asked.session.start(asked.now);
  EXPECT_EQ(kinds(asked.session.on_message(1, VocabularyWanted{}, asked.now)), "SendVocabulary");
}

ChunkMessage draft(uint64_t sequence, int base, int position, int32_t token) {
  return {.sequence = sequence,
          .epoch = 1,
          .base_length = base,
          .prefix_hash = static_cast<uint64_t>(position),
          .position = position,
          .tokens = {token},
          .margins = {0.5f}};
}

TEST(DraftOutbox, JoinsWhatFollowsAndKeepsTheOrder) {
  DraftOutbox outbox;
  EXPECT_FALSE(outbox.take().has_value());
  outbox.drafted(draft(1, 5, 5, 10));
  outbox.drafted(draft(2, 9, 9, 20));
  outbox.drafted(draft(1, 5, 6, 11));
  outbox.drafted(draft(1, 6, 7, 12));  // it knows of more by now
  outbox.drafted(draft(2, 9, 10, 21));
  outbox.refused({.sequence = 3});
  const auto nack = outbox.take();
  ASSERT_TRUE(nack && std::holds_alternative<DraftNack>(*nack));
  const auto message = outbox.take();
  ASSERT_TRUE(message && std::holds_alternative<ChunkMessages>(*message));
  const std::vector<ChunkMessage>& chunks = std::get<ChunkMessages>(*message).chunks;
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(chunks[0].tokens, (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(chunks[0].prefix_hash, 5u);
  EXPECT_EQ(chunks[0].margins.size(), 2u);
  EXPECT_EQ(chunks[1].tokens, (std::vector<int32_t>{20, 21}));
  EXPECT_EQ(chunks[2].tokens, (std::vector<int32_t>{12}));
  EXPECT_EQ(chunks[2].base_length, 6);
  EXPECT_FALSE(outbox.take().has_value());
}

TEST(DraftOutbox, IsFullWhenNobodyTakes) {
  DraftOutbox outbox;
  for (size_t i = 0; i < DraftOutbox::kMaxTokens; ++i) {
    EXPECT_FALSE(outbox.full());
    outbox.drafted(draft(1, 0, static_cast<int>(i), 1));
  }
  EXPECT_TRUE(outbox.full());
  EXPECT_TRUE(outbox.take().has_value());
  EXPECT_FALSE(outbox.full());
}

}  // namespace
}  // namespace brigade::tests
