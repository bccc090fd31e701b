// A communicator of the stand-in: one or two ranks, in one process or two, over a Unix socket. Its
// transfers run on streams, in the order of their launches, and check that both ends name the same
// count and type. Private to the NCCL stand-in.
//
// Threads: api calls any; transfers on streams; joining and deferred launches on threads of their
// own.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace brigade::cuda_emulation {

struct Transfer {
  bool send = false;
  void* data = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  int peer = 0;
  cudaStream_t stream = nullptr;
};
size_t nccl_type_bytes(ncclDataType_t type);  // 0: no such type

// Counts and tells a forbidden use; returns `result`.
ncclResult_t violation(ncclResult_t result, const std::string& what);
// Up to the longest delay, now and then.
void random_delay();
bool random_choice(int one_in);

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int ranks, int rank, int device, bool blocking);
  ~Communicator();

  // Meets the other rank at the socket that `id` names.
  ncclResult_t join(const std::string& id);
  void start_joining(const std::string& id);  // in the background

  // What ncclCommGetAsyncError says.
  ncclResult_t state();
  std::string last_error();
  void fail(ncclResult_t result, const std::string& why);
  bool blocking() const { return blocking_; }
  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  int device() const { return device_; }

  // A launch: begin, connect (waits for the peer's first launch), queue on the stream, end.
  void begin_launch();
  ncclResult_t connect();
  ncclResult_t queue(std::vector<Transfer> transfers);
  void end_launch(ncclResult_t result);

  bool transfers_outstanding();
  void finalize();
  bool finalized();
  // Stops transfers and joining, waits until none of them runs any more.
  void abort();

 private:
  struct Cursor;
  void run(const std::vector<Transfer>& transfers, uint64_t ticket);
  ncclResult_t exchange(const std::vector<Transfer>& transfers);
  ncclResult_t copy_to_self(const std::vector<Transfer>& transfers);
  bool advance(Cursor& cursor, ncclResult_t* result);
  bool wait_for_socket(int fd, short events);  // false: aborted
  ncclResult_t meet(const std::string& id);
  bool say_and_hear(const void* say, void* hear, size_t bytes);
  bool aborted();

  const int ranks_, rank_, device_;
  const bool blocking_;
  int socket_ = -1;
  int stop_ = -1;  // eventfd, readable once aborted
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  ncclResult_t state_ = ncclSuccess;
  std::string last_error_;
  bool aborted_ = false, finalized_ = false, connected_ = false;
  int busy_ = 0;                         // threads inside join, connect or a transfer
  uint64_t next_ticket_ = 0, turn_ = 0;  // transfers that were queued and that have ended
};

}  // namespace brigade::cuda_emulation
