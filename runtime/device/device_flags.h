// The flags of DeviceSettings, the same for every process that computes. `Group` is CLI11's: only
// the files that parse a command line include it.
#pragma once

#include "runtime/device/device_settings.h"

namespace brigade::runtime {

template <typename Group>
void add_device_flags(Group* group, DeviceSettings* settings) {
  group->add_option("--device", settings->name, "cpu, cuda, cuda:N, or cpu_async (a test device)")
      ->capture_default_str();
  group->add_option("--cuda-module", settings->cuda_module,
                    "Path of brigade_cuda.so; default: beside this program, ../lib/brigade");
  group
      ->add_option(
          "--gpu-math", settings->gpu_math,
          "identical: the bits of the CPU; fast: tensor cores and cuBLAS, and then the words "
          "may depend on what else is in a batch")
      ->capture_default_str();
}

// Of processes that run a model's layers.
template <typename Group>
void add_graph_flag(Group* group, DeviceSettings* settings) {
  group
      ->add_option("--gpu-graphs", settings->gpu_graphs,
                   "on: small steps that recur are recorded on the GPU and launched as a whole; "
                   "off: always op by op")
      ->capture_default_str();
}

}  // namespace brigade::runtime
