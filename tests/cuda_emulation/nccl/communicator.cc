#include "tests/cuda_emulation/nccl/communicator.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <random>
#include <thread>

#include "tests/cuda_emulation/nccl/nccl_control.h"
#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/stream_queue.h"

namespace brigade::cuda_emulation {
namespace {

std::atomic<uint64_t> violations{0}, transfers_done{0}, transfers_begun{0};
std::mutex text_mutex;
std::string last_violation;  // guarded by text_mutex

// What each end says when they meet.
struct Hello {
  int32_t ranks, rank, device, version;
};
// In front of each transfer's bytes.
struct Label {
  uint64_t count;
  uint32_t type;
  uint32_t magic;
};
constexpr uint32_t kMagic = 0x4e43434c;

uint64_t random_number() {
  static std::mutex mutex;
  static std::mt19937_64 source(environment_number("BRIGADE_EMULATED_NCCL_SEED", 1));
  std::lock_guard<std::mutex> lock(mutex);
  return source();
}

// The n-th transfer of the process dies half-way.
void maybe_die() {
  static const uint64_t kill_after = environment_number("BRIGADE_EMULATED_NCCL_KILL_AFTER", 0);
  if (kill_after != 0 && transfers_begun == kill_after) raise(SIGKILL);
}

sockaddr_un name_of(const std::string& id, socklen_t* bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // an abstract name: nothing is left in a folder
  const size_t size = std::min(id.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, id.data(), size);
  *bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

}  // namespace

uint64_t nccl_violations() { return violations; }
uint64_t nccl_transfers() { return transfers_done; }
std::string last_nccl_violation() {
  std::lock_guard<std::mutex> lock(text_mutex);
  return last_violation;
}

ncclResult_t violation(ncclResult_t result, const std::string& what) {
  ++violations;
  std::cerr << "NCCL stand-in: " << what << "\n";
  std::lock_guard<std::mutex> lock(text_mutex);
  last_violation = what;
  return result;
}

// The sleep is the injected fault: it moves transfers of different pairs against each other.
void random_delay() {
  static const uint64_t longest = environment_number("BRIGADE_EMULATED_NCCL_DELAY_US", 200);
  if (longest > 0 && random_choice(4))
    std::this_thread::sleep_for(std::chrono::microseconds(random_number() % (longest + 1)));
}

bool random_choice(int one_in) { return random_number() % one_in == 0; }

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

Communicator::Communicator(int ranks, int rank, int device, bool blocking)
    : ranks_(ranks),
      rank_(rank),
      device_(device),
      blocking_(blocking),
      stop_(eventfd(0, EFD_CLOEXEC)) {}

Communicator::~Communicator() {
  if (socket_ >= 0) close(socket_);
  close(stop_);
}

ncclResult_t Communicator::state() {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}
std::string Communicator::last_error() {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_error_;
}
bool Communicator::aborted() {
  std::lock_guard<std::mutex> lock(mutex_);
  return aborted_;
}

void Communicator::fail(ncclResult_t result, const std::string& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != ncclSuccess && state_ != ncclInProgress) return;
  state_ = result;
  last_error_ = why;
}

bool Communicator::wait_for_socket(int fd, short events) {
  pollfd wait[2] = {{fd, events, 0}, {stop_, POLLIN, 0}};
  while (poll(wait, 2, -1) < 0 && errno == EINTR) {
  }
  return (wait[1].revents & POLLIN) == 0;
}

void Communicator::start_joining(const std::string& id) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    state_ = ncclInProgress;
    ++busy_;
  }
  std::thread([self = shared_from_this(), id] {
    random_delay();
    const ncclResult_t result = self->meet(id);
    std::lock_guard<std::mutex> lock(self->mutex_);
    if (self->state_ == ncclInProgress) self->state_ = result;
    --self->busy_;
    self->changed_.notify_all();
  }).detach();
}

ncclResult_t Communicator::join(const std::string& id) {
  const ncclResult_t result = meet(id);
  if (result != ncclSuccess) fail(result, last_error());
  return result;
}

ncclResult_t Communicator::meet(const std::string& id) {
  if (ranks_ == 1) return ncclSuccess;
  socklen_t bytes;
  const sockaddr_un address = name_of(id, &bytes);
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (rank_ == 0) {
    if (bind(fd, name, bytes) != 0 || listen(fd, 1) != 0) {
      close(fd);
      return violation(ncclInvalidUsage, "an id was used for two communicators");
    }
    if (wait_for_socket(fd, POLLIN)) socket_ = accept4(fd, nullptr, nullptr, SOCK_NONBLOCK);
    close(fd);
  } else {
    while (::connect(fd, name, bytes) != 0) {  // the other rank may come later
      pollfd stop = {stop_, POLLIN, 0};
      if (poll(&stop, 1, 2) > 0) {
        close(fd);
        return ncclInternalError;
      }
    }
    socket_ = fd;
  }
  if (socket_ < 0) return ncclInternalError;
  const Hello mine = {ranks_, rank_, device_, NCCL_VERSION_CODE};
  Hello theirs{};
  if (!say_and_hear(&mine, &theirs, sizeof(mine))) {
    fail(ncclRemoteError, "the other rank left while it joined");
    return ncclRemoteError;
  }
  if (theirs.ranks != ranks_ || theirs.rank == rank_) {
    fail(ncclInvalidUsage, "ranks do not fit");
    return violation(ncclInvalidUsage, "two ranks joined with numbers that do not fit");
  }
  if (theirs.device == device_) {
    fail(ncclInvalidUsage, "Duplicate GPU detected");
    return violation(ncclInvalidUsage, "both ranks are on the same device");
  }
  return ncclSuccess;
}

bool Communicator::say_and_hear(const void* say, void* hear, size_t bytes) {
  size_t said = 0, heard = 0;
  while (said < bytes || heard < bytes) {
    const short events =
        static_cast<short>((said < bytes ? POLLOUT : 0) | (heard < bytes ? POLLIN : 0));
    if (!wait_for_socket(socket_, events)) return false;
    if (said < bytes) {
      const ssize_t n =
          ::send(socket_, static_cast<const char*>(say) + said, bytes - said, MSG_NOSIGNAL);
      if (n > 0) said += n;
      if (n < 0 && errno != EAGAIN) return false;
    }
    if (heard < bytes) {
      const ssize_t n = recv(socket_, static_cast<char*>(hear) + heard, bytes - heard, 0);
      if (n > 0) heard += n;
      if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
    }
  }
  return true;
}

void Communicator::begin_launch() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == ncclSuccess) state_ = ncclInProgress;
  ++busy_;
}

// As NCCL connects two ranks inside the first launch with a transfer between them.
ncclResult_t Communicator::connect() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return ncclInternalError;
    if (connected_ || ranks_ == 1) return ncclSuccess;
  }
  const char say = 'c';
  char hear = 0;
  if (!say_and_hear(&say, &hear, 1)) return aborted() ? ncclInternalError : ncclRemoteError;
  std::lock_guard<std::mutex> lock(mutex_);
  connected_ = true;
  return ncclSuccess;
}

ncclResult_t Communicator::queue(std::vector<Transfer> transfers) {
  uint64_t ticket;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return ncclInternalError;
    ticket = next_ticket_++;
  }
  const cudaStream_t stream = transfers[0].stream;
  const cudaError_t queued =
      submit(stream, {.run = [self = shared_from_this(), transfers = std::move(transfers), ticket] {
               self->run(transfers, ticket);
             }});
  return queued == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

void Communicator::end_launch(ncclResult_t result) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == ncclInProgress) state_ = result;
  --busy_;
  changed_.notify_all();
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

bool Communicator::transfers_outstanding() {
  std::lock_guard<std::mutex> lock(mutex_);
  return turn_ != next_ticket_;
}
void Communicator::finalize() {
  std::lock_guard<std::mutex> lock(mutex_);
  finalized_ = true;
}
bool Communicator::finalized() {
  std::lock_guard<std::mutex> lock(mutex_);
  return finalized_;
}

// Transfers that wait in a stream find the communicator aborted when they come to run.
void Communicator::abort() {
  std::unique_lock<std::mutex> lock(mutex_);
  aborted_ = true;
  const uint64_t one = 1;
  (void)!write(stop_, &one, sizeof(one));
  changed_.notify_all();
  changed_.wait(lock, [&] { return busy_ == 0; });
  if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
}

}  // namespace brigade::cuda_emulation
