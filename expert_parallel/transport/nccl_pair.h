// The GPU side of one link: two communicators of two ranks each, one for either direction, with a
// stream each. Two, because the operations of a communicator run in one order at both ends: with a
// single one an answer could wait behind a question whose receiver waits for the answer to go.
//
// Joining and ending may take long inside NCCL, so each has a thread of its own; the transport's
// thread makes all other calls and never waits. A pair that does not end keeps its memory for ever
// and disturbs nobody.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "expert_parallel/transport/event_fd.h"
#include "expert_parallel/transport/nccl_address.h"

namespace brigade::expert_parallel {

enum class Way { kOut, kIn };

// "ncclSend: <NCCL's words>", with what the communicator (or null) has to add.
absl::Status nccl_error(ncclResult_t result, const char* call, ncclComm_t comm);

class NcclPair : public std::enable_shared_from_this<NcclPair> {
 public:
  // `changed` is signalled whenever a state changes or a transfer passes; any thread.
  static absl::StatusOr<std::shared_ptr<NcclPair>> create(int ordinal,
                                                          std::shared_ptr<EventFd> changed);
  ~NcclPair();

  struct Join {
    int rank = 0;
    std::array<NcclId, 2> ids{};  // of the communicator from rank 0 to rank 1, and of the other
    int blocks = 1;
    std::byte* scratch = nullptr;  // device, kScratchBytes
    absl::Time deadline;
  };
  static constexpr size_t kScratchBytes = 512;
  // Begins in the background, once. Ends with one transfer each way, so that later launches wait
  // for no peer to connect.
  void join(const Join& join);
  // Ends both communicators in the background, with transfers under way or not.
  void abort();

  bool joining() const { return state_ == State::kJoining; }
  bool ready() const { return state_ == State::kReady; }
  // Nothing of the pair runs any more; memory it used is free.
  bool ended() const { return state_ == State::kEnded; }
  // Why joining has failed; OK otherwise.
  absl::Status failure() const;

  // While ready():
  ncclComm_t comm(Way way) const { return end(way).comm; }
  cudaStream_t stream(Way way) const { return end(way).stream; }
  // OK, or what NCCL found since it was last asked. `in_progress`: a launch has not ended.
  absl::Status nccl_state(Way way, bool* in_progress) const;
  // The same, or a fault of the GPU.
  absl::Status health(Way way) const;
  // Marks: the number that the next mark() of this direction will have; a mark after all that is on
  // the stream; how many have passed.
  uint64_t next_mark(Way way) const { return end(way).marks + 1; }
  absl::Status mark(Way way);
  uint64_t passed(Way way) const { return end(way).clock.passed.load(std::memory_order_acquire); }

 private:
  enum class State { kNew, kJoining, kReady, kEnding, kEnded };
  struct Clock {
    std::atomic<uint64_t> passed{0};
    EventFd* changed = nullptr;
  };
  struct End {
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    uint64_t marks = 0;
    Clock clock;
  };
  NcclPair(int ordinal, std::shared_ptr<EventFd> changed);
  static void tick(void* clock);
  const End& end(Way way) const { return ends_[static_cast<size_t>(way)]; }
  End& end(Way way) { return ends_[static_cast<size_t>(way)]; }
  void run_join(const Join& join);
  absl::Status make_communicators(const Join& join);
  absl::Status touch_peer(const Join& join);
  absl::Status await(ncclComm_t comm, const char* what, absl::Time deadline) const;
  absl::Status await_idle(Way way, absl::Time deadline) const;
  void run_end();
  void set(State state);

  const int ordinal_;
  const std::shared_ptr<EventFd> changed_;
  std::array<End, 2> ends_;
  std::atomic<State> state_{State::kNew};
  std::atomic<bool> leave_{false};
  mutable std::mutex mutex_;  // guards changes of state, and:
  absl::Status failure_;
};

}  // namespace brigade::expert_parallel
