#include "runtime/worker/control_wire.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "brigade/v1/cluster.pb.h"
#include "kernels/core/status.h"

namespace brigade::runtime::worker {
namespace {

using WireRanges = google::protobuf::RepeatedPtrField<v1::ExpertRange>;

constexpr int64_t kMaxMilliseconds = 1000LL * 3600 * 24;

absl::StatusOr<int> narrow(const char* field, int64_t value) {
  if (value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max())
    return static_cast<int>(value);
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", out of range"));
}

absl::StatusOr<ExpertRanges> ranges_from(const WireRanges& wire) {
  ExpertRanges ranges;
  for (const v1::ExpertRange& from : wire) {
    ExpertRange range;
    ASSIGN_OR_RETURN(range.moe_layer, narrow("experts.moe_layer", from.moe_layer()));
    for (const int64_t number : from.experts()) {
      ASSIGN_OR_RETURN(const int expert, narrow("experts.experts", number));
      range.experts.push_back(expert);
    }
    ranges.push_back(std::move(range));
  }
  return ranges;
}

absl::StatusOr<CoordinatorMessage> registered_from(const v1::Registered& wire) {
  Registered registered;
  ASSIGN_OR_RETURN(registered.rank, narrow("registered.rank", wire.rank()));
  ASSIGN_OR_RETURN(registered.num_ranks, narrow("registered.num_ranks", wire.num_ranks()));
  ASSIGN_OR_RETURN(registered.microbatches, narrow("registered.microbatches", wire.microbatches()));
  ASSIGN_OR_RETURN(registered.max_rows, narrow("registered.max_rows", wire.max_rows()));
  registered.coordinator_id = wire.coordinator_id();
  registered.coordinator_incarnation = wire.coordinator_incarnation();
  registered.data_address = wire.data_address();
  if (!wire.data_plane().empty()) registered.data_plane = wire.data_plane();
  if (wire.session_secret().size() != registered.session_secret.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "registered.session_secret has ", wire.session_secret().size(), " bytes, must have 16"));
  }
  std::copy(wire.session_secret().begin(), wire.session_secret().end(),
            registered.session_secret.begin());
  const auto duration = [](int64_t ms) {
    return absl::Milliseconds(std::clamp<int64_t>(ms, 0, kMaxMilliseconds));
  };
  registered.heartbeat_interval = duration(wire.heartbeat_interval_ms());
  registered.lost_after = duration(wire.lost_after_ms());
  return registered;
}

void fill(const Registration& from, v1::WorkerMessage* wire) {
  v1::Register& to = *wire->mutable_register_();
  to.set_worker_id(from.worker_id);
  to.set_incarnation(from.incarnation);
  to.set_build_version(from.build_version);
  to.set_model_fingerprint(from.model_fingerprint);
  to.set_numerics_id(from.numerics_id);
  to.set_numerics_text(from.numerics_text);
  to.set_host(from.host);
  to.set_boot_id(from.boot_id);
  to.set_network_namespace(from.network_namespace);
  to.set_device(from.device);
  to.set_memory_bytes(from.memory_bytes);
  to.set_threads(from.threads);
  to.set_data_planes(from.data_planes);
  to.set_expert_bytes(from.expert_bytes);
  to.set_process(from.process);
}
void fill(const LinkReady& from, v1::WorkerMessage* wire) {
  wire->mutable_link_ready()->set_data_address(from.data_address);
}
void fill(const ExpertsLoaded& from, v1::WorkerMessage* wire) {
  v1::ExpertsLoaded& to = *wire->mutable_loaded();
  to.set_command(from.command);
  for (const ExpertRange& range : from.experts) {
    v1::ExpertRange& experts = *to.add_experts();
    experts.set_moe_layer(range.moe_layer);
    for (const int expert : range.experts) experts.add_experts(expert);
  }
  to.mutable_checksums()->Add(from.checksums.begin(), from.checksums.end());
  to.set_resident_bytes(from.resident_bytes);
}
void fill(const LoadFailed& from, v1::WorkerMessage* wire) {
  wire->mutable_load_failed()->set_command(from.command);
  wire->mutable_load_failed()->set_reason(from.reason);
}
void fill(const WorkerHeartbeat& from, v1::WorkerMessage* wire) {
  v1::WorkerHeartbeat& to = *wire->mutable_heartbeat();
  to.set_sequence(from.sequence);
  to.set_resident_bytes(from.resident_bytes);
  to.set_frames(from.frames);
  to.set_rows(from.rows);
  to.set_terms(from.terms);
  to.set_refused_frames(from.refused_frames);
  to.set_declined_terms(from.declined_terms);
  to.set_reserved_bytes(from.reserved_bytes);
}
void fill(const Leaving& from, v1::WorkerMessage* wire) {
  wire->mutable_leaving()->set_reason(from.reason);
}

}  // namespace

void to_wire(const WorkerMessage& message, v1::WorkerMessage* wire) {
  std::visit([wire](const auto& kind) { fill(kind, wire); }, message);
}

absl::StatusOr<CoordinatorMessage> from_wire(const v1::CoordinatorMessage& wire) {
  switch (wire.kind_case()) {
    case v1::CoordinatorMessage::kRegistered:
      return registered_from(wire.registered());
    case v1::CoordinatorMessage::kLinkConnected:
      return LinkConnected{};
    case v1::CoordinatorMessage::kLoad: {
      ASSIGN_OR_RETURN(ExpertRanges experts, ranges_from(wire.load().experts()));
      return LoadExperts{wire.load().command(), std::move(experts)};
    }
    case v1::CoordinatorMessage::kRelease: {
      ASSIGN_OR_RETURN(ExpertRanges experts, ranges_from(wire.release().experts()));
      return ReleaseExperts{wire.release().command(), std::move(experts)};
    }
    case v1::CoordinatorMessage::kHeartbeat:
      return CoordinatorHeartbeat{};
    case v1::CoordinatorMessage::kDismissed:
      return Dismissed{wire.dismissed().reason()};
    case v1::CoordinatorMessage::KIND_NOT_SET:
      break;
  }
  return absl::UnimplementedError(
      "the coordinator sent a message of a kind this version does not "
      "know");
}

}  // namespace brigade::runtime::worker
