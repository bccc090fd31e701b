// The standard gRPC health service, answered from two flags that the server's watch keeps fresh:
// service "" is ready, service "live" is the process with its step loop. Thread-safe.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace brigade::runtime {

class HealthService {
 public:
  HealthService();
  ~HealthService();

  // To register with the server; lives as long as this.
  grpc::Service* service();

  // Watchers hear of a change at once.
  void set(bool live, bool ready);

  // Ends all watches; before the server stops.
  void stop();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace brigade::runtime
