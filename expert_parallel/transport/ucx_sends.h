// The sending half of a UCX link: messages wait for a credit, go, and are told as sent when UCX
// says that their memory is free; credits for the far end travel with messages or alone. The
// transport's thread.
#pragma once

#include "expert_parallel/transport/ucx_link.h"

namespace brigade::expert_parallel::ucx {

// RESOURCE_EXHAUSTED or INVALID_ARGUMENT as Transport::send() says; the link is usable.
absl::Status send(Link& link, const Message& message, uint64_t cookie);
// Starts what has a credit now.
void send_waiting(Link& link);
// Those without a credit end with `why`; they were never started.
void cancel_waiting(Link& link, const absl::Status& why);
// Sends all credits that are owed, in a message that needs none.
void send_credits(Link& link);

}  // namespace brigade::expert_parallel::ucx
