// Bodies between GPUs by NCCL, heads over a host transport that this one owns. A link is a link of
// the host transport with the same id, and an NcclPair. Each head ends in a trailer that numbers it
// and says how long its body is; sends and receives of bodies are posted strictly in the order of
// the heads, all that can be posted on all links as one NCCL group. A body's buffer goes with the
// head's: the host transport's credits are this transport's.
//
// Thread: as in transport.h. No call here waits for the GPU, NCCL or a peer, but shut_down().
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "expert_parallel/transport/bounded_queue.h"
#include "expert_parallel/transport/nccl_module.h"
#include "expert_parallel/transport/nccl_pair.h"
#include "expert_parallel/transport/nccl_trailer.h"

namespace brigade::expert_parallel {

class NcclTransport final : public Transport, public TransportListener {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> create(std::unique_ptr<Transport> host,
                                                           kernels::CudaDevice& device,
                                                           const NcclOptions& options);
  ~NcclTransport() override;

  TransportCaps caps() const override;
  void set_listener(TransportListener* listener) override { listener_ = listener; }
  absl::StatusOr<PeerId> open_link() override;
  absl::StatusOr<std::string> address(PeerId peer) const override;
  absl::Status connect(PeerId peer, const std::string& remote_address) override;
  absl::Status send(PeerId peer, const Message& message, uint64_t cookie) override;
  void release(uint64_t receipt) override;
  void release_after(uint64_t receipt, kernels::Stream& reader) override;
  void begin_group() override { host_->begin_group(); }
  void end_group() override { host_->end_group(); }
  void close_peer(PeerId peer) override;
  bool progress() override;
  int event_fd() const override { return epoll_; }
  absl::StatusOr<bool> arm() override;
  absl::Status shut_down(absl::Time deadline) override;
  uint64_t strangers_refused() const override { return host_->strangers_refused(); }

  // Of the host transport.
  void on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) override;
  void on_sent(PeerId peer, uint64_t number, const absl::Status& status) override;
  void on_peer_lost(PeerId peer, const absl::Status& why) override;

 private:
  // A body under way, posted or not yet.
  struct Transfer {
    uint64_t mark = 0;  // of the pair, behind it; 0: not posted
    absl::Time posted;
  };
  struct Send {
    std::span<const std::byte> body;
    uint64_t cookie = 0;
    bool written_by_stream = false;  // event `written` of its place
    bool head_ended = false;
    absl::Status head_status;
    Transfer transfer;
  };
  struct Arrival {
    uint64_t receipt = 0;
    std::span<const std::byte> head;
    size_t body_bytes = 0;
    int buffer = -1;
    Transfer transfer;
  };
  struct Held {
    uint64_t receipt;
    PeerId peer;
    int buffer;
  };
  struct Link {
    std::shared_ptr<NcclPair> pair;
    NcclAddress address;
    kernels::Buffer block;  // window buffers of max_message_bytes, then the pair's scratch
    std::vector<int> free;
    std::vector<cudaEvent_t> read;      // by buffer: its last reader is done
    std::vector<char> was_read;         // by buffer: the event counts
    std::vector<cudaEvent_t> written;   // by place of a send in the queue
    std::vector<NcclTrailer> trailers;  // as above
    BoundedQueue<Send> sends;
    BoundedQueue<Arrival> arrivals;
    uint64_t next_send = 0, next_arrival = 0;
    int held = 0;  // buffers that the listener has
    bool connected = false, open = true, lost = false;
    absl::Status failed;  // will be lost at the next look
  };
  struct Launch {
    PeerId peer;
    std::shared_ptr<NcclPair> pair;
    Way way;
  };

  NcclTransport(std::unique_ptr<Transport> host, kernels::CudaDevice& device,
                const NcclOptions& options);
  Link* open(PeerId peer);
  void take_peers();
  bool look_after(PeerId peer, absl::Time now);
  absl::Status health(Link& link, absl::Time now);
  bool any_under_way() const;
  static bool usable(const Link& link) { return !link.lost && link.failed.ok(); }
  // nccl_links.cc
  absl::Status plan(Link& link);
  void lose(PeerId peer, const absl::Status& why);
  void end_pair(Link& link, absl::Time now);
  bool still_written(const Link& link, size_t send) const;
  bool still_used(const Link& link) const;
  bool bury(PeerId peer);
  void free_link(Link& link);
  // nccl_heads.cc
  bool held_release(uint64_t receipt, kernels::Stream* reader);
  // nccl_posting.cc
  bool end_launch();
  bool post(absl::Time now);
  bool may_post(Link& link) const;
  void post_receives(PeerId peer, Link& link, absl::Time now);
  void post_sends(PeerId peer, Link& link, absl::Time now);
  void add_launch(PeerId peer, const Link& link, Way way);
  bool deliver(PeerId peer);
  bool complete(PeerId peer);

  const std::unique_ptr<Transport> host_;
  kernels::CudaDevice& device_;
  const NcclOptions options_;
  TransportListener* listener_ = nullptr;
  const std::shared_ptr<EventFd> changed_;
  int epoll_ = -1, timer_ = -1;
  GpuId gpu_{};
  int32_t version_ = 0;
  std::map<PeerId, std::unique_ptr<Link>> links_;
  std::vector<Held> held_;
  std::vector<kernels::Buffer> spare_blocks_;  // freeing one would wait for the whole GPU
  std::vector<PeerId> peers_;                  // scratch of progress()
  std::vector<Launch> launches_;               // of the group that was begun last and has not ended
  bool in_group_ = false;
  absl::Time group_begun_;
  absl::Time next_look_;  // at what NCCL and CUDA tell only when asked
};

}  // namespace brigade::expert_parallel
