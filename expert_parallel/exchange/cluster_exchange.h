// The exchange of a coordinator with workers: rows go once to each rank that holds one of their
// experts, local experts run through the same plan without a copy, answers come back into their
// slots. Which rank computes a term never changes its bits. When the cluster changes in the middle
// of a layer, set_view() sends what is still unanswered elsewhere; terms whose expert nobody holds
// park their rows. Where the links carry device memory no row touches the host: rows are gathered
// into frames and answers into slots by the stream. Step thread, except where AnswerSink says otherwise; one object per microbatch,
// no allocation after create().
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "expert_parallel/exchange/answer_slots.h"
#include "expert_parallel/exchange/cluster_view.h"
#include "expert_parallel/exchange/exchange.h"
#include "expert_parallel/exchange/frame_packer.h"
#include "expert_parallel/exchange/local_experts.h"
#include "expert_parallel/exchange/worker_links.h"
#include "expert_parallel/experts/expert_shard.h"
#include "kernels/core/host_buffer.h"

namespace brigade::expert_parallel {

// Rows of an expert that nobody holds: either the other rows go on without them, or the layer waits
// until a view has a holder.
enum class HomelessRows { kPark, kWait };

struct ClusterExchangeConfig {
  ExpertGeometry geometry;
  int microbatch = 0;
  int max_rows = 0;
  HomelessRows homeless_rows = HomelessRows::kPark;
};

// Any thread reads them while the exchange runs.
struct ExchangeCounters {
  std::atomic<uint64_t> exchanges{0};
  std::atomic<uint64_t> with_several_frames{0};        // to one worker
  std::atomic<uint64_t> rows_with_several_experts{0};  // on one worker
  std::atomic<uint64_t> workers_without_rows{0};       // live ranks that took no part, summed
  std::atomic<uint64_t> replayed_rows{0};
  std::atomic<uint64_t> parked_rows{0};
  // Terms that were declined by the very rank that the current view names: they wait for another
  // view.
  std::atomic<uint64_t> declined_by_holder{0};
  std::vector<std::atomic<uint64_t>> replayed_rows_by_layer;  // by MoE layer
};

class ClusterExchange final : public Exchange, public AnswerSink {
 public:
  // Links, device and shard outlive the exchange; shard is null where the coordinator holds no
  // experts.
  static absl::StatusOr<std::unique_ptr<ClusterExchange>> create(
      kernels::Device& device, WorkerLinks& links, const ExpertShard* shard,
      const ClusterExchangeConfig& config);
  ~ClusterExchange() override;

  // Between layers: the next begin() uses it. In a layer: unanswered terms of ranks that are gone,
  // of a new life, or that declined them are sent by the new view at once. A term that is declined
  // later, because it was sent by an older view, goes out by the current one in poll(): once a
  // view, so that a rank that declines what the view gives it cannot make us loop.
  absl::Status set_view(std::shared_ptr<const ClusterView> view);

  absl::Status begin(kernels::Stream& stream, const LayerRows& layer,
                     kernels::Waker* waker) override;
  absl::StatusOr<bool> poll() override;
  const void* answers() const override { return answers_.data(); }
  kernels::DType answer_dtype() const override { return config_.geometry.wire_dtype; }
  std::span<const int32_t> parked_rows() const override { return parked_; }
  uint64_t view_version() const override { return view_number_; }
  int32_t holder_of(int moe_layer, int32_t expert) const override {
    const Rank rank = holder(moe_layer, expert);
    return rank == kNotPlanned ? -1 : rank + 1;  // the coordinator is rank -1
  }
  uint64_t holders_version() const override { return view_number_; }

  // Ranks that owe an answer now, for whoever watches deadlines; one that declined what the view
  // gives it still does. Allocates.
  std::vector<Rank> waiting_for();

  const ExchangeCounters& counters() const { return counters_; }
  uint64_t late_answers() const { return slots_.late(); }
  uint64_t declined_terms() const { return slots_.declined(); }

  void on_frame(Rank rank, const FrameView& frame) override;
  bool on_device_frame(Rank rank, const FrameView& frame, uint64_t receipt) override;
  void on_room() override;
  bool collect() override;

 private:
  ClusterExchange(WorkerLinks& links, const ExpertShard* shard, const ClusterExchangeConfig& config,
                  bool host_memory);
  // Whether rows pass through host memory of ours on their way.
  bool staged() const { return !host_memory_ && !device_frames_; }
  void wake();
  absl::Status plan_buffers(kernels::Device& device);
  Rank holder(int moe_layer, int32_t expert) const;
  absl::Status resend_declined();
  absl::Status replan_all(const ClusterView& before);
  Rank replan(int32_t term, const ClusterView& before);
  absl::Status carry_out();
  void count_shares();
  absl::Status upload_rows();
  absl::Status pack();
  absl::StatusOr<bool> pack_share(FramePacker::Share& share);
  absl::Status gather(const FramePacker::Share& share, int first, int count, void* to);
  absl::Status finish();

  WorkerLinks& links_;
  const ExpertShard* const shard_;
  const ClusterExchangeConfig config_;
  const bool
      host_memory_;  // device memory is the host's: rows are read and answers written in place
  const bool device_frames_;  // rows of frames are in device memory
  std::shared_ptr<const ClusterView> view_;
  uint64_t view_number_ = 0;
  DispatchPlan plan_;
  FramePacker packer_;
  AnswerSlots slots_;
  std::unique_ptr<LocalExperts> local_;  // null without a shard
  ExchangeCounters counters_;

  kernels::Buffer answers_;             // device [max_rows * top_k, hidden] of the wire dtype
  kernels::HostBuffer host_x_, host_answers_;  // only where staged()
  // Only with device frames: travelling rows of all shares, as the gather reads them.
  kernels::HostBuffer host_row_index_;
  kernels::Buffer row_index_;
  DeviceAnswers device_answers_;
  absl::Status collected_;  // of the layer under way

  // Of the layer under way.
  kernels::Stream* stream_ = nullptr;
  LayerRows layer_;
  std::atomic<kernels::Waker*> waker_{nullptr};
  kernels::Event x_on_host_;
  uint64_t step_ = 0;
  bool active_ = false;
  bool just_sent_ = false;       // an answer cannot be there yet
  bool resend_ = false;          // declined terms may have to go out again
  kernels::Event plan_is_read_;  // while resend_, where the device reads the plan
  std::vector<Rank> rank_of_term_;
  enum Sent : uint8_t { kNotSent, kSent, kSentAndCounted };
  std::vector<Sent> sent_;         // by term; counted: in declined_by_holder
  std::vector<uint64_t> sent_by_;  // by term: number of the view that chose its rank
  std::vector<int32_t> parked_;
  int32_t last_replayed_row_ = -1;
  std::atomic<bool> starved_{false};  // frames wait for a buffer
};

}  // namespace brigade::expert_parallel
