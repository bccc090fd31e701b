// The receiving half of a UCX link: receives are posted before the peer knows the link, arrivals
// and credits are noted, and messages that belong to no link are thrown away. The transport's
// thread.
#pragma once

#include <functional>

#include "expert_parallel/transport/ucx_link.h"

namespace brigade::expert_parallel::ucx {

void post_receives(Link& link);
// Posts a data buffer again whose message the listener has released.
void post_again(Link& link, int buffer);
// A receive that data is flowing into ends with its endpoint instead.
void cancel_receives(Link& link);

// Takes what matches no posted receive off the library's queue, which has no bound. `find` knows
// the links that are not reclaimed yet, or says null. A live peer that sends without a credit fails
// its link. Returns how many messages came from no peer of ours.
uint64_t refuse_strangers(Worker& worker, const std::function<Link*(PeerId)>& find);

}  // namespace brigade::expert_parallel::ucx
