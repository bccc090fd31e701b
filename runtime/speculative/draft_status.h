// Who drafts for a coordinator and how its drafts fare, for status pages and metrics. Plain data;
// counters since start, those of a worker since it joined.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace brigade::runtime {

struct DraftLinkStatus {
  std::string worker_id;
  uint64_t stream = 0;  // rises with every join of any worker
  std::string state;    // greeting, comparing, serving
  bool serving = false;
  int open_sequences = 0, max_sequences = 0;
  absl::Duration round_trip;                 // of the last ping
  int64_t steps = 0, rows = 0, drafted = 0;  // as the worker says
  int64_t chunks = 0, nacks = 0, bad_messages = 0;
};

struct RemoteDraftsCounters {
  int64_t opened = 0, reopened = 0;  // sequences at workers
  int64_t last_epoch = 0;            // of the last one
  int64_t chunks = 0, stale = 0;     // stale: of an old epoch, or not after the committed text
  int64_t taken = 0, dropped = 0;    // tokens; dropped: late, or after another text
  int64_t matched = 0;               // tokens that were committed as drafted
  int64_t offered = 0;               // drafts given to passes
  int64_t ahead = 0;  // of those, made before the verdict of the pass before was known
  int64_t bad = 0, refused = 0, lost = 0;
  std::string last_fault;  // a sentence
};

struct DraftWorkersStatus {
  std::vector<DraftLinkStatus> workers;
  RemoteDraftsCounters counters;
};

}  // namespace brigade::runtime
