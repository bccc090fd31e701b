// The coordinator's end of the data plane: links to the workers, frames out, answers in. Owns the
// progress thread of a transport, whose work the step thread can take over while it waits. The step
// thread packs frames into buffers of the rank they go to and submits them; answers that pass all
// checks go to the sink of their microbatch on the progress thread. A rank that does not take its
// frames uses up its own buffers only. Where the transport carries device memory, rows of frames
// lie there: see `device` below.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "expert_parallel/routing/placement.h"
#include "expert_parallel/transport/aligned_block.h"
#include "expert_parallel/transport/transport_loop.h"
#include "kernels/core/device.h"

namespace brigade::expert_parallel {

struct WorkerLinksConfig {
  Session session;
  uint64_t incarnation = 0;  // of this coordinator process
  FrameLimits limits;
  int num_ranks = 0;  // rank slots; fixed
  int microbatches = 1;
  int frames_per_rank = 8;  // buffers; at most the transport's send queue
  // The transport's, if it carries device memory; outlives the links.
  kernels::Device* device = nullptr;
};

// Where rows of a submitted frame are, if they are apart from its head.
struct DeviceRows {
  size_t bytes = 0;
  kernels::Stream* written_by = nullptr;  // outlives the sink of the frame's microbatch
};

// Progress thread, or the step thread in its place.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // An answer or a decline of this microbatch; ids are in range, nothing else is known of them.
  virtual void on_frame(Rank rank, const FrameView& frame) = 0;
  // The same with rows in device memory. True: the sink keeps the frame, until it gives `receipt`
  // to WorkerLinks::release_after() or release().
  virtual bool on_device_frame(Rank rank, const FrameView& frame, uint64_t receipt) {
    return false;
  }
  // A buffer of some rank has become free.
  virtual void on_room() = 0;
  // Step thread. Takes in the frames that the sink keeps. False: none.
  virtual bool collect() { return false; }
};

// Evidence for the membership's rules: called on the progress thread, must not wait or call back.
using LossReport = std::function<void(Rank rank, uint64_t incarnation, const absl::Status& why)>;

class WorkerLinks final : public LoopClient {
 public:
  WorkerLinks(std::unique_ptr<Transport> transport, const WorkerLinksConfig& config,
              LossReport on_lost);
  ~WorkerLinks() override;
  // Before the first acquire(), where there is a device; once is as good as twice.
  // RESOURCE_EXHAUSTED when its memory is short.
  absl::Status plan_device_memory();
  void start();
  // Closes all links, at most 2 s after the thread has ended. May be called twice.
  void stop();

  // Control thread. A rank has at most one link: FAILED_PRECONDITION while it has one.
  absl::StatusOr<std::string> open(Rank rank, uint64_t incarnation, absl::Time deadline);
  absl::Status connect(Rank rank, const std::string& remote_address, absl::Time deadline);
  absl::Status close(Rank rank, absl::Time deadline);

  // Makes a sink, or null, the microbatch's; afterwards the one before is not called any more, and
  // no stream of its frames used.
  void attach(int microbatch, AnswerSink* sink);
  // Whether rows of frames travel apart, in device memory.
  bool device_frames() const { return config_.device != nullptr; }
  // Step thread. A buffer of kMaxFrameBytes, or null: all are in use, or the rank has no link. With
  // device frames `writer` will write the rows.
  std::byte* acquire(Rank rank, const kernels::Stream* writer = nullptr);
  // Device memory of the same size that belongs to the buffer.
  std::byte* device_rows(Rank rank, const std::byte* frame) const;
  // Hands a filled buffer over; flush() sends all of them off.
  void submit(Rank rank, std::byte* frame, size_t bytes, uint32_t rows,
              const DeviceRows& device_rows = {});
  // Step thread. All that `writer` was told to write has been written: buffers of frames that could
  // not go, which nobody else may write until then, are free.
  void has_written(const kernels::Stream* writer);
  // Gives a kept frame back while what is enqueued on `reader` by now still reads it, at the next
  // turn; flush() brings it about. Any thread. A stream must outlive the sink of its microbatch.
  void release_after(uint64_t receipt, kernels::Stream* reader);
  // Step thread. Lets all sinks take in what they keep, so that no microbatch holds credits of a
  // link while another waits.
  void collect();
  void flush() { step_thread_drives_ ? loop_.guest_turn() : loop_.wake(); }
  // Takes in what has arrived, if the step thread drives the transport.
  void look() {
    if (step_thread_drives_) loop_.guest_turn();
  }
  // A place to sleep for the step thread, in which it drives the transport by itself until its
  // waker is woken; true then. Once used, it must be the only place where the step thread sleeps.
  bool sleep_until(kernels::Waker& waker, absl::Time deadline) {
    step_thread_drives_ = true;
    return loop_.guest_sleep(waker, deadline);
  }
  uint64_t next_step() { return next_step_.fetch_add(1, std::memory_order_relaxed); }

  const WorkerLinksConfig& config() const { return config_; }
  Party self() const { return {kCoordinator, config_.incarnation}; }
  // Any thread.
  const RefusalCounts& refusals() const { return refusals_; }
  // Answers refused: by a check, or because their link had been closed.
  uint64_t refused_frames() const { return refusals_.total() + transport_->strangers_refused(); }
  uint64_t rows_sent(Rank rank) const;
  uint64_t frames_sent(Rank rank) const;

  void on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) override;
  void on_device_message(PeerId peer, uint64_t receipt, std::span<const std::byte> head,
                         std::span<const std::byte> device_body) override;
  void on_sent(PeerId peer, uint64_t cookie, const absl::Status& status) override;
  void on_peer_lost(PeerId peer, const absl::Status& why) override;
  absl::Time on_turn() override;
  void on_loop_failed(const absl::Status& status) override;

 private:
  struct Outgoing {
    Rank rank;
    int buffer;
    size_t bytes;
    DeviceRows device_rows;
  };
  struct Returned {
    uint64_t receipt;
    kernels::Stream* reader;
  };
  // A frame that could not go, whose rows may still be written.
  struct Unsent {
    int buffer;
    const kernels::Stream* writer;
  };
  struct RankSlot {
    AlignedBlock buffers;
    kernels::Buffer device_buffers;
    std::vector<int> free;       // guarded by mutex_
    std::vector<Unsent> unsent;  // guarded by mutex_
    bool linked = false;         // guarded by mutex_
    bool has_peer = false;       // the rest: progress thread
    PeerId peer = 0;
    uint64_t incarnation = 0;
    std::atomic<uint64_t> rows{0}, frames{0};
  };
  Refusal check(PeerId peer, Refusal parsed, const FrameView& view, Rank* rank) const;
  int index_of(const RankSlot& slot, const std::byte* frame) const;
  bool send_frames();
  bool return_frames();
  void give_back(Rank rank, int buffer);
  void keep_unsent(const Outgoing& frame);
  void unlink(Rank rank);

  const std::unique_ptr<Transport> transport_;
  const WorkerLinksConfig config_;
  const LossReport on_lost_;
  std::vector<AnswerSink*> sinks_;
  std::vector<std::unique_ptr<RankSlot>> ranks_;
  std::map<PeerId, Rank> rank_of_peer_;  // progress thread
  std::mutex mutex_;
  std::vector<Outgoing> outbox_;     // guarded by mutex_; bounded by the buffers there are
  std::vector<Outgoing> sending_;    // progress thread
  std::vector<Returned> returned_;   // guarded by mutex_; bounded by the transport's windows
  std::vector<Returned> returning_;  // progress thread
  bool step_thread_drives_ = false;  // step thread
  RefusalCounts refusals_;
  std::atomic<uint64_t> next_step_{1};
  bool shut_down_ = false;
  TransportLoop loop_;  // last: its thread uses all of the above
};

}  // namespace brigade::expert_parallel
