// Communicator's transfers: on the stream, label and bytes of each over the pair's socket.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>

#include "tests/cuda_emulation/nccl/communicator.h"
#include "tests/cuda_emulation/nccl/nccl_control.h"
#include "tests/cuda_emulation/runtime/devices.h"

namespace brigade::cuda_emulation {
namespace {

std::atomic<uint64_t> transfers_done{0}, transfers_begun{0};

// In front of each transfer's bytes.
struct Label {
  uint64_t count;
  uint32_t type;
  uint32_t magic;
};
constexpr uint32_t kMagic = 0x4e43434c;

// The n-th transfer of the process dies half-way.
void maybe_die() {
  static const uint64_t kill_after = environment_number("BRIGADE_EMULATED_NCCL_KILL_AFTER", 0);
  if (kill_after != 0 && transfers_begun == kill_after) raise(SIGKILL);
}

}  // namespace

uint64_t nccl_transfers() { return transfers_done; }

size_t nccl_type_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

// On the stream. What fails stays on the GPU until the communicator is aborted, as a kernel does.
void Communicator::run(const std::vector<Transfer>& transfers, uint64_t ticket) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return aborted_ || turn_ == ticket; });
    if (aborted_) return;
    ++busy_;
  }
  random_delay();
  const ncclResult_t result = exchange(transfers);
  static const bool silent = environment_number("BRIGADE_EMULATED_NCCL_SILENT", 0) != 0;
  if (result != ncclSuccess && !(silent && result == ncclRemoteError))
    fail(result, result == ncclRemoteError ? "the other rank has gone" : last_nccl_violation());
  std::unique_lock<std::mutex> lock(mutex_);
  if (result == ncclSuccess) {
    ++turn_;
    transfers_done += transfers.size();
  } else {
    changed_.wait(lock, [&] { return aborted_; });
  }
  --busy_;
  changed_.notify_all();
}

// One direction of a launch: its transfers one after the other, label and bytes.
struct Communicator::Cursor {
  std::vector<const Transfer*> transfers;
  size_t next = 0;
  size_t moved = 0;  // of the next one, its label included
  Label label{};
  bool done() const { return next == transfers.size(); }
};

// Moves what the socket takes or has; false when it takes nothing now or the transfer failed.
bool Communicator::advance(Cursor& cursor, ncclResult_t* result) {
  const Transfer& transfer = *cursor.transfers[cursor.next];
  const size_t bytes = transfer.count * nccl_type_bytes(transfer.type);
  const bool labelling = cursor.moved < sizeof(Label);
  const bool starts = transfer.send && cursor.moved == 0;
  if (starts) cursor.label = {transfer.count, static_cast<uint32_t>(transfer.type), kMagic};
  if (transfer.send && cursor.moved >= sizeof(Label) + bytes / 2) maybe_die();
  char* at = labelling ? reinterpret_cast<char*>(&cursor.label) + cursor.moved
                       : static_cast<char*>(transfer.data) + (cursor.moved - sizeof(Label));
  size_t left = (labelling ? sizeof(Label) : sizeof(Label) + bytes) - cursor.moved;
  if (transfer.send && !labelling) left = std::min(left, std::max<size_t>(1, (bytes + 1) / 2));
  const ssize_t n = left == 0       ? 0
                    : transfer.send ? ::send(socket_, at, left, MSG_NOSIGNAL)
                                    : recv(socket_, at, left, 0);
  if (left > 0 && n <= 0) {
    if (n == 0 || errno != EAGAIN) *result = ncclRemoteError;
    return false;
  }
  cursor.moved += n;
  if (starts) ++transfers_begun;
  if (!transfer.send && labelling && cursor.moved == sizeof(Label) &&
      (cursor.label.count != transfer.count || cursor.label.magic != kMagic ||
       cursor.label.type != static_cast<uint32_t>(transfer.type))) {
    *result =
        violation(ncclInvalidUsage, "a send of " + std::to_string(cursor.label.count) +
                                        " elements of type " + std::to_string(cursor.label.type) +
                                        " meets a receive of " + std::to_string(transfer.count) +
                                        " of type " + std::to_string(transfer.type));
    return false;
  }
  if (cursor.moved == sizeof(Label) + bytes) {
    ++cursor.next;
    cursor.moved = 0;
  }
  return true;
}

ncclResult_t Communicator::exchange(const std::vector<Transfer>& transfers) {
  if (transfers[0].peer == rank_) return copy_to_self(transfers);
  Cursor sends, receives;
  for (const Transfer& transfer : transfers)
    (transfer.send ? sends : receives).transfers.push_back(&transfer);
  ncclResult_t result = ncclSuccess;
  while (!sends.done() || !receives.done()) {
    bool moved = false;
    if (!sends.done()) moved |= advance(sends, &result);
    if (!receives.done() && result == ncclSuccess) moved |= advance(receives, &result);
    if (result != ncclSuccess) return result;
    if (moved) continue;
    const short events =
        static_cast<short>((sends.done() ? 0 : POLLOUT) | (receives.done() ? 0 : POLLIN));
    if (!wait_for_socket(socket_, events)) return ncclInternalError;
  }
  return ncclSuccess;
}

// Checked at the group's end: as many receives as sends, of the same sizes.
ncclResult_t Communicator::copy_to_self(const std::vector<Transfer>& transfers) {
  std::deque<const Transfer*> sends;
  for (const Transfer& t : transfers) {
    if (t.send) sends.push_back(&t);
  }
  for (const Transfer& t : transfers) {
    if (t.send) continue;
    std::memmove(t.data, sends.front()->data, t.count * nccl_type_bytes(t.type));
    sends.pop_front();
  }
  return ncclSuccess;
}

}  // namespace brigade::cuda_emulation
