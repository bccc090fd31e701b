// ClusterControl, third part: deadlines, heartbeats, and what status pages say.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "runtime/cluster/cluster_control.h"

namespace brigade::runtime {
namespace {

// From a stream's start to its registration, and from there to its data link.
constexpr absl::Duration kHandshakeLimit = absl::Seconds(10);
// Orders that wait for steps to end are looked at this often.
constexpr absl::Duration kOrderInterval = absl::Milliseconds(20);

const char* state_name(Membership::WorkerState state, bool connected) {
  switch (state) {
    case Membership::WorkerState::kActive:
      return connected ? "active" : "joining";
    case Membership::WorkerState::kLeaving:
      return "leaving";
    default:
      return "lost";
  }
}

}  // namespace

absl::Time ClusterControl::tick(absl::Time now) {
  now_ = now;
  // A coordinator that was itself asleep heard nobody in that time, and blames nobody for it.
  if (now - promised_ > settings_.lost_after / 2) {
    for (auto& [id, session] : sessions_) session.last_heard = std::max(session.last_heard, now);
    for (auto& [rank, about] : slots_) about.admitted_at = std::max(about.admitted_at, now);
    blame_from_ = now;
  }
  if (now >= join_deadline_ && !stopping_) {
    join_deadline_ = absl::InfiniteFuture();
    if (!membership_.started()) {
      log(absl::StrCat("the join deadline is over: starting with ", membership_.active_workers(),
                       " of ", settings_.expected_workers, " workers"));
    }
    CHECK(submit(JoinDeadlinePassed{}).ok());
  }
  if (!stopping_) {
    watch_sessions(now);
    watch_replies(now);
  }
  if (now >= next_beat_) {
    ++beat_;
    for (auto& [id, session] : sessions_) {
      const bool listens = session.registered || session.contender;
      if (listens && !session.ending) session.stream->send(CoordinatorBeat{beat_});
    }
    next_beat_ = now + settings_.heartbeat;
  }
  settle(now);
  const bool waiting = !local_orders_.empty() ||
                       std::any_of(slots_.begin(), slots_.end(),
                                   [](const auto& entry) { return !entry.second.orders.empty(); });
  promised_ = std::min(next_beat_, join_deadline_);
  if (waiting) promised_ = std::min(promised_, now + kOrderInterval);
  return promised_;
}

void ClusterControl::watch_sessions(absl::Time now) {
  for (auto& [id, session] : sessions_) {
    if (session.ending) continue;
    if (session.contender) continue;  // it waits for the holder's next word, or its end
    if (!session.registered) {
      if (now - session.opened_at > kHandshakeLimit) {
        end_session(session, absl::DeadlineExceededError("no registration came in time"));
      }
      continue;
    }
    const Slot& about = slot(session.rank);
    if (about.session != id) continue;
    if (const absl::Duration silence = now - session.last_heard; silence > settings_.lost_after) {
      suspect(session.rank, Evidence::kHeartbeatMissed,
              absl::StrCat("silent for ", absl::FormatDuration(silence)));
    } else if (!about.connected && now - about.admitted_at > kHandshakeLimit) {
      suspect(session.rank, Evidence::kTransportError, "it offered no data link in time");
    }
  }
}

void ClusterControl::watch_replies(absl::Time now) {
  if (now - blame_from_ <= settings_.reply_deadline) return;
  for (const Rank rank : board_.debtors(now - settings_.reply_deadline)) {
    if (!slot(rank).connected) continue;
    suspect(rank, Evidence::kReplyOverdue,
            absl::StrCat("owes answers for more than ",
                         absl::FormatDuration(settings_.reply_deadline)));
  }
}

void ClusterControl::dismiss_all(const std::string& reason, absl::Time now) {
  now_ = now;
  stopping_ = true;
  for (auto& [id, session] : sessions_) {
    if (session.ending) continue;
    if (session.registered) session.stream->send(Dismissal{reason});
    end_session(session, absl::OkStatus());
  }
}

std::string ClusterControl::not_ready_reason() const {
  if (!membership_.started()) {
    return absl::StrCat("waiting for workers: ", membership_.active_workers(), " of ",
                        settings_.expected_workers, " joined");
  }
  if (placement_ != nullptr && membership_.parked_experts() == 0) return "";
  const int layers = settings_.geometry.moe_layers;
  int covered = 0;
  for (int layer = 0; placement_ != nullptr && layer < layers; ++layer) {
    int held = 0;
    for (int e = 0; e < settings_.geometry.experts; ++e) {
      held += !placement_->replicas(layer, e).empty();
    }
    covered += held == settings_.geometry.experts;
  }
  return absl::StrCat("loading experts: ", covered, " of ", layers, " layers");
}

ClusterStatus ClusterControl::status(absl::Time now) const {
  ClusterStatus status;
  status.placement_version = membership_.version();
  status.expected_workers = settings_.expected_workers;
  status.active_workers = membership_.active_workers();
  status.started = membership_.started();
  status.parked_experts = membership_.parked_experts();
  status.workers_joined = joined_;
  status.workers_lost = lost_;
  status.workers_refused = refused_;
  status.not_ready_reason = not_ready_reason();
  for (const auto& [rank, about] : slots_) {
    if (rank >= static_cast<Rank>(membership_.workers().size())) continue;
    const Membership::Worker& member = membership_.workers()[rank];
    const auto session = sessions_.find(about.session);
    const absl::Duration silence =
        session == sessions_.end() ? absl::ZeroDuration() : now - session->second.last_heard;
    WorkerStatus worker{.rank = rank,
                        .worker_id = member.worker_id,
                        .state = state_name(member.state, about.connected),
                        .incarnation = member.incarnation,
                        .host = about.about.host,
                        .device = about.about.device,
                        .experts = about.experts,
                        .expert_bytes = about.resident_bytes,
                        .reserved_expert_bytes = about.beat.reserved_bytes,
                        .heartbeat_age_seconds = absl::ToDoubleSeconds(silence),
                        .last_loss = about.last_loss,
                        .load_failure = about.load_failure};
    worker.max_experts = about.about.max_experts().value_or(-1);
    status.workers.push_back(std::move(worker));
  }
  return status;
}

}  // namespace brigade::runtime
