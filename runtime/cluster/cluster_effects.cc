// ClusterControl, second part: carries out what the membership's rules want.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/cluster/cluster_control.h"

namespace brigade::runtime {
absl::Status ClusterControl::submit(const MembershipEvent& event) {
  ASSIGN_OR_RETURN(const std::vector<MembershipEffect> effects, membership_.handle(event));
  for (const MembershipEffect& effect : effects) {
    std::visit([this](const auto& e) { apply(e); }, effect);
  }
  return absl::OkStatus();
}

void ClusterControl::apply(const Admit& effect) {
  Slot& rank = slot(effect.rank);
  if (rank.dismissing) finish_dismissal(effect.rank);
  CHECK(joining_session_ != 0);
  Session& session = sessions_.at(joining_session_);
  const bool same = rank.about.worker_id == membership_.workers()[effect.rank].worker_id;
  const std::string last_loss = same ? rank.last_loss : "";
  rank = {.session = joining_session_,
          .incarnation = effect.incarnation,
          .admitted_at = now_,
          .last_loss = last_loss};
  session.registered = true;
  session.rank = effect.rank;
  // The link of an earlier life is closed by now, unless that failed.
  (void)links_.close(effect.rank, link_deadline());
  const absl::StatusOr<std::string> address =
      links_.open(effect.rank, effect.incarnation, link_deadline());
  if (!address.ok()) {
    followups_.push_back(WorkerSuspected{effect.rank, effect.incarnation, Evidence::kTransportError,
                                         std::string(address.status().message())});
    return;
  }
  session.stream->send(
      Welcome{.rank = effect.rank,
              .coordinator_id = settings_.session.coordinator_id,
              .secret = settings_.session.secret,
              .coordinator_incarnation = settings_.incarnation,
              .data_address = *address,
              .heartbeat_interval_ms = absl::ToInt64Milliseconds(settings_.heartbeat),
              .lost_after_ms = absl::ToInt64Milliseconds(settings_.lost_after),
              .num_ranks = settings_.max_ranks,
              .microbatches = settings_.microbatches,
              .max_rows = settings_.max_rows,
              .data_plane = settings_.data_plane});
}

void ClusterControl::apply(const Load& effect) {
  std::deque<Order>& orders =
      effect.rank == kCoordinator ? local_orders_ : slot(effect.rank).orders;
  orders.push_back({Order::Kind::kLoad, effect.keys});
}

void ClusterControl::apply(const Publish& effect) {
  placement_ = std::make_shared<const Placement>(effect.placement);
  view_changed_ = true;
}

void ClusterControl::apply(const Mask& effect) {
  Slot& rank = slot(effect.rank);
  ++lost_;
  rank.last_loss = effect.reason;
  log(absl::StrCat("rank ", effect.rank, " (", rank.about.worker_id, ") is lost: ", effect.reason));
  unlink(effect.rank);
  if (Session* session = session_of(effect.rank)) {
    end_session(*session,
                absl::AbortedError(absl::StrCat("declared lost: ", effect.reason, "; join again")));
  }
  rank.session = 0;
}

void ClusterControl::apply(const Release& effect) {
  std::deque<Order>& orders =
      effect.rank == kCoordinator ? local_orders_ : slot(effect.rank).orders;
  orders.push_back({Order::Kind::kRelease, effect.keys, view_to_come()});
}

void ClusterControl::apply(const Dismiss& effect) {
  Slot& rank = slot(effect.rank);
  rank.dismissing = true;
  rank.orders.push_back({Order::Kind::kDismiss, {}, view_to_come()});
}

// Nothing more is sent to the rank, and what it still sends is refused.
void ClusterControl::unlink(Rank rank) {
  Slot& unlinked = slot(rank);
  if (const absl::Status status = links_.close(rank, link_deadline()); !status.ok()) {
    log(absl::StrCat("rank ", rank,
                     ": its link cannot be closed: ", std::string(status.message())));
  }
  unlinked.connected = false;
  unlinked.orders.clear();
  unlinked.loading.clear();
  unlinked.resident_bytes = 0;
  view_changed_ = true;
}

void ClusterControl::finish_dismissal(Rank rank) {
  Slot& dismissed = slot(rank);
  dismissed.dismissing = false;
  unlink(rank);
  log(absl::StrCat("rank ", rank, " (", dismissed.about.worker_id, ") has left"));
  if (Session* session = session_of(rank); session != nullptr && !session->ending) {
    session->stream->send(Dismissal{"its experts live elsewhere"});
    end_session(*session, absl::OkStatus());
  }
  dismissed.session = 0;
}

// Until nothing follows from anything any more.
void ClusterControl::settle(absl::Time now) {
  now_ = now;
  do {
    do {
      while (!followups_.empty()) {
        const MembershipEvent event = std::move(followups_.front());
        followups_.pop_front();
        CHECK(submit(event).ok());
      }
    } while (admit_contender());
    if (view_changed_) publish_view();
    run_orders(kCoordinator, local_orders_);
    for (auto& [rank, about] : slots_) run_orders(rank, about.orders);
  } while (view_changed_ || !followups_.empty());
}

void ClusterControl::publish_view() {
  view_changed_ = false;
  if (placement_ == nullptr) return;  // nobody serves yet
  auto view = std::make_shared<expert_parallel::ClusterView>();
  view->placement = placement_;
  for (auto& [rank, about] : slots_) {
    view->incarnation.resize(std::max<size_t>(view->incarnation.size(), rank + 1));
    if (about.connected) view->incarnation[rank] = about.incarnation;
    about.experts = 0;
    for (int layer = 0; layer < placement_->moe_layers(); ++layer) {
      about.experts += placement_->experts_on(rank, layer);
    }
  }
  board_.publish(std::move(view));
}

bool ClusterControl::may_run(Rank rank, const Order& order) {
  if (now_ < order.not_before) return false;
  if (order.after_view > 0 && !board_.acknowledged(order.after_view)) return false;
  return rank == kCoordinator || order.kind == Order::Kind::kDismiss || slot(rank).connected;
}

void ClusterControl::run_orders(Rank rank, std::deque<Order>& orders) {
  // The order leaves the queue first: carrying it out may clear the queue.
  while (!orders.empty() && !stopping_ && may_run(rank, orders.front())) {
    Order order = std::move(orders.front());
    orders.pop_front();
    carry_out(rank, std::move(order));
  }
}

void ClusterControl::carry_out(Rank rank, Order order) {
  if (order.kind == Order::Kind::kDismiss) return finish_dismissal(rank);
  const bool load = order.kind == Order::Kind::kLoad;
  if (rank == kCoordinator) {
    load ? home_.load(std::move(order.keys)) : home_.release(std::move(order.keys));
    return;
  }
  Session* session = session_of(rank);
  if (session == nullptr) return;
  if (load) {
    slot(rank).loading[next_command_] = order.keys;
    session->stream->send(LoadOrder{next_command_++, std::move(order.keys)});
  } else {
    session->stream->send(ReleaseOrder{next_command_++, std::move(order.keys)});
  }
}

}  // namespace brigade::runtime
