#include "runtime/cluster/cluster_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxIdBytes = 256;

}  // namespace

ClusterControl::ClusterControl(const ClusterSettings& settings, expert_parallel::WorkerLinks& links,
                               ViewBoard& board, LocalExpertsHome& home, absl::Time now)
    : settings_(settings),
      links_(links),
      board_(board),
      home_(home),
      membership_(settings.membership()),
      checksums_(size_t(settings.geometry.moe_layers) * settings.geometry.experts),
      now_(now),
      join_deadline_(now + settings.join_deadline),
      next_beat_(now),
      promised_(absl::InfiniteFuture()),
      blame_from_(now) {}

// Calls into the progress thread take microseconds; this one waits for a real thread, so its time
// is the clock's and not that of the event.
absl::Time ClusterControl::link_deadline() { return absl::Now() + absl::Seconds(10); }

void ClusterControl::log(const std::string& line) const {
  if (settings_.log) settings_.log(line);
}

void ClusterControl::opened(uint64_t session, std::shared_ptr<ControlSession> stream,
                            absl::Time now) {
  sessions_[session] = {.stream = std::move(stream), .opened_at = now, .last_heard = now};
}

void ClusterControl::said(uint64_t id, WorkerSays message, absl::Time now) {
  now_ = now;
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second.ending) return;
  Session& session = found->second;
  session.last_heard = now;
  const bool first = std::holds_alternative<Registration>(message);
  const bool may_be_first = !session.registered && !session.contender;
  if (first ? !may_be_first : !session.registered) {
    end_session(session, absl::InvalidArgumentError(first ? "registered twice on one stream"
                                                          : "the first message must register"));
  } else {
    std::visit([&](auto& m) { on(id, session, std::move(m)); }, message);
  }
  if (session.registered && slot(session.rank).session == id) refuse_contenders(session.rank, now);
  settle(now);
  if (const auto still = sessions_.find(id); still != sessions_.end() && !still->second.ending) {
    still->second.stream->handled();
  }
}

void ClusterControl::ended(uint64_t id, const absl::Status& why, absl::Time now) {
  now_ = now;
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const Session session = std::move(found->second);
  sessions_.erase(found);
  if (!session.registered || slot(session.rank).session != id) return;
  slot(session.rank).session = 0;
  if (!stopping_) suspect(session.rank, Evidence::kControlStreamLost, std::string(why.message()));
  settle(now);
}

void ClusterControl::link_lost(Rank rank, uint64_t incarnation, const absl::Status& why,
                               absl::Time now) {
  now_ = now;
  if (slot(rank).incarnation != incarnation || stopping_) return;
  suspect(rank, Evidence::kTransportError, std::string(why.message()));
  settle(now);
}

void ClusterControl::local_loaded(std::vector<ExpertKey> keys, const absl::Status& status,
                                  absl::Time now) {
  constexpr absl::Duration kRetry = absl::Seconds(2);
  now_ = now;
  if (!status.ok()) {
    log(absl::StrCat("the coordinator cannot load ", keys.size(),
                     " experts and tries again: ", std::string(status.message())));
    local_orders_.push_back({Order::Kind::kLoad, std::move(keys), 0, now + kRetry});
  } else {
    CHECK(submit(ExpertsLoaded{kCoordinator, 0, std::move(keys)}).ok());
  }
  settle(now);
}

void ClusterControl::on(uint64_t id, Session& session, Registration message) {
  absl::Status status = check_registration(message);
  if (status.ok()) {
    if (const Slot* holder = other_holder(message)) return contend(session, message, *holder);
    status = register_worker(id, session, message);
  }
  if (!status.ok()) refuse(session, status);
}

void ClusterControl::refuse(Session& session, const absl::Status& status) {
  ++refused_;
  log(absl::StrCat("refused: ", std::string(status.message())));
  end_session(session, status);
}

absl::Status ClusterControl::check_registration(const Registration& message) const {
  if (stopping_) return absl::UnavailableError("the coordinator is stopping");
  if (message.worker_id.empty() || message.worker_id.size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker_id must have from 1 to ", kMaxIdBytes, " bytes"));
  }
  if (message.incarnation == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", message.worker_id, ": the incarnation must not be 0"));
  }
  RETURN_IF_ERROR(check_identity(message.worker_id,
                                 {message.build_version, message.model_fingerprint,
                                  message.numerics_id, message.numerics_text},
                                 settings_.identity));
  return check_data_plane(message.worker_id, message.data_planes, settings_.data_plane);
}

absl::Status ClusterControl::register_worker(uint64_t id, Session& session,
                                             const Registration& message) {
  joining_session_ = id;
  WorkerJoined event{message.worker_id, message.incarnation};
  if (const std::optional<int64_t> limit = message.max_experts()) event.max_experts = *limit;
  const absl::Status joined = submit(event);
  joining_session_ = 0;
  RETURN_IF_ERROR(joined);
  if (!session.registered) {
    return absl::AlreadyExistsError(absl::StrCat("worker ", message.worker_id, ", incarnation ",
                                                 message.incarnation, " is registered already"));
  }
  Slot& taken = slot(session.rank);
  taken.about = message;
  taken.since = now_;
  ++joined_;
  log(absl::StrCat("worker ", message.worker_id, " on ", message.host, " (", message.device,
                   ") joined as rank ", session.rank));
  return absl::OkStatus();
}

void ClusterControl::on(uint64_t, Session& session, LinkOffer message) {
  Slot& rank = slot(session.rank);
  if (rank.connected) {
    return suspect(session.rank, Evidence::kWrongData, "offered a second data link");
  }
  const absl::Status status = links_.connect(session.rank, message.data_address, link_deadline());
  if (!status.ok()) {
    return suspect(session.rank, Evidence::kTransportError, std::string(status.message()));
  }
  rank.connected = true;
  session.stream->send(LinkUp{});
  // A worker that comes back keeps what it held until its first load says what is wanted.
  if (membership_.started() && rank.orders.empty()) {
    rank.orders.push_back({Order::Kind::kLoad, {}});
  }
}

// Keys that exist; a checksum that differs from another holder's means other bytes.
absl::Status ClusterControl::check_report(const LoadReport& report) {
  const expert_parallel::ExpertGeometry& geometry = settings_.geometry;
  if (report.checksums.size() != report.keys.size()) {
    return absl::InvalidArgumentError(absl::StrCat("reports ", report.keys.size(), " experts with ",
                                                   report.checksums.size(), " checksums"));
  }
  for (size_t i = 0; i < report.keys.size(); ++i) {
    const ExpertKey& key = report.keys[i];
    if (key.moe_layer < 0 || key.moe_layer >= geometry.moe_layers || key.expert < 0 ||
        key.expert >= geometry.experts) {
      return absl::InvalidArgumentError(absl::StrCat("reports expert ", key.expert,
                                                     " of MoE layer ", key.moe_layer,
                                                     ", which does not exist"));
    }
    uint64_t& known = checksums_[size_t(key.moe_layer) * geometry.experts + key.expert];
    if (known == 0) known = report.checksums[i];
    if (known != report.checksums[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expert ", key.expert, " of MoE layer ", key.moe_layer, " has checksum ",
          absl::Hex(report.checksums[i]), ", it had ", absl::Hex(known), " elsewhere"));
    }
  }
  return absl::OkStatus();
}

void ClusterControl::on(uint64_t, Session& session, LoadReport message) {
  if (const absl::Status status = check_report(message); !status.ok()) {
    return suspect(session.rank, Evidence::kWrongData, std::string(status.message()));
  }
  Slot& rank = slot(session.rank);
  rank.loading.erase(message.command);
  rank.resident_bytes = message.resident_bytes;
  CHECK(submit(ExpertsLoaded{session.rank, rank.incarnation, std::move(message.keys)}).ok());
}

void ClusterControl::on(uint64_t, Session& session, LoadFailure message) {
  Slot& rank = slot(session.rank);
  auto asked = rank.loading.extract(message.command);
  if (asked.empty()) {
    return suspect(
        session.rank, Evidence::kWrongData,
        absl::StrCat("could not carry out load ", message.command, ", which it was not asked for"));
  }
  rank.load_failure =
      absl::StrCat("could not load ", asked.mapped().size(), " experts: ", message.reason);
  log(absl::StrCat("rank ", session.rank, " (", rank.about.worker_id,
                   ") stays with what it has: ", rank.load_failure));
  CHECK(submit(ExpertsNotLoaded{session.rank, rank.incarnation, std::move(asked.mapped())}).ok());
}

void ClusterControl::on(uint64_t, Session& session, WorkerBeat message) {
  slot(session.rank).resident_bytes = message.resident_bytes;
  slot(session.rank).beat = message;
}

void ClusterControl::on(uint64_t, Session& session, LeaveWish message) {
  log(absl::StrCat("rank ", session.rank, " wants to leave: ", message.reason));
  CHECK(submit(WorkerLeaving{session.rank, slot(session.rank).incarnation}).ok());
}

void ClusterControl::end_session(Session& session, const absl::Status& status) {
  if (std::exchange(session.ending, true)) return;
  session.stream->end(status);
}

ClusterControl::Session* ClusterControl::session_of(Rank rank) {
  const auto found = sessions_.find(slot(rank).session);
  return found == sessions_.end() ? nullptr : &found->second;
}

void ClusterControl::suspect(Rank rank, Evidence evidence, const std::string& detail) {
  if (slot(rank).dismissing) return finish_dismissal(rank);
  CHECK(submit(WorkerSuspected{rank, slot(rank).incarnation, evidence, detail}).ok());
}

}  // namespace brigade::runtime
