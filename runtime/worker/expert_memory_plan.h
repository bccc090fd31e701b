// How much device memory a worker takes for experts when it has to take some: for those it was told to
// hold, and spare slots for moves, so that later loads need no allocation while it serves. Pure; any
// thread.
#pragma once

#include <cstdint>

namespace brigade::runtime::worker {

struct ExpertMemoryNeed {
  int64_t wanted = 0;        // experts that the worker is to hold now; more than `here`
  int64_t here = 0;          // for which it has memory already
  int64_t all = 0;           // of the model
  int64_t expert_bytes = 0;
  int64_t limit_bytes = 0;   // of packed experts that may be held; 0: none
  int64_t free_bytes = 0;    // of the device; 0: not known
};

// Experts to have memory for, `wanted` or more. Spare ones cover the loss of one of the workers that
// seem to be there (an even placement gives each the same share), but never take more than half of
// what the device has left beside the wanted ones, nor exceed the limit.
int64_t planned_experts(const ExpertMemoryNeed& need);

}  // namespace brigade::runtime::worker
