// A draft worker inside this process: a real DraftEngine on a thread of its own, joined to a
// coordinator's DraftLinks without a wire. It can die after so many drafts, as a process does:
// sequences, KV and what was not sent yet are gone, and another one joins. wait_idle() lets a test
// give it all the time it wants; without it drafts come when they come.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "kernels/core/waker.h"
#include "runtime/draft_worker/draft_engine.h"
#include "runtime/draft_worker/draft_outbox.h"
#include "runtime/speculative/draft_worker_source.h"

namespace brigade::tests {

struct DraftWorkerThreadOptions {
  runtime::StepModel* model = nullptr;  // outlives the thread, as the tokenizer does
  const runtime::Tokenizer* tokenizer = nullptr;
  runtime::KvGeometry kv;
  runtime::draft_worker::DraftEngineOptions engine;
  int lifetime = 0;  // drafts; 0: it does not die
};

class DraftWorkerThread {
 public:
  // `links` outlives this.
  DraftWorkerThread(runtime::DraftLinks& links, const DraftWorkerThreadOptions& options);
  ~DraftWorkerThread();

  // It has heard all that was said to it before this call, drafted what is wanted and sent it.
  // False: not within `limit`.
  bool wait_idle(absl::Duration limit = absl::Seconds(20));
  int64_t deaths() const { return deaths_; }
  int64_t drafted() const { return drafted_; }
  // The first thing that went wrong; empty when nothing did.
  std::string problem() const;

 private:
  void run();
  void live(runtime::DraftLink& link);
  void report(const absl::Status& status);

  runtime::DraftLinks& links_;
  const DraftWorkerThreadOptions options_;
  const std::shared_ptr<kernels::Waker> waker_ = std::make_shared<kernels::Waker>();
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> deaths_{0}, drafted_{0};
  mutable std::mutex mutex_;  // guards the next three
  std::condition_variable answered_;
  int64_t asked_ = 0, idle_for_ = 0;  // calls of wait_idle(); the last one that it was idle for
  std::string problem_;
  std::thread thread_;
};

// The drafts of such a worker, each waited for if `patient`: then what a pass verifies is no matter
// of time.
class ThreadDraftSource final : public runtime::DraftSource {
 public:
  ThreadDraftSource(runtime::DraftLinks& links, const runtime::RemoteDraftsOptions& options,
                    DraftWorkerThread& worker, bool patient)
      : source_(links, options), worker_(worker), patient_(patient) {}

  void collect(absl::Time now) override {
    if (patient_) worker_.wait_idle();
    source_.collect(now);
  }
  int max_law_entries() const override { return source_.max_law_entries(); }
  std::unique_ptr<runtime::Drafter> open(const runtime::GenerateRequest& request, int sample_index,
                                         std::span<const int32_t> eos_tokens,
                                         std::span<const int32_t> text) override {
    return source_.open(request, sample_index, eos_tokens, text);
  }

 private:
  runtime::DraftWorkerSource source_;
  DraftWorkerThread& worker_;
  const bool patient_;
};

}  // namespace brigade::tests
