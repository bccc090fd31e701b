#include "tests/bench/bare_ucx.h"

#include <poll.h>
#include <ucp/api/ucp.h>

#include <cstdlib>
#include <cstring>

#include "expert_parallel/transport/aligned_block.h"
#include "expert_parallel/transport/frame.h"
#include "expert_parallel/transport/ucx_settings.h"
#include "kernels/core/check.h"

namespace brigade::bench {
namespace {

using expert_parallel::AlignedBlock;
using expert_parallel::kMaxFrameBytes;

constexpr int kBuffers = 64;
constexpr ucp_tag_t kTag = 7;

}  // namespace

struct BareUcx::Impl {
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  ucp_ep_h endpoint = nullptr;
  int event_fd = -1;
  AlignedBlock out{kBuffers, kMaxFrameBytes}, in{kBuffers, kMaxFrameBytes};
  int receives_posted = 0;
  int arrived = 0, sends_open = 0;

  template <typename Done>
  void drive(Done done) {
    while (!done()) {
      if (ucp_worker_progress(worker) != 0) continue;
      if (done()) break;
      const ucs_status_t status = ucp_worker_arm(worker);
      if (status == UCS_ERR_BUSY) continue;
      CHECK(status == UCS_OK);
      pollfd descriptor = {event_fd, POLLIN, 0};
      CHECK(poll(&descriptor, 1, 60000) > 0);
    }
  }
  void post_receive() {
    ucp_request_param_t params{};
    params.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    params.cb.recv = [](void* request, ucs_status_t status, const ucp_tag_recv_info_t*,
                        void* self) {
      CHECK(status == UCS_OK);
      ucp_request_free(request);
      ++static_cast<Impl*>(self)->arrived;
    };
    params.user_data = this;
    void* request = ucp_tag_recv_nbx(worker, in.at(receives_posted++ % kBuffers), kMaxFrameBytes,
                                     kTag, ~0ull, &params);
    CHECK(!UCS_PTR_IS_ERR(request));
  }
  void send(size_t bytes, int buffer) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.send = [](void* request, ucs_status_t status, void* self) {
      CHECK(status == UCS_OK);
      ucp_request_free(request);
      --static_cast<Impl*>(self)->sends_open;
    };
    params.user_data = this;
    void* request = ucp_tag_send_nbx(endpoint, out.at(buffer % kBuffers), bytes, kTag, &params);
    CHECK(!UCS_PTR_IS_ERR(request));
    sends_open += request != nullptr;
  }
};

BareUcx::BareUcx(bool shared_memory) : impl_(std::make_unique<Impl>()) {
  ucp_config_t* config = nullptr;
  CHECK(ucp_config_read(nullptr, nullptr, &config) == UCS_OK);
  const expert_parallel::UcxOptions options = {.shared_memory = shared_memory,
                                               .net_devices = shared_memory ? "" : "lo"};
  for (const auto& [name, value] : expert_parallel::ucx_settings(options))
    CHECK(ucp_config_modify(config, name.c_str(), value.c_str()) == UCS_OK);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  CHECK(ucp_init(&params, config, &impl_->context) == UCS_OK);
  ucp_config_release(config);
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  CHECK(ucp_worker_create(impl_->context, &worker_params, &impl_->worker) == UCS_OK);
  CHECK(ucp_worker_get_efd(impl_->worker, &impl_->event_fd) == UCS_OK);
  for (int i = 0; i < kBuffers; ++i) {
    std::memset(impl_->out.at(i), i, kMaxFrameBytes);
    std::memset(impl_->in.at(i), 0, kMaxFrameBytes);
  }
}

BareUcx::~BareUcx() {
  ucp_worker_destroy(impl_->worker);
  ucp_cleanup(impl_->context);
}

std::string BareUcx::address() const {
  ucp_address_t* address = nullptr;
  size_t length = 0;
  CHECK(ucp_worker_get_address(impl_->worker, &address, &length) == UCS_OK);
  const std::string bytes(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(impl_->worker, address);
  return bytes;
}

void BareUcx::connect(const std::string& remote) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(remote.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  // The other process ended: so does this one.
  params.err_handler = {.cb = [](void*, ucp_ep_h, ucs_status_t) { std::_Exit(0); }, .arg = nullptr};
  CHECK(ucp_ep_create(impl_->worker, &params, &impl_->endpoint) == UCS_OK);
}

void BareUcx::ask(const std::vector<Trip>& trips) {
  Impl& impl = *impl_;
  int expected = 0;
  for (const Trip& trip : trips) expected += static_cast<int>(trip.answers.size());
  impl.arrived = 0;
  for (int i = 0; i < expected; ++i) impl.post_receive();
  for (size_t i = 0; i < trips.size(); ++i) impl.send(trips[i].question, static_cast<int>(i));
  impl.drive([&] { return impl.arrived == expected && impl.sends_open == 0; });
}

void BareUcx::answer(const std::vector<Trip>& trips) {
  Impl& impl = *impl_;
  for (int i = 0; i < 16; ++i) impl.post_receive();
  int answered = 0, buffer = 0;
  while (true) {
    impl.drive([&] { return impl.arrived > answered; });
    for (const size_t bytes : trips[answered % trips.size()].answers) impl.send(bytes, buffer++);
    impl.post_receive();
    ++answered;
  }
}

}  // namespace brigade::bench
