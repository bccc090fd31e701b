#include "runtime/app/coordinator_experts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::runtime {

CoordinatorExperts::CoordinatorExperts(const OpenedModel& model)
    : model_(model), reader_(model.tensors) {}

CoordinatorExperts::~CoordinatorExperts() { stop(); }

void CoordinatorExperts::start(Report report) {
  report_ = std::move(report);
  thread_ = std::thread([this] { run(); });
}

void CoordinatorExperts::use(kernels::Device& device, expert_parallel::ExpertShard& shard) {
  {
    std::lock_guard lock(mutex_);
    device_ = &device;
    shard_ = &shard;
  }
  changed_.notify_all();
}

void CoordinatorExperts::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CoordinatorExperts::push(Order order) {
  {
    std::lock_guard lock(mutex_);
    CHECK(orders_.size() < kMaxOrders);
    orders_.push_back(std::move(order));
  }
  changed_.notify_all();
}

void CoordinatorExperts::load(std::vector<ExpertKey> keys) { push({true, std::move(keys)}); }
void CoordinatorExperts::release(std::vector<ExpertKey> keys) { push({false, std::move(keys)}); }

size_t CoordinatorExperts::resident_bytes() const {
  std::lock_guard lock(mutex_);
  return shard_ == nullptr ? 0 : shard_->resident_bytes();
}

void CoordinatorExperts::run() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || shard_ != nullptr; });
  if (stopping_) return;
  lock.unlock();
  // Before anything is served: on a GPU pinned memory is slow to get. Who loads tries again.
  if (auto upload = kernels::StagedUpload::create(*device_); upload.ok()) {
    upload_ = *std::move(upload);
  }
  lock.lock();
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !orders_.empty(); });
    if (stopping_) return;
    const Order order = std::move(orders_.front());
    orders_.pop_front();
    lock.unlock();
    carry_out(order);
    lock.lock();
    // The packed bytes are there; the checkpoint's pages need not stay in memory.
    if (order.load && orders_.empty()) model_.checkpoint->drop_pages();
  }
}

void CoordinatorExperts::carry_out(const Order& order) {
  // In one piece if it can be had, else bit by bit. Free again when workers have taken over.
  if (order.load) shard_->reserve(static_cast<int>(order.keys.size())).IgnoreError();
  std::vector<ExpertKey> part;  // of one layer
  for (size_t i = 0; i < order.keys.size(); ++i) {
    const ExpertKey& key = order.keys[i];
    if (!order.load) {
      CHECK(shard_->unload(key.moe_layer, key.expert).ok());
      continue;
    }
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    if (const absl::Status status = load_one(key); !status.ok()) {
      if (!part.empty()) report_(std::move(part), absl::OkStatus());
      return report_({order.keys.begin() + i, order.keys.end()}, status);
    }
    part.push_back(key);
    if (i + 1 < order.keys.size() && order.keys[i + 1].moe_layer == key.moe_layer) continue;
    report_(std::exchange(part, {}), absl::OkStatus());
  }
}

absl::Status CoordinatorExperts::load_one(const ExpertKey& key) {
  if (shard_->holds(key.moe_layer, key.expert)) return absl::OkStatus();
  if (upload_ == nullptr) {
    ASSIGN_OR_RETURN(upload_, kernels::StagedUpload::create(*device_));
  }
  ASSIGN_OR_RETURN(expert_parallel::PreparedExpert prepared,
                   reader_.prepare(*shard_, *upload_, key.moe_layer, key.expert));
  RETURN_IF_ERROR(upload_->finish());
  return shard_->insert(std::move(prepared));
}

}  // namespace brigade::runtime
