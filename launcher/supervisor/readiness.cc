#include "launcher/supervisor/readiness.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace brigade::launcher {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(2);
constexpr const char* kActive = "active";

Readiness read_status(const v1::GetStatusResponse& status) {
  Readiness readiness;
  readiness.ready = status.ready();
  readiness.reason = status.reason();
  if (status.has_loading()) {
    const v1::LoadProgress& loading = status.loading();
    readiness.stage = loading.stage();
    if (loading.total() > 0) {
      readiness.fraction =
          static_cast<double>(loading.done()) / static_cast<double>(loading.total());
    }
  }
  for (const v1::Worker& worker : status.cluster().workers()) {
    WorkerReadiness& entry = readiness.workers[worker.worker_id()];
    entry.active = worker.state() == kActive;
    entry.incarnation = worker.incarnation();
    entry.detail = worker.state();
    if (!entry.active && !worker.last_loss().empty()) {
      absl::StrAppend(&entry.detail, ": ", worker.last_loss());
    }
  }
  return readiness;
}

class ClientProbe : public ReadinessProbe {
 public:
  explicit ClientProbe(const ConnectOptions& options)
      : options_(options), thread_([this] { answer_until_stopped(); }) {}

  ~ClientProbe() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  bool ask(Callback callback) override {
    {
      std::lock_guard lock(mutex_);
      if (asked_ || answering_) return false;
      asked_ = std::move(callback);
    }
    changed_.notify_all();
    return true;
  }

 private:
  // A connection that failed once waits seconds before it tries again, which a coordinator that
  // starts needs not: the next question makes a new one.
  Readiness look() {
    if (client_ == nullptr) {
      auto client = Client::create(options_);
      if (!client.ok()) return {.reached = client.status()};
      client_ = *std::move(client);
    }
    const auto status = client_->status(absl::Now() + kLimit);
    if (status.ok()) return read_status(*status);
    client_ = nullptr;
    return {.reached = status.status()};
  }

  void answer_until_stopped() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || asked_; });
      if (stopping_) return;
      const Callback callback = std::exchange(asked_, nullptr);
      answering_ = true;
      lock.unlock();
      const Readiness readiness = look();
      lock.lock();
      answering_ = false;
      if (stopping_) return;
      callback(readiness);
    }
  }

  const ConnectOptions options_;
  std::unique_ptr<Client> client_;  // of thread_
  std::mutex mutex_;
  std::condition_variable changed_;
  Callback asked_;
  bool answering_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<ReadinessProbe> make_readiness_probe(const ConnectOptions& options) {
  return std::make_unique<ClientProbe>(options);
}

}  // namespace brigade::launcher
