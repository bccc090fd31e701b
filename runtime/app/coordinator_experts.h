// The coordinator's own experts, for when no worker is there: packed from the checkpoint into its
// shard by a thread of its own. Slots change only while no step uses them; the cluster sees to
// that.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "expert_parallel/experts/expert_shard.h"
#include "runtime/cluster/local_experts_home.h"
#include "runtime/model/expert_reader.h"
#include "runtime/model/load_model.h"

namespace brigade::runtime {

class CoordinatorExperts final : public LocalExpertsHome {
 public:
  // Experts that are loaded, a layer at a time, or those that could not be. On the loading thread.
  using Report = std::function<void(std::vector<ExpertKey> keys, const absl::Status& status)>;

  // `model` outlives this.
  explicit CoordinatorExperts(const OpenedModel& model);
  ~CoordinatorExperts() override;
  void start(Report report);
  // Orders wait until there is a shard, which outlives stop().
  void use(kernels::Device& device, expert_parallel::ExpertShard& shard);
  // May be called twice.
  void stop();

  void load(std::vector<ExpertKey> keys) override;
  void release(std::vector<ExpertKey> keys) override;
  size_t resident_bytes() const override;

 private:
  struct Order {
    bool load;
    std::vector<ExpertKey> keys;
  };
  // Orders come with changes of the cluster; a queue as long as this means that none is carried
  // out.
  static constexpr size_t kMaxOrders = 1024;

  void push(Order order);
  void run();
  void carry_out(const Order& order);
  absl::Status load_one(const ExpertKey& key);

  const OpenedModel& model_;
  const ExpertReader reader_;
  Report report_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Order> orders_;
  kernels::Device* device_ = nullptr;
  expert_parallel::ExpertShard* shard_ = nullptr;
  bool stopping_ = false;
  std::unique_ptr<kernels::StagedUpload> upload_;  // the thread's, once there is a device
  std::thread thread_;
};

}  // namespace brigade::runtime
