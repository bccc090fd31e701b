// What tests set and read of the NCCL stand-in, beside the environment:
//   BRIGADE_EMULATED_NCCL_SEED        of delays and of which launches are told to be in progress
//   BRIGADE_EMULATED_NCCL_DELAY_US    longest delay before a launch, a transfer or a join (default
//                                     200)
//   BRIGADE_EMULATED_NCCL_KILL_AFTER  the process kills itself in the middle of its n-th transfer
//   BRIGADE_EMULATED_NCCL_SILENT      1: the loss of a peer is not told, as on one real host
//   BRIGADE_EMULATED_NCCL_REPORT      1: a process that exits in order tells its counts on stderr
// Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace brigade::cuda_emulation {

// Uses that NCCL forbids or that would hang it: counted, told on stderr, and returned as errors.
uint64_t nccl_violations();
std::string last_nccl_violation();
uint64_t nccl_transfers();  // that moved all their bytes

// As when the network tells of a loss, at any moment: of the communicators that are left, the ones
// made last have an error.
void fail_newest_communicators(int count);

}  // namespace brigade::cuda_emulation
