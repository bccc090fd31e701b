#include "runtime/speculative/draft_wire.h"

#include <limits>
#include <utility>

#include "runtime/speculative/wire_checks.h"

namespace brigade::runtime {
namespace {

using wire::check_size;
using wire::out_of;
using wire::read;
using wire::read_list;
using Bounds = DraftBounds;

v1::DraftRule to_wire(AcceptRule rule) {
  switch (rule) {
    case AcceptRule::kCoupled:
      return v1::DRAFT_RULE_COUPLED;
    case AcceptRule::kRejection:
      return v1::DRAFT_RULE_REJECTION;
    case AcceptRule::kGreedy:
      break;
  }
  return v1::DRAFT_RULE_GREEDY;
}

void put(const CoordinatorHello& hello, v1::DraftCoordinatorMessage* wire) {
  v1::CoordinatorHello& out = *wire->mutable_hello();
  out.set_build_version(hello.build_version);
  out.set_vocabulary_hash(hello.vocabulary_hash);
  out.set_vocabulary_size(hello.vocabulary_size);
  out.set_ping_interval_ms(hello.ping_interval_ms);
  out.set_lost_after_ms(hello.lost_after_ms);
}

void put(const VocabularyWanted&, v1::DraftCoordinatorMessage* wire) {
  wire->mutable_vocabulary_wanted();
}

void put(const DraftPing& ping, v1::DraftCoordinatorMessage* wire) {
  wire->mutable_ping()->set_number(ping.number);
}

void put_policy(const OpenDraft& open, v1::DraftPolicy* out) {
  const SamplingParams& sampling = open.sampling;
  out->set_temperature(sampling.temperature);
  out->set_top_k(sampling.top_k);
  out->set_top_p(sampling.top_p);
  out->set_min_p(sampling.min_p);
  out->set_repetition_penalty(sampling.repetition_penalty);
  out->set_presence_penalty(sampling.presence_penalty);
  out->set_frequency_penalty(sampling.frequency_penalty);
  for (const auto& [token, value] : sampling.logit_bias) {
    out->add_bias_tokens(token);
    out->add_bias_values(value);
  }
  out->mutable_allowed_tokens()->Add(sampling.allowed_tokens.begin(),
                                     sampling.allowed_tokens.end());
  out->mutable_banned_tokens()->Add(sampling.banned_tokens.begin(), sampling.banned_tokens.end());
  out->set_seed(sampling.seed);
  out->set_sample_index(open.sample_index);
}

void put(const OpenDraft& open, v1::DraftCommand* command) {
  v1::OpenDraft& out = *command->mutable_open();
  out.set_sequence(open.sequence);
  out.set_epoch(open.epoch);
  out.mutable_tokens()->Add(open.tokens.begin(), open.tokens.end());
  out.set_prompt_length(open.prompt_length);
  out.set_wanted(open.wanted);
  out.set_max_length(open.max_length);
  out.set_rule(to_wire(open.rule));
  put_policy(open, out.mutable_policy());
  out.mutable_end_tokens()->Add(open.end_tokens.begin(), open.end_tokens.end());
  out.set_min_tokens(open.min_tokens);
  out.set_law_entries(open.law_entries);
}

void put(const CommitDraft& commit, v1::DraftCommand* command) {
  v1::CommitDraft& out = *command->mutable_commit();
  out.set_sequence(commit.sequence);
  out.set_epoch(commit.epoch);
  out.set_base_length(commit.base_length);
  out.mutable_tokens()->Add(commit.tokens.begin(), commit.tokens.end());
  out.set_wanted(commit.wanted);
}

void put(const CloseDraft& close, v1::DraftCommand* command) {
  command->mutable_close()->set_sequence(close.sequence);
  command->mutable_close()->set_epoch(close.epoch);
}

void put(const DraftCommands& message, v1::DraftCoordinatorMessage* wire) {
  v1::DraftCommands& out = *wire->mutable_commands();
  for (const DraftCommand& command : message.commands) {
    v1::DraftCommand* to = out.add_commands();
    std::visit([to](const auto& what) { put(what, to); }, command);
  }
}

absl::StatusOr<CoordinatorHello> get(const v1::CoordinatorHello& wire) {
  CoordinatorHello hello{.build_version = wire.build_version(),
                         .vocabulary_hash = wire.vocabulary_hash(),
                         .ping_interval_ms = wire.ping_interval_ms(),
                         .lost_after_ms = wire.lost_after_ms()};
  RETURN_IF_ERROR(check_size("build_version", hello.build_version, Bounds::kMaxNameBytes));
  RETURN_IF_ERROR(read("vocabulary_size", wire.vocabulary_size(), Bounds::kMaxVocabulary,
                       &hello.vocabulary_size));
  constexpr int64_t kDay = 24 * 3600 * 1000;
  if (hello.ping_interval_ms < 1 || hello.ping_interval_ms > kDay) {
    return out_of("ping_interval_ms", hello.ping_interval_ms, 1, kDay);
  }
  if (hello.lost_after_ms < 2 * hello.ping_interval_ms || hello.lost_after_ms > kDay) {
    return out_of("lost_after_ms", hello.lost_after_ms, 2 * hello.ping_interval_ms, kDay);
  }
  return hello;
}

absl::Status read_policy(const v1::DraftPolicy& wire, OpenDraft* open) {
  SamplingParams& sampling = open->sampling;
  sampling.temperature = wire.temperature();
  sampling.top_p = wire.top_p();
  sampling.min_p = wire.min_p();
  sampling.repetition_penalty = wire.repetition_penalty();
  sampling.presence_penalty = wire.presence_penalty();
  sampling.frequency_penalty = wire.frequency_penalty();
  sampling.seed = wire.seed();
  RETURN_IF_ERROR(read("top_k", wire.top_k(), std::numeric_limits<int>::max(), &sampling.top_k));
  RETURN_IF_ERROR(read("sample_index", wire.sample_index(), 1 << 20, &open->sample_index));
  RETURN_IF_ERROR(check_size("bias_tokens", wire.bias_tokens(), Bounds::kMaxListEntries));
  if (wire.bias_tokens_size() != wire.bias_values_size()) {
    return absl::InvalidArgumentError("bias_tokens and bias_values differ in length");
  }
  for (int i = 0; i < wire.bias_tokens_size(); ++i) {
    sampling.logit_bias.emplace_back(wire.bias_tokens(i), wire.bias_values(i));
  }
  RETURN_IF_ERROR(read_list("allowed_tokens", wire.allowed_tokens(), Bounds::kMaxListEntries,
                            &sampling.allowed_tokens));
  return read_list("banned_tokens", wire.banned_tokens(), Bounds::kMaxListEntries,
                   &sampling.banned_tokens);
}

absl::Status read_rule(v1::DraftRule wire, AcceptRule* rule) {
  switch (wire) {
    case v1::DRAFT_RULE_GREEDY:
      *rule = AcceptRule::kGreedy;
      return absl::OkStatus();
    case v1::DRAFT_RULE_COUPLED:
      *rule = AcceptRule::kCoupled;
      return absl::OkStatus();
    case v1::DRAFT_RULE_REJECTION:
      *rule = AcceptRule::kRejection;
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(absl::StrCat("rule is ", wire, ", not one known"));
  }
}

absl::StatusOr<DraftCommand> get(const v1::OpenDraft& wire) {
  OpenDraft open{.sequence = wire.sequence(), .epoch = wire.epoch()};
  RETURN_IF_ERROR(read_list("tokens", wire.tokens(), Bounds::kMaxText, &open.tokens));
  RETURN_IF_ERROR(
      read("prompt_length", wire.prompt_length(), Bounds::kMaxText, &open.prompt_length));
  RETURN_IF_ERROR(read("wanted", wire.wanted(), Bounds::kMaxWanted, &open.wanted));
  RETURN_IF_ERROR(read("max_length", wire.max_length(), Bounds::kMaxText, &open.max_length));
  RETURN_IF_ERROR(read_rule(wire.rule(), &open.rule));
  RETURN_IF_ERROR(read_policy(wire.policy(), &open));
  RETURN_IF_ERROR(
      read_list("end_tokens", wire.end_tokens(), Bounds::kMaxListEntries, &open.end_tokens));
  RETURN_IF_ERROR(read("min_tokens", wire.min_tokens(), Bounds::kMaxText, &open.min_tokens));
  RETURN_IF_ERROR(
      read("law_entries", wire.law_entries(), Bounds::kMaxLawEntries, &open.law_entries));
  return DraftCommand(std::move(open));
}

absl::StatusOr<DraftCommand> get(const v1::CommitDraft& wire) {
  CommitDraft commit{.sequence = wire.sequence(), .epoch = wire.epoch()};
  RETURN_IF_ERROR(read("base_length", wire.base_length(), Bounds::kMaxText, &commit.base_length));
  RETURN_IF_ERROR(read_list("tokens", wire.tokens(), Bounds::kMaxText, &commit.tokens));
  RETURN_IF_ERROR(read("wanted", wire.wanted(), Bounds::kMaxWanted, &commit.wanted));
  return DraftCommand(std::move(commit));
}

absl::StatusOr<DraftCommands> get(const v1::DraftCommands& wire) {
  DraftCommands message;
  for (const v1::DraftCommand& command : wire.commands()) {
    switch (command.kind_case()) {
      case v1::DraftCommand::kOpen: {
        ASSIGN_OR_RETURN(message.commands.emplace_back(), get(command.open()));
        break;
      }
      case v1::DraftCommand::kCommit: {
        ASSIGN_OR_RETURN(message.commands.emplace_back(), get(command.commit()));
        break;
      }
      case v1::DraftCommand::kClose:
        message.commands.push_back(CloseDraft{command.close().sequence(), command.close().epoch()});
        break;
      case v1::DraftCommand::KIND_NOT_SET:
        return absl::InvalidArgumentError("command: of no kind that is known");
    }
  }
  return message;
}

}  // namespace

void to_wire(const DraftCoordinatorSays& message, v1::DraftCoordinatorMessage* wire) {
  std::visit([wire](const auto& what) { put(what, wire); }, message);
}

absl::StatusOr<DraftCoordinatorSays> from_wire(const v1::DraftCoordinatorMessage& wire) {
  switch (wire.kind_case()) {
    case v1::DraftCoordinatorMessage::kHello:
      return get(wire.hello());
    case v1::DraftCoordinatorMessage::kVocabularyWanted:
      return VocabularyWanted{};
    case v1::DraftCoordinatorMessage::kCommands:
      return get(wire.commands());
    case v1::DraftCoordinatorMessage::kPing:
      return DraftPing{wire.ping().number()};
    case v1::DraftCoordinatorMessage::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("message: of no kind that is known");
}

}  // namespace brigade::runtime
