#include "expert_parallel/transport/ucx_receives.h"

#include <ucp/api/ucp.h>

#include "absl/strings/str_cat.h"
#include "expert_parallel/transport/ucx_worker.h"

namespace brigade::expert_parallel::ucx {
namespace {

void post(ReceiveSlot& slot);

void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                 void* user_data) {
  auto* slot = static_cast<ReceiveSlot*>(user_data);
  Link& link = *slot->link;
  const ucp_tag_recv_info_t got = *info;  // lies inside the request
  ucp_request_free(request);
  slot->request = nullptr;
  slot->posted = false;
  --link.posted;
  if (status == UCS_ERR_CANCELED || !link.open) return;
  if (status != UCS_OK) return link.fail(ucx_error("receive", status));
  link.credits += static_cast<int>(tag_credits(got.sender_tag));
  if (slot->buffer < 0) {
    post(*slot);
  } else {
    ++link.receipts;
    link.outcomes.arrivals.push_back({&link, slot->buffer, got.length});
  }
}

void post(ReceiveSlot& slot) {
  Link& link = *slot.link;
  const bool credit = slot.buffer < 0;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv = &on_received;
  params.user_data = &slot;
  slot.posted = true;
  ++link.posted;
  void* request = ucp_tag_recv_nbx(
      link.worker.get(), credit ? nullptr : link.buffers.at(slot.buffer),
      credit ? 0 : link.max_message_bytes,
      make_tag(credit ? kCredit : kData, 0, link.nonce, link.peer), ~kCreditsMask, &params);
  if (UCS_PTR_IS_ERR(request)) {
    slot.posted = false;
    --link.posted;
    link.fail(ucx_error("ucp_tag_recv_nbx", UCS_PTR_STATUS(request)));
  } else if (slot.posted) {  // not completed in between
    slot.request = request;
  }
}

}  // namespace

void post_receives(Link& link) {
  for (ReceiveSlot& slot : link.receives) post(slot);
}

void post_again(Link& link, int buffer) { post(link.receives[buffer]); }

void cancel_receives(Link& link) {
  for (ReceiveSlot& slot : link.receives) {
    if (slot.posted && slot.request != nullptr) ucp_request_cancel(link.worker.get(), slot.request);
  }
}

uint64_t refuse_strangers(Worker& worker, const std::function<Link*(PeerId)>& find) {
  uint64_t strangers = 0;
  ucp_tag_recv_info_t info;
  while (ucp_tag_probe_nb(worker.get(), 0, 0, /*remove=*/0, &info) != nullptr) {
    Link* link = find(static_cast<PeerId>(info.sender_tag));
    const uint64_t nonce = info.sender_tag >> 32 & 0xffff, kind = info.sender_tag >> 60;
    const bool known =
        link != nullptr && link->nonce == nonce && (kind == kData || kind == kCredit);
    if (known && link->open) {
      link->fail(absl::UnavailableError(
          absl::StrCat("link ", link->peer, ": the peer overran its window")));
      break;
    }
    ucp_tag_message_h message =
        ucp_tag_probe_nb(worker.get(), info.sender_tag, ~0ull, /*remove=*/1, &info);
    if (message == nullptr) break;
    if (!known) ++strangers;
    ucp_request_param_t params{};
    void* request = ucp_tag_msg_recv_nbx(worker.get(), nullptr, 0, message, &params);
    if (request != nullptr && !UCS_PTR_IS_ERR(request)) ucp_request_free(request);
  }
  return strangers;
}

}  // namespace brigade::expert_parallel::ucx
