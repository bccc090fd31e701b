// Where an engine's drafts and refusals go: the stream to the coordinator, or a test's list. Draft
// thread; what is passed is the engine's and must be copied.
#pragma once

#include "runtime/speculative/draft_messages.h"

namespace brigade::runtime::draft_worker {

class DraftSink {
 public:
  virtual ~DraftSink() = default;
  virtual void drafted(const ChunkMessage& chunk) = 0;
  virtual void refused(const DraftNack& nack) = 0;
};

}  // namespace brigade::runtime::draft_worker
