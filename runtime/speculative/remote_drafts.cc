#include "runtime/speculative/remote_drafts.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

constexpr absl::Duration kPublishInterval = absl::Seconds(1);

}  // namespace

RemoteDrafts::RemoteDrafts(DraftLinks& links, const RemoteDraftsOptions& options)
    : links_(links), options_(options) {
  workers_.reserve(DraftLinks::kMaxLinks);
}

RemoteDrafts::~RemoteDrafts() {
  CHECK(drafters_.empty());
  links_.publish(counters());
}

bool RemoteDrafts::has_worker() const { return !workers_.empty(); }

// Follows the links that serve. A link that has greeted but not yet been compared changes no number
// when it begins to serve, so such are looked at every time.
void RemoteDrafts::refresh() {
  const uint64_t version = links_.version();
  if (version == version_ && all_serve_) return;
  version_ = version;
  all_serve_ = true;
  std::vector<Worker> now_serving;
  for (auto& link : links_.links()) {
    if (!link->serving()) {
      all_serve_ = false;
      continue;
    }
    const Worker* known = worker_of(link->id());
    now_serving.push_back({link, known == nullptr ? 0 : known->open});
  }
  workers_ = std::move(now_serving);
  for (auto& [id, drafter] : drafters_) {
    if (drafter->link_ == nullptr || worker_of(drafter->link_->id()) != nullptr) continue;
    ++counters_.lost;
    drafter->detach(now_);
  }
}

RemoteDrafts::Worker* RemoteDrafts::worker_of(uint64_t link) {
  for (Worker& worker : workers_) {
    if (worker.link->id() == link) return &worker;
  }
  return nullptr;
}

RemoteDrafts::Worker* RemoteDrafts::pick(int length) {
  Worker* best = nullptr;
  for (Worker& worker : workers_) {
    if (worker.link->max_context() <= length || worker.open >= worker.link->max_sequences()) {
      continue;
    }
    if (best == nullptr || worker.open < best->open) best = &worker;
  }
  return best;
}

void RemoteDrafts::collect(absl::Time now) {
  now_ = now;
  refresh();
  for (Worker& worker : workers_) {
    if (!worker.link->take(&arrivals_)) continue;
    for (const ChunkMessage& chunk : arrivals_.chunks) take(chunk, *worker.link);
    for (const DraftNack& nack : arrivals_.nacks) take(nack);
  }
  if (now < publish_at_) return;
  publish_at_ = now + kPublishInterval;
  links_.publish(counters());
}

void RemoteDrafts::take(const ChunkMessage& chunk, DraftLink& link) {
  ++counters_.chunks;
  const auto found = drafters_.find(chunk.sequence);
  // One of a sequence that has ended: the worker will hear of it.
  if (found == drafters_.end() || found->second->link_.get() != &link) {
    ++counters_.stale;
    return;
  }
  RemoteDrafter& drafter = *found->second;
  absl::Status why;
  const ChunkFate fate = drafter.tail_.take(chunk.view(), &why);
  if (fate != ChunkFate::kBad) {
    counters_.stale += fate != ChunkFate::kTaken;
    return;
  }
  ++counters_.bad;
  counters_.last_fault = std::string(why.message());
  link.count_bad_message();
  drafter.link_->close(drafter.id_, drafter.tail_.epoch());
  if (++drafter.shut_outs_ > options_.max_shut_outs) drafter.given_up_ = true;
  drafter.back_off();
}

void RemoteDrafts::take(const DraftNack& nack) {
  const auto found = drafters_.find(nack.sequence);
  if (found == drafters_.end() || !found->second->attached()) return;
  RemoteDrafter& drafter = *found->second;
  if (drafter.tail_.epoch() != nack.epoch) return;
  ++counters_.refused;
  counters_.last_fault = nack.detail;
  if (nack.reason == NackReason::kRefused) drafter.given_up_ = true;
  drafter.back_off();
}

std::unique_ptr<RemoteDrafter> RemoteDrafts::open(SequenceToDraft sequence,
                                                  std::span<const int32_t> text) {
  std::unique_ptr<RemoteDrafter> drafter(
      new RemoteDrafter(*this, next_sequence_++, std::move(sequence), text));
  drafters_[drafter->id_] = drafter.get();
  drafter->sync(text);
  return drafter;
}

namespace {

void add(const DraftTailCounters& tail, RemoteDraftsCounters* sum) {
  sum->taken += tail.taken;
  sum->dropped += tail.dropped;
  sum->matched += tail.matched;
}

}  // namespace

RemoteDraftsCounters RemoteDrafts::counters() const {
  RemoteDraftsCounters sum = counters_;
  for (const auto& [id, drafter] : drafters_) add(drafter->tail_.counters(), &sum);
  return sum;
}

namespace {

// Its memory is as long as the sequence can become.
DraftTailLimits limits_of(DraftTailLimits limits, const SequenceToDraft& sequence) {
  limits.max_positions = std::min(limits.max_positions, sequence.max_length);
  return limits;
}

}  // namespace

RemoteDrafter::RemoteDrafter(RemoteDrafts& owner, uint64_t id, SequenceToDraft sequence,
                             std::span<const int32_t> text)
    : owner_(owner),
      id_(id),
      sequence_(std::move(sequence)),
      tail_(limits_of(owner.options_.limits, sequence_), sequence_.rule, 0, text),
      wanted_(owner.options_.first_depth) {}

RemoteDrafter::~RemoteDrafter() {
  if (attached()) {
    link_->close(id_, tail_.epoch());
    detach(absl::InfiniteFuture());
  }
  add(tail_.counters(), &owner_.counters_);
  owner_.drafters_.erase(id_);
  if (owner_.drafters_.empty()) owner_.links_.publish(owner_.counters());
}

int RemoteDrafter::credit() const {
  if (wanted_ == 0) return 0;
  // Where few are wanted most are refused, and what was made beyond them is wasted.
  return std::min({wanted_ + std::min(owner_.options_.window, 2 * wanted_),
                   owner_.options_.limits.max_run_ahead, DraftBounds::kMaxWanted});
}

void RemoteDrafter::draft(std::span<const int32_t> text, int wanted, DraftList* drafts) {
  wanted_ = wanted;
  sync(text);
  tail_.read(wanted, drafts);
  owner_.counters_.offered += drafts->size();
  const int committed = static_cast<int>(text.size());
  for (int i = 0; i < drafts->size(); ++i) {
    owner_.counters_.ahead += tail_.base_length(i) < committed;
  }
}

void RemoteDrafter::run_ahead(std::span<const int32_t>, DraftList* drafts) {
  tail_.read_one(drafts->size(), drafts);
}

void RemoteDrafter::committed(std::span<const int32_t> text) { sync(text); }

void RemoteDrafter::sync(std::span<const int32_t> text) {
  const auto known = static_cast<size_t>(tail_.committed_length());
  CHECK(text.size() >= known);
  for (const int32_t token : text.subspan(known)) tail_.commit(token);
  if (!attached()) return attach(text);
  const int length = static_cast<int>(text.size());
  const int credit = this->credit();
  // At credit 0 the worker rests and need not hear of every token.
  if (credit == told_credit_ && (length == told_length_ || credit == 0)) return;
  link_->commit(id_, tail_.epoch(), told_length_, text.subspan(static_cast<size_t>(told_length_)),
                credit);
  told_length_ = length;
  told_credit_ = credit;
}

void RemoteDrafter::attach(std::span<const int32_t> text) {
  if (given_up_ || credit() == 0 || owner_.now_ < not_before_) return;
  const int length = static_cast<int>(text.size());
  if (length >= sequence_.max_length) return;
  RemoteDrafts::Worker* worker = owner_.pick(length);
  if (worker == nullptr) return;
  ++(tail_.epoch() == 0 ? owner_.counters_.opened : owner_.counters_.reopened);
  owner_.counters_.last_epoch = static_cast<int64_t>(owner_.next_epoch_);
  tail_.reopen(owner_.next_epoch_++);
  link_ = worker->link;
  link_->set_open_sequences(++worker->open);
  told_length_ = length;
  told_credit_ = credit();
  OpenDraft open{.sequence = id_,
                 .epoch = tail_.epoch(),
                 .prompt_length = sequence_.prompt_length,
                 .wanted = told_credit_,
                 .max_length = sequence_.max_length,
                 .rule = sequence_.rule,
                 .sampling = sequence_.sampling,
                 .sample_index = sequence_.sample_index,
                 .end_tokens = sequence_.end_tokens,
                 .min_tokens = sequence_.min_tokens};
  open.tokens.assign(text.begin(), text.end());
  if (sequence_.rule == AcceptRule::kRejection) {
    open.law_entries = owner_.options_.limits.max_law_entries;
  }
  link_->open(std::move(open));
}

// The sequence is no longer open at the worker, or the worker is gone.
void RemoteDrafter::detach(absl::Time not_before) {
  if (RemoteDrafts::Worker* worker = owner_.worker_of(link_->id()); worker != nullptr) {
    link_->set_open_sequences(--worker->open);
  }
  link_ = nullptr;
  not_before_ = not_before;
}

void RemoteDrafter::back_off() {
  const RemoteDraftsOptions& options = owner_.options_;
  const double factor = static_cast<double>(1 << std::min(failures_++, 16));
  detach(owner_.now_ + std::min(options.retry_first * factor, options.retry_longest));
}

}  // namespace brigade::runtime
