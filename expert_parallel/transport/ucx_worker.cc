#include "expert_parallel/transport/ucx_worker.h"

#include <signal.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "expert_parallel/transport/ucx_settings.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel::ucx {
namespace {

// UCX catches fatal signals when it is loaded, and then freezes or prints where a crash should end
// the process; and it logs a lost peer as an error, which is an event to us.
void quiet_process_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const int number : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) {
      ucs_debug_disable_signal(number);
      signal(number, SIG_DFL);
    }
    ucs_global_opts.handle_errors = 0;
    if (std::getenv("UCX_LOG_LEVEL") == nullptr)
      ucs_global_opts.log_component.log_level = UCS_LOG_LEVEL_FATAL;
  });
}

absl::StatusOr<ucp_context_h> make_context(const UcxOptions& options) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return ucx_error("ucp_config_read", status);
  for (const auto& [name, value] : ucx_settings(options)) {
    status = ucp_config_modify(config, name.c_str(), value.c_str());
    if (status == UCS_OK) continue;
    ucp_config_release(config);
    return ucx_error(absl::StrCat("setting ", name, "=", value), status);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  status = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (status != UCS_OK) return ucx_error("ucp_init", status);
  return context;
}

void on_error(void* user_data, ucp_ep_h, ucs_status_t status) {
  auto* link = static_cast<Link*>(user_data);
  link->fail(
      absl::UnavailableError(absl::StrCat("link ", link->peer, ": ", ucs_status_string(status))));
}

}  // namespace

absl::Status ucx_error(const std::string& call, int status) {
  return absl::InternalError(
      absl::StrCat("UCX ", call, ": ", ucs_status_string(static_cast<ucs_status_t>(status))));
}

absl::Status Context::start(const UcxOptions& options) {
  quiet_process_once();
  ASSIGN_OR_RETURN(context_, make_context(options));
  return absl::OkStatus();
}

Context::~Context() {
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::Status Worker::start(const Context& context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // any thread, one at a time
  ucs_status_t status = ucp_worker_create(context.get(), &params, &worker_);
  if (status != UCS_OK) return ucx_error("ucp_worker_create", status);
  status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return ucx_error("ucp_worker_get_efd", status);
  ASSIGN_OR_RETURN(address_, read_address(/*net_only=*/false));
  ASSIGN_OR_RETURN(address_net_, read_address(/*net_only=*/true));
  return absl::OkStatus();
}

Worker::~Worker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
}

absl::StatusOr<std::string> Worker::read_address(bool net_only) const {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  attributes.address_flags = net_only ? UCP_WORKER_ADDRESS_FLAG_NET_ONLY : 0;
  const ucs_status_t status = ucp_worker_query(worker_, &attributes);
  if (status != UCS_OK) return ucx_error("ucp_worker_query", status);
  const std::string bytes(reinterpret_cast<const char*>(attributes.address),
                          attributes.address_length);
  ucp_worker_release_address(worker_, attributes.address);
  return bytes;
}

bool Worker::progress() {
  bool moved = false;
  for (int i = 0; i < 64 && ucp_worker_progress(worker_) != 0; ++i) moved = true;
  return moved;
}

absl::StatusOr<bool> Worker::arm() {
  const ucs_status_t status = ucp_worker_arm(worker_);
  if (status == UCS_OK) return true;
  if (status == UCS_ERR_BUSY) return false;
  return ucx_error("ucp_worker_arm", status);
}

absl::Status Worker::connect(Link& link, const std::string& remote_worker) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(remote_worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &on_error, .arg = &link};
  const ucs_status_t status = ucp_ep_create(worker_, &params, &link.endpoint);
  if (status == UCS_OK) return absl::OkStatus();
  link.endpoint = nullptr;
  return ucx_error(absl::StrCat("ucp_ep_create of link ", link.peer), status);
}

void Worker::disconnect(Link& link) {
  if (link.endpoint == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(link.endpoint, &params);
  link.endpoint = nullptr;
  if (!UCS_PTR_IS_ERR(request)) link.closing = request;
}

bool Worker::disconnected(Link& link) {
  if (link.closing == nullptr) return true;
  if (ucp_request_check_status(link.closing) == UCS_INPROGRESS) return false;
  ucp_request_free(link.closing);
  link.closing = nullptr;
  return true;
}

}  // namespace brigade::expert_parallel::ucx
