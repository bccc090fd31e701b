// What the engine has made and the stream has not yet taken: drafts of one sequence that follow
// each other become one chunk, so that a slow stream carries few large messages and a fast one
// small and early ones. Bounded by the credits of the open sequences; full() is where drafting
// pauses. Draft thread.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "runtime/draft_worker/draft_sink.h"

namespace brigade::runtime::draft_worker {

class DraftOutbox final : public DraftSink {
 public:
  static constexpr size_t kMaxTokens = 4096;
  static constexpr size_t kMaxNacks = 1024;

  void drafted(const ChunkMessage& chunk) override;
  void refused(const DraftNack& nack) override { nacks_.push_back(nack); }

  bool full() const { return tokens_ >= kMaxTokens || nacks_.size() >= kMaxNacks; }
  // The next message; refusals first: the coordinator wastes no wait on them.
  std::optional<DraftWorkerSays> take();
  void clear();

 private:
  std::deque<DraftNack> nacks_;
  ChunkMessages drafts_;
  size_t tokens_ = 0;
};

}  // namespace brigade::runtime::draft_worker
