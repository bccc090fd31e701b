// ClusterControl, fourth part: a worker's name is one process's for as long as that process lives.
// The same process may register again at any time. Another one waits until its rival is known to be
// gone, and takes its place, or to live, and is refused.
//
// Alive means: heard from twice, a heartbeat apart, since the newcomer came. What a process sent
// before it died is read at one go, and the end of its stream with it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/cluster/cluster_control.h"

namespace brigade::runtime {

ClusterControl::Slot* ClusterControl::other_holder(const Registration& message) {
  for (auto& [rank, about] : slots_) {
    if (about.session == 0 || about.about.worker_id != message.worker_id) continue;
    return about.about.process == message.process ? nullptr : &about;
  }
  return nullptr;
}

void ClusterControl::contend(Session& session, const Registration& message, const Slot& holder) {
  log(absl::StrCat("worker ", message.worker_id, " on ", message.host,
                   " waits: the name is held by a process on ", holder.about.host));
  session.contender = message;
  session.holder_heard = absl::InfiniteFuture();
}

// `holder` has just said something.
void ClusterControl::refuse_contenders(Rank holder, absl::Time now) {
  const Slot& held = slot(holder);
  const bool leaves =
      held.dismissing || membership_.workers()[holder].state == Membership::WorkerState::kLeaving;
  for (auto& [id, session] : sessions_) {
    if (!session.contender || session.ending || leaves) continue;
    if (session.contender->worker_id != held.about.worker_id) continue;
    session.holder_heard = std::min(session.holder_heard, now);
    if (now - session.holder_heard < settings_.heartbeat) continue;
    refuse(session,
           absl::AlreadyExistsError(absl::StrCat(
               "worker ", held.about.worker_id, " on ", session.contender->host,
               ": another process has that name, on ", held.about.host, " as rank ", holder,
               " since ", absl::FormatTime("%Y-%m-%d %H:%M:%S", held.since, absl::UTCTimeZone()),
               " UTC, and is alive; give every worker a name of its own")));
  }
}

// True: one was let in, or refused for another reason.
bool ClusterControl::admit_contender() {
  for (auto& [id, session] : sessions_) {
    if (!session.contender || session.ending || other_holder(*session.contender)) continue;
    const Registration message = *std::exchange(session.contender, std::nullopt);
    session.last_heard = now_;  // who waits has nothing to say
    const absl::Status status = register_worker(id, session, message);
    if (!status.ok()) refuse(session, status);
    return true;
  }
  return false;
}

}  // namespace brigade::runtime
