#include "tests/support/draft_worker_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/build_version.h"

namespace brigade::tests {

using namespace runtime;  // NOLINT: the file speaks of little else

namespace {

// A ping may be due; the stream of a real worker has a timer of its own for it.
constexpr absl::Duration kLongestSleep = absl::Milliseconds(100);

}  // namespace

DraftWorkerThread::DraftWorkerThread(DraftLinks& links, const DraftWorkerThreadOptions& options)
    : links_(links), options_(options), thread_([this] { run(); }) {}

DraftWorkerThread::~DraftWorkerThread() {
  stopping_ = true;
  waker_->wake();
  thread_.join();
}

bool DraftWorkerThread::wait_idle(absl::Duration limit) {
  std::unique_lock lock(mutex_);
  const int64_t call = ++asked_;
  waker_->wake();
  return answered_.wait_for(lock, absl::ToChronoNanoseconds(limit),
                            [&] { return idle_for_ >= call; });
}

std::string DraftWorkerThread::problem() const {
  std::lock_guard lock(mutex_);
  return problem_;
}

void DraftWorkerThread::report(const absl::Status& status) {
  if (status.ok()) return;
  std::lock_guard lock(mutex_);
  if (problem_.empty()) problem_ = std::string(status.message());
}

void DraftWorkerThread::run() {
  while (!stopping_) {
    auto link = links_.open(waker_, absl::Now());
    report(link.status());
    if (!link.ok()) return;
    report((*link)->said(DraftHello{.worker_id = absl::StrCat("life-", deaths_.load()),
                                    .build_version = kBuildVersion,
                                    .vocabulary_hash = options_.tokenizer->vocabulary_hash(),
                                    .vocabulary_size = options_.tokenizer->vocab_size(),
                                    .max_sequences = options_.engine.max_sequences,
                                    .max_context = options_.engine.limits.max_context},
                         absl::Now()));
    live(**link);
    links_.close(*link, "died");
    if (!stopping_) ++deaths_;
  }
}

void DraftWorkerThread::live(DraftLink& link) {
  draft_worker::DraftOutbox outbox;
  draft_worker::DraftEngine engine(*options_.model, options_.kv, options_.engine, outbox);
  int64_t counted = 0;
  while (!stopping_) {
    int64_t asked = 0;
    {
      std::lock_guard lock(mutex_);
      asked = asked_;
    }
    while (auto message = link.next(absl::Now())) {
      if (const auto* ping = std::get_if<DraftPing>(&*message)) {
        report(link.said(DraftPong{.number = ping->number}, absl::Now()));
      } else if (auto* commands = std::get_if<DraftCommands>(&*message)) {
        for (DraftCommand& command : commands->commands) engine.take(std::move(command));
      }
    }
    const bool works = engine.has_work() && !outbox.full();
    if (works) {
      const absl::Status status = engine.step();
      report(status);
      if (!status.ok()) return;
      drafted_ += engine.counters().drafted - std::exchange(counted, engine.counters().drafted);
      // With what it has just made still unsent.
      if (options_.lifetime > 0 && counted >= options_.lifetime) return;
    }
    while (link.may_read()) {
      auto message = outbox.take();
      if (!message) break;
      report(link.said(*std::move(message), absl::Now()));
    }
    if (works) continue;
    {
      std::lock_guard lock(mutex_);
      idle_for_ = asked;
    }
    answered_.notify_all();
    waker_->wait_until(absl::Now() + kLongestSleep);
  }
}

}  // namespace brigade::tests
