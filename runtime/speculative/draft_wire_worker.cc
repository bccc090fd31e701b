#include "runtime/speculative/draft_wire.h"

#include <utility>

#include "runtime/speculative/wire_checks.h"

namespace brigade::runtime {
namespace {

using wire::check_size;
using wire::read;
using wire::read_list;
using Bounds = DraftBounds;

v1::DraftLawForm to_wire(LawForm form) {
  switch (form) {
    case LawForm::kPointMass:
      return v1::DRAFT_LAW_FORM_DELTA;
    case LawForm::kSparse:
      return v1::DRAFT_LAW_FORM_SPARSE;
    case LawForm::kNone:
      break;
  }
  return v1::DRAFT_LAW_FORM_NONE;
}

v1::DraftNackReason to_wire(NackReason reason) {
  switch (reason) {
    case NackReason::kFull:
      return v1::DRAFT_NACK_REASON_FULL;
    case NackReason::kOutOfStep:
      return v1::DRAFT_NACK_REASON_OUT_OF_STEP;
    case NackReason::kRefused:
      break;
  }
  return v1::DRAFT_NACK_REASON_REFUSED;
}

void put(const DraftHello& hello, v1::DraftWorkerMessage* wire) {
  v1::DraftHello& out = *wire->mutable_hello();
  out.set_worker_id(hello.worker_id);
  out.set_build_version(hello.build_version);
  out.set_vocabulary_hash(hello.vocabulary_hash);
  out.set_vocabulary_size(hello.vocabulary_size);
  out.set_max_sequences(hello.max_sequences);
  out.set_max_context(hello.max_context);
}

void put(const VocabularyPart& part, v1::DraftWorkerMessage* wire) {
  v1::VocabularyPart& out = *wire->mutable_vocabulary();
  out.set_first_id(part.first_id);
  out.set_last(part.last);
  for (const VocabularyToken& token : part.tokens) {
    v1::VocabularyToken& to = *out.add_tokens();
    to.set_present(token.present);
    to.set_special(token.special);
    to.set_control(token.control);
    to.set_content(token.content);
    to.set_bytes(token.bytes);
  }
}

void put(const ChunkMessages& message, v1::DraftWorkerMessage* wire) {
  v1::Drafts& out = *wire->mutable_drafts();
  for (const ChunkMessage& chunk : message.chunks) {
    v1::DraftChunk& to = *out.add_chunks();
    to.set_sequence(chunk.sequence);
    to.set_epoch(chunk.epoch);
    to.set_base_length(chunk.base_length);
    to.set_prefix_hash(chunk.prefix_hash);
    to.set_position(chunk.position);
    to.mutable_tokens()->Add(chunk.tokens.begin(), chunk.tokens.end());
    to.set_form(to_wire(chunk.form));
    to.mutable_law_sizes()->Add(chunk.law_sizes.begin(), chunk.law_sizes.end());
    to.mutable_law_tokens()->Add(chunk.law_tokens.begin(), chunk.law_tokens.end());
    to.mutable_law_weights()->Add(chunk.law_weights.begin(), chunk.law_weights.end());
    to.mutable_margins()->Add(chunk.margins.begin(), chunk.margins.end());
  }
}

void put(const DraftNack& nack, v1::DraftWorkerMessage* wire) {
  v1::DraftNack& out = *wire->mutable_nack();
  out.set_sequence(nack.sequence);
  out.set_epoch(nack.epoch);
  out.set_reason(to_wire(nack.reason));
  out.set_detail(nack.detail);
}

void put(const DraftPong& pong, v1::DraftWorkerMessage* wire) {
  v1::DraftPong& out = *wire->mutable_pong();
  out.set_number(pong.number);
  out.set_steps(pong.steps);
  out.set_rows(pong.rows);
  out.set_drafted(pong.drafted);
  out.set_open_sequences(pong.open_sequences);
}

absl::StatusOr<DraftHello> get(const v1::DraftHello& wire) {
  DraftHello hello{.worker_id = wire.worker_id(),
                   .build_version = wire.build_version(),
                   .vocabulary_hash = wire.vocabulary_hash()};
  RETURN_IF_ERROR(check_size("worker_id", hello.worker_id, Bounds::kMaxNameBytes));
  RETURN_IF_ERROR(check_size("build_version", hello.build_version, Bounds::kMaxNameBytes));
  RETURN_IF_ERROR(read("vocabulary_size", wire.vocabulary_size(), Bounds::kMaxVocabulary,
                       &hello.vocabulary_size));
  RETURN_IF_ERROR(
      read("max_sequences", wire.max_sequences(), Bounds::kMaxChunks, &hello.max_sequences));
  RETURN_IF_ERROR(read("max_context", wire.max_context(), Bounds::kMaxText, &hello.max_context));
  return hello;
}

absl::StatusOr<VocabularyPart> get(const v1::VocabularyPart& wire) {
  VocabularyPart part{.last = wire.last()};
  RETURN_IF_ERROR(read("first_id", wire.first_id(), Bounds::kMaxVocabulary, &part.first_id));
  RETURN_IF_ERROR(check_size("tokens", wire.tokens(), Bounds::kMaxPartTokens));
  for (const v1::VocabularyToken& token : wire.tokens()) {
    RETURN_IF_ERROR(check_size("content", token.content(), Bounds::kMaxTokenBytes));
    RETURN_IF_ERROR(check_size("bytes", token.bytes(), Bounds::kMaxTokenBytes));
    part.tokens.push_back({.present = token.present(),
                           .special = token.special(),
                           .control = token.control(),
                           .content = token.content(),
                           .bytes = token.bytes()});
  }
  return part;
}

absl::StatusOr<ChunkMessage> get(const v1::DraftChunk& wire) {
  ChunkMessage chunk{
      .sequence = wire.sequence(), .epoch = wire.epoch(), .prefix_hash = wire.prefix_hash()};
  RETURN_IF_ERROR(read("base_length", wire.base_length(), Bounds::kMaxText, &chunk.base_length));
  RETURN_IF_ERROR(read("position", wire.position(), Bounds::kMaxText, &chunk.position));
  RETURN_IF_ERROR(read_list("tokens", wire.tokens(), Bounds::kMaxWanted, &chunk.tokens));
  const int64_t entries = int64_t{Bounds::kMaxLawEntries} * wire.tokens_size();
  RETURN_IF_ERROR(read_list("law_sizes", wire.law_sizes(), Bounds::kMaxWanted, &chunk.law_sizes));
  RETURN_IF_ERROR(read_list("law_tokens", wire.law_tokens(), entries, &chunk.law_tokens));
  RETURN_IF_ERROR(read_list("law_weights", wire.law_weights(), entries, &chunk.law_weights));
  RETURN_IF_ERROR(read_list("margins", wire.margins(), Bounds::kMaxWanted, &chunk.margins));
  switch (wire.form()) {
    case v1::DRAFT_LAW_FORM_NONE:
      return chunk;
    case v1::DRAFT_LAW_FORM_DELTA:
      chunk.form = LawForm::kPointMass;
      return chunk;
    case v1::DRAFT_LAW_FORM_SPARSE:
      chunk.form = LawForm::kSparse;
      return chunk;
    default:
      return absl::InvalidArgumentError(absl::StrCat("form is ", wire.form(), ", not one known"));
  }
}

absl::StatusOr<ChunkMessages> get(const v1::Drafts& wire) {
  ChunkMessages message;
  RETURN_IF_ERROR(check_size("chunks", wire.chunks(), Bounds::kMaxChunks));
  message.chunks.reserve(static_cast<size_t>(wire.chunks_size()));
  for (const v1::DraftChunk& chunk : wire.chunks()) {
    auto read = get(chunk);
    // One without tokens is none that an honest worker sends: it costs its sequence, not the
    // stream.
    message.chunks.push_back(
        read.ok() ? *std::move(read)
                  : ChunkMessage{.sequence = chunk.sequence(), .epoch = chunk.epoch()});
  }
  return message;
}

absl::StatusOr<DraftNack> get(const v1::DraftNack& wire) {
  DraftNack nack{.sequence = wire.sequence(), .epoch = wire.epoch(), .detail = wire.detail()};
  RETURN_IF_ERROR(check_size("detail", nack.detail, 4096));
  if (wire.reason() == v1::DRAFT_NACK_REASON_FULL) nack.reason = NackReason::kFull;
  if (wire.reason() == v1::DRAFT_NACK_REASON_OUT_OF_STEP) nack.reason = NackReason::kOutOfStep;
  return nack;
}

DraftPong get(const v1::DraftPong& wire) {
  return {.number = wire.number(),
          .steps = wire.steps(),
          .rows = wire.rows(),
          .drafted = wire.drafted(),
          .open_sequences = wire.open_sequences()};
}

}  // namespace

void to_wire(const DraftWorkerSays& message, v1::DraftWorkerMessage* wire) {
  std::visit([wire](const auto& what) { put(what, wire); }, message);
}

absl::StatusOr<DraftWorkerSays> from_wire(const v1::DraftWorkerMessage& wire) {
  switch (wire.kind_case()) {
    case v1::DraftWorkerMessage::kHello:
      return get(wire.hello());
    case v1::DraftWorkerMessage::kVocabulary:
      return get(wire.vocabulary());
    case v1::DraftWorkerMessage::kDrafts:
      return get(wire.drafts());
    case v1::DraftWorkerMessage::kNack:
      return get(wire.nack());
    case v1::DraftWorkerMessage::kPong:
      return get(wire.pong());
    case v1::DraftWorkerMessage::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("message: of no kind that is known");
}

}  // namespace brigade::runtime
