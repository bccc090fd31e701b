#include "runtime/speculative/draft_worker_source.h"

#include <utility>

namespace brigade::runtime {
namespace {

SequenceToDraft describe(const GenerateRequest& request, int sample_index,
                         std::span<const int32_t> eos_tokens) {
  SequenceToDraft sequence{
      .rule = accept_rule(request.sampling),
      .sampling = request.sampling,
      .sample_index = sample_index,
      .prompt_length = static_cast<int>(request.prompt.size()),
      .max_length = static_cast<int>(request.prompt.size()) + request.max_tokens,
      .end_tokens = request.stop.token_ids,
      .min_tokens = request.min_tokens};
  if (!request.stop.ignore_eos) {
    sequence.end_tokens.insert(sequence.end_tokens.end(), eos_tokens.begin(), eos_tokens.end());
  }
  return sequence;
}

// A worker's drafts, or else what the text itself suggests.
class WorkerOrTextDrafter final : public Drafter {
 public:
  WorkerOrTextDrafter(std::unique_ptr<RemoteDrafter> worker, std::unique_ptr<Drafter> text)
      : worker_(std::move(worker)), text_(std::move(text)) {}

  void draft(std::span<const int32_t> text, int wanted, DraftList* drafts) override {
    worker_->draft(text, wanted, drafts);
    from_worker_ = drafts->size() > 0;
    if (!from_worker_) text_->draft(text, wanted, drafts);
  }
  void run_ahead(std::span<const int32_t> text, DraftList* drafts) override {
    if (from_worker_) worker_->run_ahead(text, drafts);
  }
  void committed(std::span<const int32_t> text) override {
    worker_->committed(text);
    text_->committed(text);
  }

 private:
  const std::unique_ptr<RemoteDrafter> worker_;
  const std::unique_ptr<Drafter> text_;
  bool from_worker_ = false;  // the drafts that are being verified
};

}  // namespace

DraftWorkerSource::DraftWorkerSource(DraftLinks& links, const RemoteDraftsOptions& options)
    : options_(options), remote_(links, options) {}

void DraftWorkerSource::collect(absl::Time now) { remote_.collect(now); }

std::unique_ptr<Drafter> DraftWorkerSource::open(const GenerateRequest& request, int sample_index,
                                                 std::span<const int32_t> eos_tokens,
                                                 std::span<const int32_t> text) {
  return std::make_unique<WorkerOrTextDrafter>(
      remote_.open(describe(request, sample_index, eos_tokens), text),
      lookup_.open(request, sample_index, eos_tokens, text));
}

}  // namespace brigade::runtime
