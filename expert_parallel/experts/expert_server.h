// The worker's side of the data plane: takes dispatch frames, runs the experts, answers. Stateless
// per layer and per request; everything it keeps belongs to one coordinator's link. Where the
// transport carries device memory, which must be this device's, rows stay there both ways. Its
// thread owns the transport, the stream and the batch, and does not wait for a device: while a
// batch runs it goes on with arrivals and departures. The shard may be changed inside call() only.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "expert_parallel/experts/expert_batch.h"
#include "expert_parallel/transport/aligned_block.h"
#include "expert_parallel/transport/transport_loop.h"

namespace brigade::expert_parallel {

// The device has failed for good: all further batches are declined. On the server's thread, once;
// must not wait or call back.
using DeviceFailed = std::function<void(const absl::Status& why)>;

struct ExpertServerConfig {
  FrameLimits limits;
  int window = 8;  // the transport's: frames of one coordinator that may be held
  int frames_per_batch = 4;
  absl::Duration batch_timeout =
      absl::Seconds(30);  // for the device; past it the terms are declined
  DeviceFailed on_device_failed;
};

// Any thread.
struct ExpertServerCounters {
  std::atomic<uint64_t> frames{0}, rows{0}, terms{0}, declined_terms{0}, failed_batches{0};
};

// A coordinator's link has ended. On the server's thread; must not wait or call back.
using CoordinatorLost = std::function<void(uint64_t coordinator_id, const absl::Status& why)>;

class ExpertServer final : public LoopClient {
 public:
  // Transport is taken; device and shard outlive the server.
  static absl::StatusOr<std::unique_ptr<ExpertServer>> create(std::unique_ptr<Transport> transport,
                                                              kernels::Device& device,
                                                              const ExpertShard& shard,
                                                              const ExpertServerConfig& config,
                                                              CoordinatorLost on_lost);
  ~ExpertServer() override;
  void start();
  void stop();

  // Control thread. `self` is the slot and incarnation that this coordinator gave to the worker.
  // One link per coordinator id; opening again closes the one before.
  absl::StatusOr<std::string> open(const Session& session, const Party& coordinator,
                                   const Party& self, absl::Time deadline);
  absl::Status connect(uint64_t coordinator_id, const std::string& remote_address,
                       absl::Time deadline);
  absl::Status close(uint64_t coordinator_id, absl::Time deadline);
  // Runs `change` between batches, for loading and unloading experts: once the batch on the device
  // has ended. It holds up answers meanwhile.
  absl::Status call(std::function<void()> change, absl::Time deadline);

  // Any thread.
  const RefusalCounts& refusals() const { return refusals_; }
  const ExpertServerCounters& counters() const { return counters_; }

  void on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) override;
  void on_device_message(PeerId peer, uint64_t receipt, std::span<const std::byte> head,
                         std::span<const std::byte> device_body) override;
  void on_sent(PeerId peer, uint64_t cookie, const absl::Status& status) override;
  void on_peer_lost(PeerId peer, const absl::Status& why) override;
  absl::Time on_turn() override;
  void on_loop_failed(const absl::Status& status) override;

 private:
  struct Held {
    uint64_t receipt;
    FrameView view;
  };
  struct Coordinator {
    Session session;
    Party party, self;
    AlignedBlock answers;  // frames of two batches: one is sent while the next is computed
    kernels::Buffer device_answers;  // their rows, with device frames
    std::vector<int> free;
    std::vector<Held> waiting;  // oldest first; at most `window`
  };
  // The batch on the device.
  struct Running {
    PeerId peer = 0;
    FrameHeader question;
    absl::Time deadline;
    absl::Status status;  // of its start
    kernels::Event done;  // ready where the start has done it all
  };
  ExpertServer(std::unique_ptr<Transport> transport, std::unique_ptr<kernels::Stream> stream,
               std::unique_ptr<ExpertBatch> batch, const ExpertGeometry& geometry,
               const ExpertServerConfig& config, CoordinatorLost on_lost);
  Refusal check(const Coordinator& from, const FrameView& view) const;
  void take(PeerId peer, uint64_t receipt, Refusal parsed, const FrameView& view);
  absl::Status plan_answers(Coordinator& link);
  void refuse_pairing(PeerId peer, Refusal parsed, std::span<const std::byte> head);
  void serve(PeerId peer, Coordinator& coordinator);
  void start_batch(PeerId peer, const FrameHeader& question);
  absl::Time look_at_batch();
  absl::Status end_batch(absl::Time deadline);
  void answer(PeerId peer, Coordinator& coordinator, const FrameHeader& question);
  void answer_rows(PeerId peer, Coordinator& coordinator, size_t first, const FrameHeader& header);
  void decline(PeerId peer, Coordinator& coordinator, FrameHeader header);
  void send(PeerId peer, Coordinator& coordinator, int buffer, const Message& message);
  int take_buffer(Coordinator& coordinator);
  size_t answer_bytes_each() const;
  void drop(PeerId peer);
  void retire(std::unique_ptr<Coordinator> coordinator);
  PeerId peer_of(uint64_t coordinator_id) const;

  const std::unique_ptr<Transport> transport_;
  const bool device_frames_;
  std::unique_ptr<kernels::Waker> batch_done_ = std::make_unique<kernels::Waker>();
  const std::unique_ptr<kernels::Stream> stream_;
  const std::unique_ptr<ExpertBatch> batch_;
  const ExpertGeometry geometry_;
  const ExpertServerConfig config_;
  const CoordinatorLost on_lost_;
  const uint32_t rows_per_answer_;
  const int batch_frames_;  // answers of one batch at most
  const int pool_frames_;   // per coordinator
  std::map<PeerId, std::unique_ptr<Coordinator>> coordinators_;
  // Answer buffers of links that ended, until the transport has given them back.
  std::map<PeerId, std::unique_ptr<Coordinator>> ending_;
  std::vector<kernels::Buffer> spare_answers_;  // freeing one would wait for the whole GPU
  std::optional<Running> running_;
  bool device_failed_ = false;
  PeerId last_served_ = 0;
  RefusalCounts refusals_;
  ExpertServerCounters counters_;
  TransportLoop loop_;  // last: its thread uses all of the above
};

}  // namespace brigade::expert_parallel
