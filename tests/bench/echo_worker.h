// A worker without experts, for benchmarks: takes dispatch frames as an expert server does, checks
// them, and answers every term with its own row. One thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "expert_parallel/transport/aligned_block.h"
#include "expert_parallel/transport/transport_loop.h"

namespace brigade::bench {

// Rows that one answer frame carries; f32.
int rows_per_answer(int hidden);

class EchoWorker final : public expert_parallel::LoopClient {
 public:
  EchoWorker(std::unique_ptr<expert_parallel::Transport> transport,
             const expert_parallel::FrameLimits& limits, const expert_parallel::Session& session,
             const expert_parallel::Party& coordinator, const expert_parallel::Party& self);

  std::string address();
  void connect(const std::string& remote);
  void start() { loop_.start(); }
  void stop() { loop_.stop(); }
  uint64_t refused() const { return refused_; }

  void on_message(expert_parallel::PeerId peer, uint64_t receipt,
                  std::span<const std::byte> bytes) override;
  void on_sent(expert_parallel::PeerId, uint64_t cookie, const absl::Status&) override;
  void on_peer_lost(expert_parallel::PeerId, const absl::Status&) override;
  absl::Time on_turn() override { return absl::InfiniteFuture(); }
  void on_loop_failed(const absl::Status&) override;

 private:
  void answer(expert_parallel::PeerId peer, const expert_parallel::FrameView& question);

  const std::unique_ptr<expert_parallel::Transport> transport_;
  const expert_parallel::FrameLimits limits_;
  const expert_parallel::Session session_;
  const expert_parallel::Party coordinator_, self_;
  expert_parallel::PeerId peer_ = 0;
  expert_parallel::AlignedBlock buffers_;
  std::vector<int> free_;
  uint64_t refused_ = 0;
  expert_parallel::TransportLoop loop_;  // last: its thread uses all of the above
};

}  // namespace brigade::bench
