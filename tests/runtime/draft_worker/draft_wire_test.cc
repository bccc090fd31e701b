// The draft stream's messages to the wire and back, and what is refused on the way in.
#include "runtime/speculative/draft_wire.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using namespace runtime;  // NOLINT

template <typename Wire, typename Says>
Says round_trip(const Says& message) {
  Wire wire, again;
  to_wire(message, &wire);
  EXPECT_TRUE(again.ParseFromString(wire.SerializeAsString()));
  const absl::StatusOr<Says> back = from_wire(again);
  EXPECT_TRUE(back.ok()) << back.status();
  Wire second;
  to_wire(*back, &second);
  EXPECT_EQ(second.SerializeAsString(), wire.SerializeAsString());
  return *back;
}

DraftWorkerSays from_worker(const DraftWorkerSays& message) {
  return round_trip<v1::DraftWorkerMessage>(message);
}
DraftCoordinatorSays from_coordinator(const DraftCoordinatorSays& message) {
  return round_trip<v1::DraftCoordinatorMessage>(message);
}

OpenDraft full_open() {
  OpenDraft open{.sequence = ~uint64_t{0},
                 .epoch = 5,
                 .tokens = {1, 2, 3, 4},
                 .prompt_length = 3,
                 .wanted = 12,
                 .max_length = 99,
                 .rule = AcceptRule::kRejection,
                 .sample_index = 2,
                 .law_entries = 16,
                 .end_tokens = {0, 9},
                 .min_tokens = 4};
  open.sampling = {.temperature = 0.7,
                   .top_k = 40,
                   .top_p = 0.9,
                   .min_p = 0.05,
                   .repetition_penalty = 1.1,
                   .presence_penalty = -0.5,
                   .frequency_penalty = 0.25,
                   .logit_bias = {{3, 1.5f}, {4, -2.0f}},
                   .allowed_tokens = {1, 2},
                   .banned_tokens = {7},
                   .seed = 0xfedcba9876543210u};
  return open;
}

TEST(DraftWire, CommandsKeepEveryField) {
  const auto back = std::get<DraftCommands>(from_coordinator(
      DraftCommands{{full_open(), CommitDraft{8, 5, 4, {6, 7}, 3}, CloseDraft{9, 6}}}));
  ASSERT_EQ(back.commands.size(), 3u);
  const auto& open = std::get<OpenDraft>(back.commands[0]);
  const OpenDraft sent = full_open();
  EXPECT_EQ(open.sequence, sent.sequence);
  EXPECT_EQ(open.epoch, sent.epoch);
  EXPECT_EQ(open.tokens, sent.tokens);
  EXPECT_EQ(open.prompt_length, sent.prompt_length);
  EXPECT_EQ(open.wanted, sent.wanted);
  EXPECT_EQ(open.max_length, sent.max_length);
  EXPECT_EQ(open.rule, sent.rule);
  EXPECT_EQ(open.sample_index, sent.sample_index);
  EXPECT_EQ(open.law_entries, sent.law_entries);
  EXPECT_EQ(open.end_tokens, sent.end_tokens);
  EXPECT_EQ(open.min_tokens, sent.min_tokens);
  EXPECT_EQ(open.sampling.temperature, sent.sampling.temperature);
  EXPECT_EQ(open.sampling.top_k, sent.sampling.top_k);
  EXPECT_EQ(open.sampling.top_p, sent.sampling.top_p);
  EXPECT_EQ(open.sampling.min_p, sent.sampling.min_p);
  EXPECT_EQ(open.sampling.repetition_penalty, sent.sampling.repetition_penalty);
  EXPECT_EQ(open.sampling.presence_penalty, sent.sampling.presence_penalty);
  EXPECT_EQ(open.sampling.frequency_penalty, sent.sampling.frequency_penalty);
  EXPECT_EQ(open.sampling.logit_bias, sent.sampling.logit_bias);
  EXPECT_EQ(open.sampling.allowed_tokens, sent.sampling.allowed_tokens);
  EXPECT_EQ(open.sampling.banned_tokens, sent.sampling.banned_tokens);
  EXPECT_EQ(open.sampling.seed, sent.sampling.seed);
  const auto& commit = std::get<CommitDraft>(back.commands[1]);
  EXPECT_EQ(commit.base_length, 4);
  EXPECT_EQ(commit.tokens, (std::vector<int32_t>{6, 7}));
  EXPECT_EQ(commit.wanted, 3);
  EXPECT_EQ(std::get<CloseDraft>(back.commands[2]).epoch, 6u);
}

TEST(DraftWire, WhatWorkersSayKeepsEveryField) {
  const ChunkMessage chunk{.sequence = 4,
                           .epoch = 2,
                           .base_length = 10,
                           .prefix_hash = 0x8000000000000001u,
                           .position = 12,
                           .tokens = {5, 6},
                           .form = LawForm::kSparse,
                           .law_sizes = {1, 2},
                           .law_tokens = {5, 6, 8},
                           .law_weights = {1.0f, 0.25f, 0.75f},
                           .margins = {0.5f, 2.0f}};
  const auto back = std::get<ChunkMessages>(from_worker(ChunkMessages{{chunk}}));
  ASSERT_EQ(back.chunks.size(), 1u);
  const ChunkMessage& got = back.chunks[0];
  EXPECT_EQ(got.sequence, chunk.sequence);
  EXPECT_EQ(got.epoch, chunk.epoch);
  EXPECT_EQ(got.base_length, chunk.base_length);
  EXPECT_EQ(got.prefix_hash, chunk.prefix_hash);
  EXPECT_EQ(got.position, chunk.position);
  EXPECT_EQ(got.tokens, chunk.tokens);
  EXPECT_EQ(got.form, chunk.form);
  EXPECT_EQ(got.law_sizes, chunk.law_sizes);
  EXPECT_EQ(got.law_tokens, chunk.law_tokens);
  EXPECT_EQ(got.law_weights, chunk.law_weights);
  EXPECT_EQ(got.margins, chunk.margins);
  from_worker(DraftHello{"d0", "1.2.3", 99, 2048, 32, 1024});
  from_worker(VocabularyPart{7, {{true, false, true, "x", std::string("\xff\0", 2)}, {}}, true});
  for (const NackReason reason :
       {NackReason::kFull, NackReason::kOutOfStep, NackReason::kRefused}) {
    EXPECT_EQ(std::get<DraftNack>(from_worker(DraftNack{1, 2, reason, "why"})).reason, reason);
  }
  from_worker(DraftPong{1, 2, 3, 4, 5});
  from_coordinator(CoordinatorHello{"1.2.3", 99, 2048, 100, 1000});
  from_coordinator(VocabularyWanted{});
  from_coordinator(DraftPing{6});
}

TEST(DraftWire, WhatDoesNotFitIsNamed) {
  struct Case {
    const char* field;
    void (*spoil)(v1::OpenDraft*);
  };
  const Case cases[] = {
      {"prompt_length", [](v1::OpenDraft* open) { open->set_prompt_length(-1); }},
      {"prompt_length", [](v1::OpenDraft* open) { open->set_prompt_length(int64_t{1} << 40); }},
      {"wanted", [](v1::OpenDraft* open) { open->set_wanted(257); }},
      {"max_length", [](v1::OpenDraft* open) { open->set_max_length(-5); }},
      {"rule", [](v1::OpenDraft* open) { open->set_rule(v1::DRAFT_RULE_UNSPECIFIED); }},
      {"law_entries", [](v1::OpenDraft* open) { open->set_law_entries(1025); }},
      {"top_k", [](v1::OpenDraft* open) { open->mutable_policy()->set_top_k(-1); }},
      {"bias_tokens", [](v1::OpenDraft* open) { open->mutable_policy()->add_bias_tokens(1); }},
      {"end_tokens", [](v1::OpenDraft* open) { open->mutable_end_tokens()->Resize(5000, 1); }},
      {"min_tokens", [](v1::OpenDraft* open) { open->set_min_tokens(-1); }},
  };
  for (const Case& one : cases) {
    v1::DraftCoordinatorMessage wire;
    to_wire(DraftCommands{{full_open()}}, &wire);
    one.spoil(wire.mutable_commands()->mutable_commands(0)->mutable_open());
    const auto read = from_wire(wire);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << one.field;
    EXPECT_NE(read.status().message().find(one.field), absl::string_view::npos) << read.status();
  }
  v1::DraftCoordinatorMessage hello;
  to_wire(CoordinatorHello{"1", 9, 1, 100, 150}, &hello);
  EXPECT_FALSE(from_wire(hello).ok());
  EXPECT_FALSE(from_wire(v1::DraftCoordinatorMessage()).ok());
  EXPECT_FALSE(from_wire(v1::DraftWorkerMessage()).ok());
}

// A draft that does not hold together costs its own sequence: it arrives as one without tokens,
// which the sequence's tail takes for a lie.
TEST(DraftWire, ABadDraftArrivesEmpty) {
  v1::DraftWorkerMessage wire;
  to_wire(
      ChunkMessages{{{.sequence = 3, .epoch = 4, .tokens = {1}}, {.sequence = 5, .tokens = {2}}}},
      &wire);
  wire.mutable_drafts()->mutable_chunks(0)->set_position(-7);
  const auto read = from_wire(wire);
  ASSERT_TRUE(read.ok());
  const auto& chunks = std::get<ChunkMessages>(*read).chunks;
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0].sequence, 3u);
  EXPECT_EQ(chunks[0].epoch, 4u);
  EXPECT_TRUE(chunks[0].tokens.empty());
  EXPECT_EQ(chunks[1].tokens, std::vector<int32_t>{2});
}

// Bytes that were once a message and are none any more are refused or read, never a crash.
TEST(DraftWire, SpoiltBytes) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("draft_wire_test", seed));
  std::mt19937_64 random(seed);
  v1::DraftCoordinatorMessage commands;
  to_wire(DraftCommands{{full_open(), CommitDraft{8, 5, 4, {6, 7}, 3}}}, &commands);
  const std::string whole = commands.SerializeAsString();
  int read = 0, refused = 0;
  for (int i = 0; i < scaled(20000, 2000); ++i) {
    std::string bytes = whole;
    for (uint64_t n = 1 + random() % 4; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    v1::DraftCoordinatorMessage wire;
    if (!wire.ParseFromString(bytes)) continue;
    const auto message = from_wire(wire);
    read += message.ok();
    refused += !message.ok();
  }
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace brigade::tests
