#include "runtime/cluster/cluster_settings.h"

#include <sys/random.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace brigade::runtime {

absl::Status check_identity(const std::string& worker_id, const ServingIdentity& worker,
                            const ServingIdentity& coordinator) {
  const auto refuse = [&](const char* what, const std::string& theirs, const std::string& ours) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker_id, " has ", what, " ",
                                                      theirs, ", the coordinator has ", ours));
  };
  if (worker.build_version != coordinator.build_version) {
    return refuse("version", worker.build_version, coordinator.build_version);
  }
  if (worker.model_fingerprint != coordinator.model_fingerprint) {
    return refuse("a model with fingerprint", worker.model_fingerprint,
                  coordinator.model_fingerprint);
  }
  if (worker.numerics_id != coordinator.numerics_id) {
    const auto text = [](const ServingIdentity& identity) {
      return absl::StrCat(absl::Hex(identity.numerics_id, absl::kZeroPad16), " (",
                          identity.numerics_text, ")");
    };
    return refuse("numerics", text(worker), text(coordinator));
  }
  return absl::OkStatus();
}

absl::Status check_data_plane(const std::string& worker_id, const std::string& offered,
                              const std::string& plane) {
  const std::string list = offered.empty() ? "host" : offered;
  const std::vector<std::string> names = absl::StrSplit(list, ',');
  if (std::find(names.begin(), names.end(), plane) != names.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", worker_id, " can use the data plane ", list,
                   ", the coordinator uses ", plane, ": set --data-plane on one of them"));
}

absl::StatusOr<DrawnSession> draw_session() {
  struct {
    uint64_t id, incarnation;
    std::array<uint8_t, 16> secret;
  } drawn;
  // Up to 256 bytes come at once and whole, once the kernel's source is seeded.
  if (getrandom(&drawn, sizeof(drawn), 0) != static_cast<ssize_t>(sizeof(drawn))) {
    return absl::InternalError("the kernel gives no random bytes for the session secret");
  }
  DrawnSession result;
  result.session.coordinator_id = drawn.id | 1;  // never 0
  result.session.secret = drawn.secret;
  result.incarnation = drawn.incarnation | 1;
  return result;
}

}  // namespace brigade::runtime
