#include "runtime/api/health_service.h"

#include <grpcpp/grpcpp.h>

#include <mutex>
#include <string>
#include <unordered_set>

#include "grpc/health/v1/health.grpc.pb.h"

namespace brigade::runtime {
namespace {

namespace health = ::grpc::health::v1;

constexpr size_t kMaxWatches = 64;

}  // namespace

class HealthService::Service final : public health::Health::CallbackService {
 public:
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const health::HealthCheckRequest* request,
                                  health::HealthCheckResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    std::lock_guard lock(mutex_);
    response->set_status(status_of(request->service()));
    if (response->status() == health::HealthCheckResponse::SERVICE_UNKNOWN) {
      reactor->Finish(
          {grpc::StatusCode::NOT_FOUND, "service: known are \"\" (ready) and \"live\""});
    } else {
      reactor->Finish(grpc::Status::OK);
    }
    return reactor;
  }

  grpc::ServerWriteReactor<health::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context, const health::HealthCheckRequest* request) override;

  void set(bool live, bool ready);
  void stop();

 private:
  class WatchCall;

  // With mutex_ held.
  health::HealthCheckResponse::ServingStatus status_of(const std::string& name) const {
    if (!name.empty() && name != "live") return health::HealthCheckResponse::SERVICE_UNKNOWN;
    return (name.empty() ? ready_ : live_) ? health::HealthCheckResponse::SERVING
                                           : health::HealthCheckResponse::NOT_SERVING;
  }

  std::mutex mutex_;
  bool live_ = true, ready_ = false, stopping_ = false;
  std::unordered_set<WatchCall*> watches_;
};

// One watcher. All members are used with the service's mutex held; it frees itself when done.
class HealthService::Service::WatchCall final
    : public grpc::ServerWriteReactor<health::HealthCheckResponse> {
 public:
  WatchCall(Service* service, std::string name) : service_(service), name_(std::move(name)) {}

  // Sends the present status unless it was sent last.
  void update() {
    if (finishing_ || writing_) return;
    if (service_->stopping_ || cancelled_) return end(grpc::StatusCode::UNAVAILABLE, "stopping");
    const auto status = service_->status_of(name_);
    if (sent_ && response_.status() == status) return;
    response_.set_status(status);
    sent_ = writing_ = true;
    StartWrite(&response_);
  }

  void end(grpc::StatusCode code, const std::string& reason) {
    finishing_ = true;
    Finish({code, reason});
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(service_->mutex_);
    writing_ = false;
    cancelled_ |= !ok;
    update();
  }
  void OnCancel() override {
    std::lock_guard lock(service_->mutex_);
    cancelled_ = true;
    update();
  }
  void OnDone() override {
    {
      std::lock_guard lock(service_->mutex_);
      service_->watches_.erase(this);
    }
    delete this;
  }

 private:
  Service* const service_;
  const std::string name_;
  health::HealthCheckResponse response_;
  bool sent_ = false, writing_ = false, finishing_ = false, cancelled_ = false;
};

grpc::ServerWriteReactor<health::HealthCheckResponse>* HealthService::Service::Watch(
    grpc::CallbackServerContext*, const health::HealthCheckRequest* request) {
  auto* call = new WatchCall(this, request->service());
  std::lock_guard lock(mutex_);
  if (watches_.size() >= kMaxWatches) {
    call->end(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many watches");
  } else {
    watches_.insert(call);
    call->update();
  }
  return call;
}

void HealthService::Service::set(bool live, bool ready) {
  std::lock_guard lock(mutex_);
  if (live == live_ && ready == ready_) return;
  live_ = live;
  ready_ = ready;
  for (WatchCall* call : watches_) call->update();
}

void HealthService::Service::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  for (WatchCall* call : watches_) call->update();
}

HealthService::HealthService() : service_(std::make_unique<Service>()) {}
HealthService::~HealthService() = default;
grpc::Service* HealthService::service() { return service_.get(); }
void HealthService::set(bool live, bool ready) { service_->set(live, ready); }
void HealthService::stop() { service_->stop(); }

}  // namespace brigade::runtime
