// Drafts from draft workers; where they have none just now, from the text itself (prompt lookup),
// so that a worker that is behind, full or gone leaves something. Step thread; outlives its
// drafters.
#pragma once

#include <memory>

#include "runtime/speculative/draft_source.h"
#include "runtime/speculative/remote_drafts.h"

namespace brigade::runtime {

class DraftWorkerSource final : public DraftSource {
 public:
  // `links` outlives this.
  DraftWorkerSource(DraftLinks& links, const RemoteDraftsOptions& options);

  void collect(absl::Time now) override;
  int max_law_entries() const override { return options_.limits.max_law_entries; }
  std::unique_ptr<Drafter> open(const GenerateRequest& request, int sample_index,
                                std::span<const int32_t> eos_tokens,
                                std::span<const int32_t> text) override;

 private:
  const RemoteDraftsOptions options_;
  RemoteDrafts remote_;
  PromptLookupSource lookup_;
};

}  // namespace brigade::runtime
