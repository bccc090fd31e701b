#include "expert_parallel/transport/ucx_sends.h"

#include <ucp/api/ucp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "expert_parallel/transport/ucx_worker.h"

namespace brigade::expert_parallel::ucx {
namespace {

static_assert(sizeof(MessagePart) == sizeof(ucp_dt_iov_t) &&
              offsetof(MessagePart, bytes) == offsetof(ucp_dt_iov_t, length));

void finish(SendSlot& slot, const absl::Status& status) {
  Link& link = *slot.link;
  link.outcomes.sent.push_back({link.peer, slot.cookie, status});
  ++link.unreported;
  --link.in_flight;
  link.free_sends.push_back(&slot);
}

void on_sent(void* request, ucs_status_t status, void* user_data) {
  auto* slot = static_cast<SendSlot*>(user_data);
  const bool open = slot->link->open;
  ucp_request_free(request);
  finish(*slot, status == UCS_OK ? absl::OkStatus()
                : !open          ? absl::CancelledError("the link was closed")
                                 : ucx_error("send", status));
}

void post(SendSlot& slot) {
  Link& link = *slot.link;
  const uint64_t tag = make_tag(kData, link.owed, link.far_nonce, link.far_link);
  link.owed = 0;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &on_sent;
  params.user_data = &slot;
  const Message& message = slot.message;
  const void* data = message.head.data();
  size_t count = message.head.size();
  if (!message.body.empty() && message.head.data() + count != message.body.data()) {
    slot.parts[0] = {const_cast<std::byte*>(message.head.data()), message.head.size()};
    slot.parts[1] = {const_cast<std::byte*>(message.body.data()), message.body.size()};
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    params.datatype = ucp_dt_make_iov();
    data = slot.parts;
    count = 2;
  } else {
    count += message.body.size();
  }
  ++link.in_flight;
  void* request = ucp_tag_send_nbx(link.endpoint, data, count, tag, &params);
  if (request == nullptr) {
    finish(slot, absl::OkStatus());
  } else if (UCS_PTR_IS_ERR(request)) {
    const absl::Status why = ucx_error("ucp_tag_send_nbx", UCS_PTR_STATUS(request));
    finish(slot, why);
    link.fail(why);
  }
}

}  // namespace

absl::Status send(Link& link, const Message& message, uint64_t cookie) {
  const size_t limit = std::min(link.max_message_bytes, link.far_max_bytes);
  if (message.bytes() > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("message of ", message.bytes(), " bytes, limit ", limit));
  }
  if (link.free_sends.size() <= static_cast<size_t>(link.unreported)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("link ", link.peer, ": ", link.sends.size(), " sends are waiting"));
  }
  SendSlot* slot = link.free_sends.back();
  link.free_sends.pop_back();
  slot->message = message;
  slot->cookie = cookie;
  link.waiting.push(slot);
  send_waiting(link);
  return absl::OkStatus();
}

void send_waiting(Link& link) {
  while (link.usable() && link.credits > 0 && !link.waiting.empty()) {
    --link.credits;
    post(*link.waiting.pop());
  }
}

void cancel_waiting(Link& link, const absl::Status& why) {
  while (!link.waiting.empty()) {
    SendSlot* slot = link.waiting.pop();
    link.outcomes.sent.push_back({link.peer, slot->cookie, why});
    ++link.unreported;
    link.free_sends.push_back(slot);
  }
}

void send_credits(Link& link) {
  ucp_request_param_t params{};
  void* request =
      ucp_tag_send_nbx(link.endpoint, nullptr, 0,
                       make_tag(kCredit, link.owed, link.far_nonce, link.far_link), &params);
  link.owed = 0;
  if (UCS_PTR_IS_ERR(request))
    return link.fail(ucx_error("ucp_tag_send_nbx", UCS_PTR_STATUS(request)));
  if (request != nullptr) ucp_request_free(request);  // it goes on by itself
}

}  // namespace brigade::expert_parallel::ucx
