// UCX's context, made with our settings, and its workers. Each link has a worker of its own: what
// arrives over shared memory goes through one queue a worker, and a sender that is killed while it
// writes leaves a hole there that nothing behind it passes. One thread at a time; a process must
// not fork once one exists.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "expert_parallel/transport/ucx_link.h"
#include "expert_parallel/transport/ucx_transport.h"

struct ucp_context;
struct ucp_worker;

namespace brigade::expert_parallel::ucx {

// INTERNAL with UCX's own words; `status` is a ucs_status_t.
absl::Status ucx_error(const std::string& call, int status);

class Context {
 public:
  Context() = default;
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  absl::Status start(const UcxOptions& options);
  ucp_context* get() const { return context_; }

 private:
  ucp_context* context_ = nullptr;
};

class Worker {
 public:
  Worker() = default;
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The context outlives the worker.
  absl::Status start(const Context& context);
  ucp_worker* get() const { return worker_; }
  int event_fd() const { return event_fd_; }
  // How others reach this worker: over all transports, and over network transports only.
  const std::string& address() const { return address_; }
  const std::string& address_net() const { return address_net_; }

  // True when UCX moved something: call again before sleeping, even if it said that nothing is
  // left. What it does about a lost peer it has only put aside by then.
  bool progress();
  absl::StatusOr<bool> arm();

  // Gives the link an endpoint; its end is told to link.fail().
  absl::Status connect(Link& link, const std::string& remote_worker);
  // Takes the endpoint away at once; link.closing is set while UCX still works on it.
  void disconnect(Link& link);
  // Whether disconnect() has come to its end.
  bool disconnected(Link& link);

 private:
  absl::StatusOr<std::string> read_address(bool net_only) const;

  ucp_worker* worker_ = nullptr;
  int event_fd_ = -1;
  std::string address_, address_net_;
};

}  // namespace brigade::expert_parallel::ucx
