#include "tests/cuda_emulation/nccl/communicator.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <thread>

#include "tests/cuda_emulation/nccl/nccl_control.h"
#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/stream_queue.h"

namespace brigade::cuda_emulation {
namespace {

std::atomic<uint64_t> violations{0};
std::mutex text_mutex;
std::string last_violation;  // guarded by text_mutex

// What each end says when they meet.
struct Hello {
  int32_t ranks, rank, device, version;
};

uint64_t random_number() {
  static std::mutex mutex;
  static std::mt19937_64 source(environment_number("BRIGADE_EMULATED_NCCL_SEED", 1));
  std::lock_guard<std::mutex> lock(mutex);
  return source();
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
