// The stand-in itself: what NCCL allows works, what it forbids or would hang on is an error.
#include <nccl.h>

#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/nccl/nccl_control.h"

namespace brigade::tests {
namespace {

using cuda_emulation::last_nccl_violation;
using cuda_emulation::nccl_violations;

// One rank on its device, made without blocking, in this process.
struct Rank {
  int device = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  char* memory = nullptr;

  void use() const { ASSERT_EQ(cudaSetDevice(device), cudaSuccess); }
  void init(const ncclUniqueId& id, int rank, int on_device) {
    device = on_device;
    use();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), 4096), cudaSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
  }
  ncclResult_t state() const {
    ncclResult_t result = ncclInternalError;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &result), ncclSuccess);
    return result;
  }
  ncclResult_t settled() const {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (state() == ncclInProgress && absl::Now() < deadline)
      absl::SleepFor(absl::Microseconds(200));
    return state();
  }
};

class NcclStandIn : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = nccl_violations();
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    a_.init(id, 0, 0);
    b_.init(id, 1, 1);
    ASSERT_EQ(a_.settled(), ncclSuccess);
    ASSERT_EQ(b_.settled(), ncclSuccess);
  }
  void TearDown() override {
    for (Rank* rank : {&a_, &b_}) {
      if (rank->comm != nullptr) {
        EXPECT_EQ(ncclCommAbort(rank->comm), ncclSuccess);
      }
      EXPECT_EQ(cudaStreamSynchronize(rank->stream), cudaSuccess);
      EXPECT_EQ(cudaFree(rank->memory), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(rank->stream), cudaSuccess);
    }
  }
  // Both ends have launched and their streams are dry.
  void finish() {
    for (Rank* rank : {&a_, &b_}) {
      EXPECT_EQ(rank->settled(), ncclSuccess);
      EXPECT_EQ(cudaStreamSynchronize(rank->stream), cudaSuccess);
    }
  }
  uint64_t violations() const { return nccl_violations() - before_; }
  Rank a_, b_;
  uint64_t before_ = 0;
};

TEST_F(NcclStandIn, MovesBytesBothWaysInOneGroup) {
  char there[100], back[100], got[100];
  for (int i = 0; i < 100; ++i) {
    there[i] = static_cast<char>(i);
    back[i] = static_cast<char>(-i);
  }
  a_.use();
  ASSERT_EQ(cudaMemcpy(a_.memory, there, 100, cudaMemcpyHostToDevice), cudaSuccess);
  b_.use();
  ASSERT_EQ(cudaMemcpy(b_.memory, back, 100, cudaMemcpyHostToDevice), cudaSuccess);
  for (const Rank* rank : {&a_, &b_}) {
    const int peer = rank == &a_ ? 1 : 0;
    ncclGroupStart();
    EXPECT_EQ(ncclSend(rank->memory, 25, ncclFloat32, peer, rank->comm, rank->stream), ncclSuccess);
    EXPECT_EQ(ncclRecv(rank->memory + 2048, 25, ncclFloat32, peer, rank->comm, rank->stream),
              ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
  }
  finish();
  a_.use();
  ASSERT_EQ(cudaMemcpy(got, a_.memory + 2048, 100, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(0, memcmp(got, back, 100));
  b_.use();
  ASSERT_EQ(cudaMemcpy(got, b_.memory + 2048, 100, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(0, memcmp(got, there, 100));
  EXPECT_EQ(violations(), 0u);
}

// The planted bug: the ends of a transfer disagree.
TEST_F(NcclStandIn, CountsAndTypesThatDoNotMatchAreFound) {
  EXPECT_EQ(ncclSend(a_.memory, 8, ncclInt8, 1, a_.comm, a_.stream), ncclInProgress);
  EXPECT_EQ(ncclRecv(b_.memory, 16, ncclInt8, 0, b_.comm, b_.stream), ncclInProgress);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (violations() == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(violations(), 1u);
  EXPECT_EQ(last_nccl_violation(),
            "a send of 8 elements of type 0 meets a receive of 16 of type 0");
  while (b_.state() != ncclInvalidUsage && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(b_.state(), ncclInvalidUsage);
  EXPECT_EQ(cudaStreamQuery(b_.stream), cudaErrorNotReady) << "it stays on the GPU until the abort";
}

TEST_F(NcclStandIn, RefusesWhatNcclForbids) {
  const auto send = [](const Rank& rank, int peer) {
    return ncclSend(rank.memory, 8, ncclInt8, peer, rank.comm, rank.stream);
  };
  EXPECT_EQ(send(a_, 0), ncclInvalidUsage) << "to itself, outside a group";
  ncclGroupStart();
  EXPECT_EQ(send(a_, 0), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "to itself, without a receive";
  EXPECT_EQ(send(a_, 2), ncclInvalidArgument) << "no such rank";
  char host[8];
  EXPECT_EQ(ncclSend(host, 8, ncclInt8, 1, a_.comm, a_.stream), ncclInvalidArgument);
  EXPECT_EQ(ncclSend(a_.memory + 4090, 8, ncclInt8, 1, a_.comm, a_.stream), ncclInvalidArgument)
      << "beyond the allocation";
  EXPECT_EQ(ncclSend(a_.memory, 8, ncclInt8, 1, a_.comm, b_.stream), ncclInvalidUsage)
      << "another device's stream";
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  ncclComm_t never = nullptr;
  ncclConfig_t config{};
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  EXPECT_EQ(ncclCommInitRankConfig(&never, 2, id, 0, &config), ncclInvalidArgument);
  EXPECT_EQ(violations(), 8u);
}

TEST_F(NcclStandIn, ACommunicatorIsNotUsedBeforeItsLastCallHasEnded) {
  // The first launch waits for the peer.
  EXPECT_EQ(ncclSend(a_.memory, 8, ncclInt8, 1, a_.comm, a_.stream), ncclInProgress);
  EXPECT_EQ(a_.state(), ncclInProgress);
  EXPECT_EQ(ncclSend(a_.memory, 8, ncclInt8, 1, a_.comm, a_.stream), ncclInvalidArgument);
  EXPECT_EQ(ncclCommDestroy(a_.comm), ncclInvalidUsage) << "operations outstanding";
  EXPECT_EQ(violations(), 2u);
  EXPECT_EQ(ncclRecv(b_.memory, 8, ncclInt8, 0, b_.comm, b_.stream), ncclInProgress);
  finish();
}

TEST_F(NcclStandIn, AGroupFailsAsAWholeAndForGood) {
  const auto send = [](const Rank& rank, int peer) {
    return ncclSend(rank.memory, 8, ncclInt8, peer, rank.comm, rank.stream);
  };
  ncclGroupStart();
  EXPECT_EQ(send(a_, 1), ncclSuccess);
  EXPECT_EQ(send(b_, 2), ncclInvalidArgument) << "no such rank";
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_EQ(a_.state(), ncclInvalidArgument);
  EXPECT_EQ(send(a_, 1), ncclInvalidArgument);
  EXPECT_EQ(violations(), 1u);
}

TEST_F(NcclStandIn, AnAbortedCommunicatorIsGone) {
  EXPECT_EQ(ncclRecv(b_.memory, 8, ncclInt8, 0, b_.comm, b_.stream), ncclInProgress);
  EXPECT_EQ(ncclCommAbort(b_.comm), ncclSuccess) << "with a receive under way";
  EXPECT_EQ(cudaStreamSynchronize(b_.stream), cudaSuccess);
  EXPECT_EQ(ncclSend(b_.memory, 8, ncclInt8, 0, b_.comm, b_.stream), ncclInvalidArgument);
  EXPECT_EQ(ncclCommAbort(b_.comm), ncclInvalidArgument);
  EXPECT_EQ(ncclCommDestroy(b_.comm), ncclInvalidArgument);
  EXPECT_EQ(violations(), 3u);
  b_.comm = nullptr;
}

TEST(NcclStandInJoin, TwoRanksOnOneDeviceAreRefused) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  Rank a, b;
  a.init(id, 0, 1);
  b.init(id, 1, 1);
  EXPECT_EQ(a.settled(), ncclInvalidUsage);
  EXPECT_EQ(b.settled(), ncclInvalidUsage);
  for (Rank* rank : {&a, &b}) {
    EXPECT_EQ(ncclCommAbort(rank->comm), ncclSuccess);
    EXPECT_EQ(cudaFree(rank->memory), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(rank->stream), cudaSuccess);
  }
}

TEST(NcclStandInJoin, EndsWhileThePeerIsMissing) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  Rank a;
  a.init(id, 1, 0);
  absl::SleepFor(absl::Milliseconds(5));
  EXPECT_EQ(a.state(), ncclInProgress);
  EXPECT_EQ(ncclCommAbort(a.comm), ncclSuccess);
  EXPECT_EQ(cudaFree(a.memory), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(a.stream), cudaSuccess);
}

}  // namespace
}  // namespace brigade::tests
