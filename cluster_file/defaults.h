// Fills what a cluster file leaves out. Pure function of the message.
#pragma once

#include "brigade/v1/cluster_file.pb.h"

namespace brigade::cluster_file {

// The fallbacks of cluster_file.proto, then what follows from other keys: one host, the first host
// for roles, the host's address to listen at, microbatches, the model's name.
void fill_defaults(v1::ClusterFile* file);

}  // namespace brigade::cluster_file
