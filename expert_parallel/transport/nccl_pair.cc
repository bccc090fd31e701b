#include "expert_parallel/transport/nccl_pair.h"

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "kernels/cuda/cuda_status.h"

namespace brigade::expert_parallel {
namespace {

using kernels::cuda::cuda_status;

constexpr absl::Duration kLook = absl::Microseconds(500);
// For a stream to run dry once its communicator is gone.
constexpr absl::Duration kLastWork = absl::Seconds(60);

void keep_for_ever(std::shared_ptr<NcclPair> pair) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<NcclPair>>;
  std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::move(pair));
}

// Of a query: OK also while work is under way, which CUDA notes as the thread's last error.
absl::Status stream_error(cudaError_t queried) {
  if (queried != cudaErrorNotReady) return cuda_status(queried, "cudaStreamQuery");
  cudaGetLastError();
  return absl::OkStatus();
}

bool begun(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

}  // namespace

absl::Status nccl_error(ncclResult_t result, const char* call, ncclComm_t comm) {
  std::string text = absl::StrCat(call, ": ", ncclGetErrorString(result));
  const char* more = comm == nullptr ? nullptr : ncclGetLastError(comm);
  if (more != nullptr && *more != '\0') absl::StrAppend(&text, ": ", more);
  return absl::UnavailableError(text);
}

absl::StatusOr<std::shared_ptr<NcclPair>> NcclPair::create(int ordinal,
                                                           std::shared_ptr<EventFd> changed) {
  auto pair = std::shared_ptr<NcclPair>(new NcclPair(ordinal, std::move(changed)));
  // Before all other work: a transfer for which a peer waits must not stand behind the blocks of a
  // long kernel, nor share a hardware queue with it.
  int least = 0, greatest = 0;
  RETURN_IF_ERROR(cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                              "cudaDeviceGetStreamPriorityRange"));
  for (End& end : pair->ends_) {
    RETURN_IF_ERROR(
        cuda_status(cudaStreamCreateWithPriority(&end.stream, cudaStreamNonBlocking, greatest),
                    "cudaStreamCreateWithPriority", greatest));
  }
  return pair;
}

NcclPair::NcclPair(int ordinal, std::shared_ptr<EventFd> changed)
    : ordinal_(ordinal), changed_(std::move(changed)) {
  for (End& end : ends_) end.clock.changed = changed_.get();
}

NcclPair::~NcclPair() {
  for (End& end : ends_) {
    if (end.stream != nullptr) cudaStreamDestroy(end.stream);
  }
}

void NcclPair::set(State state) {
  state_ = state;
  changed_->signal();
}

absl::Status NcclPair::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void NcclPair::join(const Join& join) {
  std::lock_guard<std::mutex> lock(mutex_);
  CHECK(state_ == State::kNew);
  state_ = State::kJoining;
  std::thread([self = shared_from_this(), join] { self->run_join(join); }).detach();
}

void NcclPair::run_join(const Join& join) {
  absl::Status status = make_communicators(join);
  if (status.ok()) status = touch_peer(join);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status.ok() && !leave_) return set(State::kReady);
    failure_ = status;
    set(State::kEnding);
  }
  run_end();
}

void NcclPair::abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kNew) return set(State::kEnded);
  leave_ = true;  // a joining thread sees to the rest
  if (state_ != State::kReady) return;
  state_ = State::kEnding;
  std::thread([self = shared_from_this()] { self->run_end(); }).detach();
}

// Abort and not finalize: transfers may be under way that the far end will never meet.
void NcclPair::run_end() {
  cudaSetDevice(ordinal_);
  for (End& end : ends_) {
    if (end.comm != nullptr) (void)ncclCommAbort(end.comm);
  }
  const absl::Time deadline = absl::Now() + kLastWork;
  for (const Way way : {Way::kOut, Way::kIn}) {
    const absl::Status idle = await_idle(way, deadline);
    if (absl::IsDeadlineExceeded(idle)) return;  // for ever: see the header
    // Of a GPU that has failed CUDA does not say whether it is in the middle of a last tick().
    if (!idle.ok()) keep_for_ever(shared_from_this());
  }
  set(State::kEnded);
}

absl::Status NcclPair::make_communicators(const Join& join) {
  RETURN_IF_ERROR(cuda_status(cudaSetDevice(ordinal_), "cudaSetDevice"));
  for (int i = 0; i < 2; ++i) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = join.blocks;
    config.cgaClusterSize = 0;  // each block starts on the first multiprocessor with room
    ncclUniqueId id;
    static_assert(sizeof(id.internal) == sizeof(NcclId));
    std::memcpy(id.internal, join.ids[i].data(), sizeof(id.internal));
    ncclComm_t& comm = end(i == join.rank ? Way::kOut : Way::kIn).comm;
    const ncclResult_t result = ncclCommInitRankConfig(&comm, 2, id, join.rank, &config);
    if (!begun(result)) return nccl_error(result, "ncclCommInitRankConfig", comm);
    RETURN_IF_ERROR(await(comm, "ncclCommInitRankConfig", join.deadline));
  }
  return absl::OkStatus();
}

// Both ends in the order of the ids. NCCL connects two ranks in their first transfer, and a launch
// with such a transfer in it waits for the peer: it must not happen in a group with other pairs.
absl::Status NcclPair::touch_peer(const Join& join) {
  const int peer = 1 - join.rank;
  for (int i = 0; i < 2; ++i) {
    const bool out = i == join.rank;
    const End& mine = end(out ? Way::kOut : Way::kIn);
    std::byte* scratch = join.scratch + (out ? 0 : kScratchBytes / 2);
    const ncclResult_t result = out ? ncclSend(scratch, 1, ncclInt8, peer, mine.comm, mine.stream)
                                    : ncclRecv(scratch, 1, ncclInt8, peer, mine.comm, mine.stream);
    if (!begun(result)) return nccl_error(result, "the first transfer", mine.comm);
    RETURN_IF_ERROR(await(mine.comm, "the first transfer", join.deadline));
  }
  RETURN_IF_ERROR(await_idle(Way::kOut, join.deadline));
  return await_idle(Way::kIn, join.deadline);
}

absl::Status NcclPair::await(ncclComm_t comm, const char* what, absl::Time deadline) const {
  while (true) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return nccl_error(asked, "ncclCommGetAsyncError", comm);
    if (state == ncclSuccess) return absl::OkStatus();
    if (state != ncclInProgress) return nccl_error(state, what, comm);
    if (leave_) return absl::CancelledError("the link was closed");
    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError(absl::StrCat(what, ": the peer did not come in time"));
    absl::SleepFor(kLook);
  }
}

absl::Status NcclPair::await_idle(Way way, absl::Time deadline) const {
  while (true) {
    const cudaError_t state = cudaStreamQuery(stream(way));
    if (state != cudaErrorNotReady) return cuda_status(state, "cudaStreamQuery");
    if (leave_ && state_ == State::kJoining) return absl::CancelledError("the link was closed");
    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError("a transfer of NCCL did not end in time");
    absl::SleepFor(kLook);
  }
}

absl::Status NcclPair::nccl_state(Way way, bool* in_progress) const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm(way), &state);
  *in_progress = asked == ncclSuccess && state == ncclInProgress;
  if (asked != ncclSuccess) return nccl_error(asked, "ncclCommGetAsyncError", comm(way));
  if (state != ncclSuccess && state != ncclInProgress)
    return nccl_error(state, "a transfer of NCCL", comm(way));
  return absl::OkStatus();
}

absl::Status NcclPair::health(Way way) const {
  bool in_progress;
  RETURN_IF_ERROR(nccl_state(way, &in_progress));
  // Behind a fault of the GPU nothing on the stream will be told of.
  return stream_error(cudaStreamQuery(stream(way)));
}

absl::Status NcclPair::mark(Way way) {
  End& mine = end(way);
  RETURN_IF_ERROR(
      cuda_status(cudaLaunchHostFunc(mine.stream, &tick, &mine.clock), "cudaLaunchHostFunc"));
  ++mine.marks;
  return absl::OkStatus();
}

// CUDA's thread.
void NcclPair::tick(void* clock) {
  auto* mine = static_cast<Clock*>(clock);
  mine->passed.fetch_add(1, std::memory_order_release);
  mine->changed->signal();
}

}  // namespace brigade::expert_parallel
