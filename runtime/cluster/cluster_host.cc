#include "runtime/cluster/cluster_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/cluster/viewed_exchange.h"

namespace brigade::runtime {
namespace {

// Longer ones hold up heartbeats; the log says so.
constexpr absl::Duration kLongTurn = absl::Milliseconds(500);

expert_parallel::WorkerLinksConfig links_config(const ClusterSettings& settings) {
  const expert_parallel::ExpertGeometry& geometry = settings.geometry;
  expert_parallel::WorkerLinksConfig config;
  config.session = settings.session;
  config.incarnation = settings.incarnation;
  config.limits = {.hidden = geometry.hidden,
                   .experts = geometry.experts,
                   .moe_layers = geometry.moe_layers,
                   .max_slots = settings.max_rows * geometry.top_k,
                   .answer_dtype = geometry.wire_dtype};
  config.num_ranks = settings.max_ranks;
  config.microbatches = settings.microbatches;
  config.device = settings.frames_on;
  return config;
}

}  // namespace

ClusterHost::ClusterHost(const ClusterSettings& settings,
                         std::unique_ptr<expert_parallel::Transport> transport,
                         LocalExpertsHome& home)
    : settings_(settings),
      home_(home),
      links_(std::move(transport), links_config(settings),
             [this](Rank rank, uint64_t incarnation, const absl::Status& why) {
               push(LinkLost{rank, incarnation, why});
             }),
      control_(settings_, links_, board_, home_, absl::Now()) {
  take_snapshot();
}

ClusterHost::~ClusterHost() { stop(); }

void ClusterHost::start() {
  links_.start();
  thread_ = std::thread([this] { run(); });
}

void ClusterHost::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  links_.stop();
}

// Three events for each of two sessions a slot, one loss a rank, local loads that went well and
// that did not, one order to dismiss.
size_t ClusterHost::queue_bound() const { return 7 * size_t(settings_.max_ranks) + 8; }

absl::StatusOr<uint64_t> ClusterHost::opened(std::shared_ptr<ControlSession> stream) {
  std::unique_lock lock(mutex_);
  // Some room beside one stream a slot, for those that come back before the old one has ended.
  if (stopping_ || open_sessions_ >= 2 * settings_.max_ranks) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many control streams: ", open_sessions_, " are open"));
  }
  ++open_sessions_;
  const uint64_t session = next_session_++;
  lock.unlock();
  push(Opened{session, std::move(stream)});
  return session;
}

void ClusterHost::said(uint64_t session, WorkerSays message) {
  push(Said{session, std::move(message)});
}

void ClusterHost::ended(uint64_t session, const absl::Status& why) { push(Ended{session, why}); }

void ClusterHost::local_loaded(std::vector<ExpertKey> keys, const absl::Status& status) {
  {
    // Parts that came faster than they are taken become one.
    std::lock_guard lock(mutex_);
    for (Event& event : events_) {
      auto* waiting = std::get_if<LocalLoaded>(&event.what);
      if (waiting == nullptr || waiting->status.ok() != status.ok()) continue;
      waiting->keys.insert(waiting->keys.end(), keys.begin(), keys.end());
      return;
    }
  }
  push(LocalLoaded{std::move(keys), status});
}

void ClusterHost::push(Happened what) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    CHECK(events_.size() < queue_bound());
    events_.push_back({absl::Now(), std::move(what)});
  }
  changed_.notify_all();
}

void ClusterHost::run() {
  absl::Time next = control_.tick(absl::Now());
  std::deque<Event> taken;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, absl::ToChronoTime(next),
                          [this] { return stopping_ || !events_.empty(); });
      if (stopping_) return;
      taken.swap(events_);
    }
    const absl::Time began = absl::Now();
    for (Event& event : taken) handle(std::move(event));
    taken.clear();
    next = control_.tick(absl::Now());
    take_snapshot();
    if (const absl::Duration turn = absl::Now() - began; turn > kLongTurn && settings_.log) {
      settings_.log(absl::StrCat("a turn of the control thread took ", absl::FormatDuration(turn)));
    }
  }
}

void ClusterHost::handle(Event event) {
  const absl::Time at = event.at;
  if (auto* opened = std::get_if<Opened>(&event.what)) {
    control_.opened(opened->session, std::move(opened->stream), at);
  } else if (auto* said = std::get_if<Said>(&event.what)) {
    control_.said(said->session, std::move(said->message), at);
  } else if (auto* ended = std::get_if<Ended>(&event.what)) {
    control_.ended(ended->session, ended->why, at);
    std::lock_guard lock(mutex_);
    --open_sessions_;
  } else if (auto* lost = std::get_if<LinkLost>(&event.what)) {
    control_.link_lost(lost->rank, lost->incarnation, lost->why, at);
  } else if (auto* loaded = std::get_if<LocalLoaded>(&event.what)) {
    control_.local_loaded(std::move(loaded->keys), loaded->status, at);
  } else {
    control_.dismiss_all(std::get<DismissAll>(event.what).reason, at);
  }
}

absl::StatusOr<std::unique_ptr<expert_parallel::Exchange>> ClusterHost::make_exchange(
    kernels::Device& device, const expert_parallel::ExpertShard& shard, int max_rows) {
  ASSIGN_OR_RETURN(
      auto exchange,
      expert_parallel::ClusterExchange::create(
          device, links_, &shard,
          {.geometry = settings_.geometry, .microbatch = made_exchanges_, .max_rows = max_rows}));
  ++made_exchanges_;
  return std::make_unique<ViewedExchange>(board_, std::move(exchange));
}

void ClusterHost::dismiss_workers(const std::string& reason, absl::Time deadline) {
  push(DismissAll{reason});
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, absl::ToChronoTime(deadline),
                      [this] { return open_sessions_ == 0 || stopping_; });
}

void ClusterHost::take_snapshot() {
  ClusterStatus status = control_.status(absl::Now());
  std::lock_guard lock(mutex_);
  snapshot_ = std::move(status);
  placement_ = control_.placement();
  changed_.notify_all();  // who waits for streams to end
}

std::string ClusterHost::not_ready_reason() const {
  std::lock_guard lock(mutex_);
  return snapshot_.not_ready_reason;
}

void ClusterHost::set_control_address(const std::string& address) {
  std::lock_guard lock(mutex_);
  control_address_ = address;
}

ClusterStatus ClusterHost::status() const {
  std::unique_lock lock(mutex_);
  ClusterStatus status = snapshot_;
  const std::shared_ptr<const Placement> placement = placement_;
  status.control_address = control_address_;
  lock.unlock();
  const ExchangeTotals totals = board_.totals();
  status.exchanges = totals.exchanges;
  status.replayed_rows = totals.replayed_rows;
  status.parked_rows = totals.parked_rows;
  status.late_answers = totals.late_answers;
  status.declined_terms = totals.declined_terms;
  status.replayed_rows_by_layer = totals.replayed_rows_by_layer;
  status.refused_frames = links_.refused_frames();
  status.coordinator_expert_bytes = static_cast<int64_t>(home_.resident_bytes());
  for (WorkerStatus& worker : status.workers) {
    worker.rows_sent = links_.rows_sent(worker.rank);
    worker.frames_sent = links_.frames_sent(worker.rank);
  }
  for (int layer = 0; placement != nullptr && layer < placement->moe_layers(); ++layer) {
    std::vector<int>& holders = status.holders.emplace_back();
    for (int expert = 0; expert < placement->experts(); ++expert) {
      const auto replicas = placement->replicas(layer, expert);
      holders.push_back(replicas.empty() ? -2 : replicas[0]);
    }
  }
  return status;
}

}  // namespace brigade::runtime
