#include "runtime/cluster/control_wire.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

using Ranges = google::protobuf::RepeatedPtrField<v1::ExpertRange>;

absl::StatusOr<int> small(const char* what, int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<int>::max()) return static_cast<int>(value);
  return absl::InvalidArgumentError(absl::StrCat(what, " ", value, " does not exist"));
}

absl::StatusOr<std::vector<ExpertKey>> keys_of(const Ranges& ranges) {
  std::vector<ExpertKey> keys;
  for (const v1::ExpertRange& range : ranges) {
    ASSIGN_OR_RETURN(const int layer, small("MoE layer", range.moe_layer()));
    for (const int64_t id : range.experts()) {
      ASSIGN_OR_RETURN(const int expert, small("expert", id));
      keys.push_back({layer, expert});
    }
  }
  return keys;
}

// Keys come grouped by layer.
void set_ranges(const std::vector<ExpertKey>& keys, Ranges* ranges) {
  for (const ExpertKey& key : keys) {
    if (ranges->empty() || ranges->rbegin()->moe_layer() != key.moe_layer) {
      ranges->Add()->set_moe_layer(key.moe_layer);
    }
    ranges->rbegin()->add_experts(key.expert);
  }
}

Registration registration_of(const v1::Register& message) {
  return {.worker_id = message.worker_id(),
          .incarnation = message.incarnation(),
          .build_version = message.build_version(),
          .model_fingerprint = message.model_fingerprint(),
          .numerics_id = message.numerics_id(),
          .numerics_text = message.numerics_text(),
          .host = message.host(),
          .boot_id = message.boot_id(),
          .network_namespace = message.network_namespace(),
          .device = message.device(),
          .memory_bytes = message.memory_bytes(),
          .expert_bytes = message.expert_bytes(),
          .threads = message.threads(),
          .data_planes = message.data_planes(),
          .process = message.process()};
}

absl::StatusOr<WorkerSays> report_of(const v1::ExpertsLoaded& message) {
  LoadReport report{.command = message.command(), .resident_bytes = message.resident_bytes()};
  ASSIGN_OR_RETURN(report.keys, keys_of(message.experts()));
  report.checksums.assign(message.checksums().begin(), message.checksums().end());
  return report;
}

WorkerBeat beat_of(const v1::WorkerHeartbeat& message) {
  return {.resident_bytes = message.resident_bytes(),
          .reserved_bytes = message.reserved_bytes(),
          .frames = message.frames(),
          .rows = message.rows(),
          .terms = message.terms(),
          .refused_frames = message.refused_frames(),
          .declined_terms = message.declined_terms()};
}

void write(const Welcome& from, v1::CoordinatorMessage* to) {
  v1::Registered* message = to->mutable_registered();
  message->set_rank(from.rank);
  message->set_coordinator_id(from.coordinator_id);
  message->set_session_secret(from.secret.data(), from.secret.size());
  message->set_coordinator_incarnation(from.coordinator_incarnation);
  message->set_data_address(from.data_address);
  message->set_heartbeat_interval_ms(from.heartbeat_interval_ms);
  message->set_lost_after_ms(from.lost_after_ms);
  message->set_num_ranks(from.num_ranks);
  message->set_microbatches(from.microbatches);
  message->set_max_rows(from.max_rows);
  message->set_data_plane(from.data_plane);
}

void write(const LinkUp&, v1::CoordinatorMessage* to) { to->mutable_link_connected(); }

void write(const LoadOrder& from, v1::CoordinatorMessage* to) {
  to->mutable_load()->set_command(from.command);
  set_ranges(from.keys, to->mutable_load()->mutable_experts());
}

void write(const ReleaseOrder& from, v1::CoordinatorMessage* to) {
  to->mutable_release()->set_command(from.command);
  set_ranges(from.keys, to->mutable_release()->mutable_experts());
}

void write(const CoordinatorBeat& from, v1::CoordinatorMessage* to) {
  to->mutable_heartbeat()->set_sequence(from.sequence);
}

void write(const Dismissal& from, v1::CoordinatorMessage* to) {
  to->mutable_dismissed()->set_reason(from.reason);
}

}  // namespace

absl::StatusOr<WorkerSays> from_wire(const v1::WorkerMessage& message) {
  switch (message.kind_case()) {
    case v1::WorkerMessage::kRegister:
      return registration_of(message.register_());
    case v1::WorkerMessage::kLinkReady:
      return LinkOffer{message.link_ready().data_address()};
    case v1::WorkerMessage::kLoaded:
      return report_of(message.loaded());
    case v1::WorkerMessage::kLoadFailed:
      return LoadFailure{message.load_failed().command(), message.load_failed().reason()};
    case v1::WorkerMessage::kHeartbeat:
      return beat_of(message.heartbeat());
    case v1::WorkerMessage::kLeaving:
      return LeaveWish{message.leaving().reason()};
    case v1::WorkerMessage::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message of an unknown kind");
}

v1::CoordinatorMessage to_wire(const CoordinatorSays& message) {
  v1::CoordinatorMessage result;
  std::visit([&result](const auto& m) { write(m, &result); }, message);
  return result;
}

}  // namespace brigade::runtime
