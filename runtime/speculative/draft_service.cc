#include "runtime/speculative/draft_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "brigade/v1/draft.grpc.pb.h"
#include "runtime/speculative/draft_wire.h"

namespace brigade::runtime {
namespace {

constexpr absl::Duration kLongestPause = absl::Seconds(5);

grpc::Status to_grpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

class DraftCall;

// The calls that are open, for the thread that serves them.
class OpenDraftCalls {
 public:
  void add(std::shared_ptr<DraftCall> call) {
    std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
  }
  void remove(const DraftCall* call) {
    std::lock_guard lock(mutex_);
    std::erase_if(calls_, [&](const auto& open) { return open.get() == call; });
  }
  std::vector<std::shared_ptr<DraftCall>> all() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<DraftCall>> calls_;
};

// One worker's stream. Reads and writes are started by the reaction to the one before or by the
// service's thread when there is none; Finish by that thread alone, so that nothing is started on a
// call that is over. No operation is started with the mutex held.
class DraftCall final
    : public grpc::ServerBidiReactor<v1::DraftWorkerMessage, v1::DraftCoordinatorMessage> {
 public:
  DraftCall(grpc::CallbackServerContext* context, OpenDraftCalls* calls, DraftLinks* links,
            std::shared_ptr<kernels::Waker> waker)
      : context_(context), calls_(calls), links_(links), waker_(std::move(waker)) {
    auto link = links_->open(waker_, absl::Now());
    if (link.ok()) {
      link_ = *std::move(link);
    } else {
      end_ = to_grpc(link.status());
    }
  }

  // The service's thread.
  void serve(absl::Time now, absl::Time* next) {
    absl::Time check = now + kLongestPause;
    if (link_ != nullptr) {
      if (const absl::Status overdue = link_->overdue(now, &check); !overdue.ok()) end(overdue);
    }
    *next = std::min(*next, check);
    if (start_finish()) return Finish(*end_);
    if (start_reading()) StartRead(&incoming_);
    if (start_writing(now)) StartWrite(&outgoing_);
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      absl::StatusOr<DraftWorkerSays> message = from_wire(incoming_);
      const absl::Status said =
          message.ok() ? link_->said(*std::move(message), absl::Now()) : message.status();
      if (!said.ok()) end(said);
    }
    {
      std::lock_guard lock(mutex_);
      reading_ = false;
      // The worker has closed its half, or the stream broke.
      if (!ok && !end_) end_ = grpc::Status::OK;
    }
    if (start_reading()) return StartRead(&incoming_);
    waker_->wake();
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      if (!ok && !end_) end_ = grpc::Status::CANCELLED;
    }
    if (start_writing(absl::Now())) return StartWrite(&outgoing_);
    waker_->wake();
  }

  void OnCancel() override { end(absl::CancelledError("the stream was cut")); }

  void OnDone() override {
    if (link_ != nullptr) links_->close(link_, end_ ? end_->error_message() : "");
    calls_->remove(this);  // the last use, unless the service's thread is looking at it
  }

 private:
  void end(const absl::Status& status) {
    bool stuck = false;
    {
      std::lock_guard lock(mutex_);
      if (end_) return;
      end_ = to_grpc(status);
      stuck = writing_;
    }
    if (link_ != nullptr) link_->end();
    // A write that nobody takes would never end.
    if (stuck && status.code() == absl::StatusCode::kUnavailable) context_->TryCancel();
    if (stuck && status.code() == absl::StatusCode::kResourceExhausted) context_->TryCancel();
    waker_->wake();
  }

  bool start_finish() {
    std::lock_guard lock(mutex_);
    if (!end_ || writing_) return false;
    return !std::exchange(finished_, true);
  }

  bool start_reading() {
    std::lock_guard lock(mutex_);
    if (end_ || reading_ || !link_->may_read()) return false;
    incoming_.Clear();
    return reading_ = true;
  }

  bool start_writing(absl::Time now) {
    std::lock_guard lock(mutex_);
    if (end_ || writing_) return false;
    const std::optional<DraftCoordinatorSays> message = link_->next(now);
    if (!message) return false;
    outgoing_.Clear();
    to_wire(*message, &outgoing_);
    return writing_ = true;
  }

  grpc::CallbackServerContext* const context_;
  OpenDraftCalls* const calls_;
  DraftLinks* const links_;
  const std::shared_ptr<kernels::Waker> waker_;
  std::shared_ptr<DraftLink> link_;  // null: it was refused
  v1::DraftWorkerMessage incoming_;
  v1::DraftCoordinatorMessage outgoing_;

  std::mutex mutex_;  // guards the rest
  std::optional<grpc::Status> end_;
  bool reading_ = false, writing_ = false, finished_ = false;
};

class Service final : public v1::DraftControl::CallbackService {
 public:
  Service(DraftLinks* links, OpenDraftCalls* calls, std::shared_ptr<kernels::Waker> waker)
      : links_(links), calls_(calls), waker_(std::move(waker)) {}

  grpc::ServerBidiReactor<v1::DraftWorkerMessage, v1::DraftCoordinatorMessage>* Draft(
      grpc::CallbackServerContext* context) override {
    auto call = std::make_shared<DraftCall>(context, calls_, links_, waker_);
    DraftCall* const raw = call.get();
    calls_->add(std::move(call));
    waker_->wake();
    return raw;
  }

 private:
  DraftLinks* const links_;
  OpenDraftCalls* const calls_;
  const std::shared_ptr<kernels::Waker> waker_;
};

}  // namespace

struct DraftService::Parts {
  explicit Parts(DraftLinks& links) : service(&links, &calls, waker) {}
  void serve() {
    while (!stopping) {
      const absl::Time now = absl::Now();
      absl::Time next = now + kLongestPause;
      for (const auto& call : calls.all()) call->serve(now, &next);
      waker->wait_until(next);
    }
  }

  std::shared_ptr<kernels::Waker> waker = std::make_shared<kernels::Waker>();
  OpenDraftCalls calls;
  Service service;
  std::atomic<bool> stopping{false};
  std::thread thread;
};

DraftService::DraftService(DraftLinks& links) : parts_(std::make_unique<Parts>(links)) {}

DraftService::~DraftService() { stop(); }

grpc::Service* DraftService::service() { return &parts_->service; }

void DraftService::start() {
  parts_->thread = std::thread([this] { parts_->serve(); });
}

void DraftService::stop() {
  parts_->stopping = true;
  parts_->waker->wake();
  if (parts_->thread.joinable()) parts_->thread.join();
}

}  // namespace brigade::runtime
