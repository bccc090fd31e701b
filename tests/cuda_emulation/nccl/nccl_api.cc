// Stand-ins for the NCCL calls in use, under their real names and signatures. What NCCL forbids is
// refused here; what it allows and nobody needs is refused too, and says so.
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "tests/cuda_emulation/nccl/communicator.h"
#include "tests/cuda_emulation/nccl/nccl_control.h"
#include "tests/cuda_emulation/runtime/device_memory.h"
#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/stream_queue.h"

using brigade::cuda_emulation::Communicator;
using brigade::cuda_emulation::Transfer;
using brigade::cuda_emulation::violation;

// What the header only names: a handle, whose address never comes back.
struct ncclComm {
  int unused = 0;
};

namespace {

std::atomic<long> communicators_made{0}, communicators_aborted{0}, communicators_destroyed{0};

void report() {
  std::fprintf(stderr,
               "NCCL stand-in report: %ld communicators made, %ld aborted, %ld destroyed, %ld "
               "transfers, %ld forbidden uses\n",
               communicators_made.load(), communicators_aborted.load(),
               communicators_destroyed.load(),
               static_cast<long>(brigade::cuda_emulation::nccl_transfers()),
               static_cast<long>(brigade::cuda_emulation::nccl_violations()));
}

void count_made() {
  static const bool reports =
      brigade::cuda_emulation::environment_number("BRIGADE_EMULATED_NCCL_REPORT", 0) != 0 &&
      std::atexit(report) == 0;
  (void)reports;
  ++communicators_made;
}

class Registry {
 public:
  ncclComm_t add(std::shared_ptr<Communicator> comm) {
    std::lock_guard<std::mutex> lock(mutex_);
    handles_.push_back(std::make_unique<ncclComm>());
    live_[handles_.back().get()] = std::move(comm);
    return handles_.back().get();
  }
  std::shared_ptr<Communicator> find(ncclComm_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = live_.find(handle);
    return found == live_.end() ? nullptr : found->second;
  }
  void fail_newest(int count) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto handle = handles_.rbegin(); handle != handles_.rend() && count > 0; ++handle) {
      const auto found = live_.find(handle->get());
      if (found == live_.end()) continue;
      found->second->fail(ncclRemoteError, "the network says that the other rank has gone");
      --count;
    }
  }
  std::shared_ptr<Communicator> remove(ncclComm_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto node = live_.extract(handle);
    return node.empty() ? nullptr : node.mapped();
  }

 private:
  std::mutex mutex_;
  std::map<ncclComm_t, std::shared_ptr<Communicator>> live_;  // guarded by mutex_
  std::vector<std::unique_ptr<ncclComm>> handles_;            // guarded by mutex_
};

Registry& registry() {
  static auto* const all = new Registry;  // outlives every thread
  return *all;
}

}  // namespace

void brigade::cuda_emulation::fail_newest_communicators(int count) {
  registry().fail_newest(count);
}

namespace {

// Transfers of one communicator in a group.
struct Launch {
  std::shared_ptr<Communicator> comm;
  std::vector<Transfer> transfers;
};

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Launch> launches;
};
thread_local Group group;

// As NCCL does, one that fails takes the group's others with it.
ncclResult_t launch(const std::vector<Launch>& launches) {
  brigade::cuda_emulation::random_delay();
  ncclResult_t result = ncclSuccess;
  for (const Launch& one : launches) {
    if (result == ncclSuccess) result = one.comm->connect();
  }
  for (const Launch& one : launches) {
    if (result == ncclSuccess) result = one.comm->queue(one.transfers);
  }
  for (const Launch& one : launches) one.comm->end_launch(result);
  return result;
}

// Sends to the own rank have receives of the same size in the same group.
bool matched_with_self(const Launch& one) {
  std::vector<size_t> sizes[2];
  for (const Transfer& t : one.transfers) {
    if (t.peer != one.comm->rank()) return sizes[0].empty() && sizes[1].empty();
    sizes[t.send].push_back(t.count * brigade::cuda_emulation::nccl_type_bytes(t.type));
  }
  return sizes[0] == sizes[1];
}

ncclResult_t end_group() {
  const std::vector<Launch> launches = std::exchange(group.launches, {});
  const ncclResult_t error = std::exchange(group.error, ncclSuccess);
  if (launches.empty()) return error;
  if (error != ncclSuccess) {
    for (const Launch& one : launches) one.comm->fail(error, "another of its group was refused");
    return error;
  }
  bool blocking = false;
  for (const Launch& one : launches) {
    blocking |= one.comm->blocking();
    const bool to_self = one.transfers[0].peer == one.comm->rank();
    if (to_self && !matched_with_self(one))
      return violation(ncclInvalidUsage, "a send to the own rank without a receive in its group");
    for (const Transfer& t : one.transfers) {
      if (t.stream != one.transfers[0].stream)
        return violation(ncclInvalidUsage,
                         "transfers of a communicator on two streams: not emulated");
    }
  }
  for (const Launch& one : launches) one.comm->begin_launch();
  // A launch that is not blocking goes on after the call.
  if (blocking) return launch(launches);
  std::thread([launches] { launch(launches); }).detach();
  return ncclInProgress;
}

ncclResult_t check(const Communicator& comm, ncclResult_t state, const Transfer& transfer,
                   size_t bytes) {
  using brigade::cuda_emulation::DeviceMemory;
  using brigade::cuda_emulation::MemoryKind;
  if (state == ncclInProgress)
    return violation(ncclInvalidArgument, "a communicator is used before its last call has ended");
  if (state != ncclSuccess) return state;
  const auto& c = const_cast<Communicator&>(comm);
  if (transfer.peer < 0 || transfer.peer >= c.ranks())
    return violation(ncclInvalidArgument, "no rank " + std::to_string(transfer.peer));
  if (bytes == 0 && transfer.count > 0)
    return violation(ncclInvalidArgument, "a type that is not emulated");
  if (!DeviceMemory::instance().holds(MemoryKind::kDevice, transfer.data, bytes))
    return violation(ncclInvalidArgument, "the buffer does not lie in one allocation of a device");
  if (brigade::cuda_emulation::stream_device(transfer.stream) != c.device())
    return violation(ncclInvalidUsage, "the stream is not one of the communicator's device");
  if (brigade::cuda_emulation::is_capturing(transfer.stream))
    return violation(ncclInvalidUsage, "a transfer in a capture: not emulated");
  if (transfer.peer == c.rank() && group.depth == 0)
    return violation(ncclInvalidUsage, "a transfer with the own rank outside a group");
  return ncclSuccess;
}

ncclResult_t add(ncclComm_t handle, const Transfer& transfer) {
  const std::shared_ptr<Communicator> comm = registry().find(handle);
  if (comm == nullptr) {
    group.error = ncclInvalidArgument;
    return violation(ncclInvalidArgument,
                     "a communicator that was destroyed, aborted or never made");
  }
  const size_t bytes = transfer.count * brigade::cuda_emulation::nccl_type_bytes(transfer.type);
  const ncclResult_t checked = check(*comm, comm->state(), transfer, bytes);
  if (checked != ncclSuccess) {
    if (group.depth > 0) group.error = checked;
    return checked;
  }
  Launch* mine = nullptr;
  for (Launch& one : group.launches) {
    if (one.comm == comm) mine = &one;
  }
  if (mine == nullptr) mine = &group.launches.emplace_back(Launch{comm, {}});
  mine->transfers.push_back(transfer);
  return group.depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t make(ncclComm_t* out, int ranks, const ncclUniqueId& id, int rank, bool blocking) {
  if (out == nullptr || ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  if (ranks > 2) return violation(ncclInvalidArgument, "more than two ranks: not emulated");
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  count_made();
  auto comm = std::make_shared<Communicator>(ranks, rank, device, blocking);
  *out = registry().add(comm);
  const std::string name(id.internal, strnlen(id.internal, sizeof(id.internal)));
  if (!blocking) {
    comm->start_joining(name);
    return ncclInProgress;
  }
  return comm->join(name);
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::random_device random;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "brigade-nccl-%d-%08x%08x",
                static_cast<int>(getpid()), random(), random());
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t handle) {
  thread_local std::string text;
  const auto comm = registry().find(handle);
  text = comm == nullptr ? "" : comm->last_error();
  return text.c_str();
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return make(comm, ranks, id, rank, /*blocking=*/true);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const ncclConfig_t untouched = NCCL_CONFIG_INITIALIZER;
  if (config != nullptr && (config->size != untouched.size || config->magic != untouched.magic))
    return violation(ncclInvalidArgument, "a config that was not initialised");
  const bool blocking = config == nullptr || config->blocking != 0;
  if (config != nullptr && config->minCTAs != NCCL_CONFIG_UNDEF_INT &&
      (config->minCTAs < 1 || config->minCTAs > config->maxCTAs)) {
    return violation(ncclInvalidArgument, "minCTAs and maxCTAs of the config do not fit");
  }
  return make(comm, ranks, id, rank, blocking);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  const auto comm = registry().find(handle);
  if (comm == nullptr)
    return violation(ncclInvalidArgument, "asked for the state of a communicator that has ended");
  *state = comm->state();
  if (*state == ncclSuccess && comm->finalized() && comm->transfers_outstanding())
    *state = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  const auto comm = registry().find(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  *count = comm->ranks();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  const auto comm = registry().find(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  *rank = comm->rank();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const auto comm = registry().find(handle);
  if (comm == nullptr || comm->finalized())
    return violation(ncclInvalidArgument, "finalizes a communicator that has ended");
  comm->finalize();
  return comm->transfers_outstanding() ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  const auto comm = registry().find(handle);
  if (comm == nullptr) return violation(ncclInvalidArgument, "destroys a communicator twice");
  if (comm->transfers_outstanding() || comm->state() == ncclInProgress)
    return violation(ncclInvalidUsage, "destroys a communicator with operations outstanding");
  registry().remove(handle);
  comm->abort();
  ++communicators_destroyed;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const auto comm = registry().find(handle);
  if (comm == nullptr) return violation(ncclInvalidArgument, "aborts a communicator twice");
  comm->abort();
  registry().remove(handle);
  ++communicators_aborted;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return violation(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  return --group.depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add(comm, {true, const_cast<void*>(data), count, type, peer, stream});
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(comm, {false, data, count, type, peer, stream});
}
