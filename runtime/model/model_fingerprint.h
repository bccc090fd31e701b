// Names a model's files by little more than their headers: two processes with equal fingerprints
// have the same config.json and the same tensors at the same places, and a sample of weights
// agrees, so that a fine-tuned sister of equal shape is told apart. Pure function of the opened
// files; any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/model/checkpoint.h"

namespace brigade::runtime {

// 32 hex digits: XXH3 over the bytes of config.json; by tensor name, its dtype, shape, file name
// and span in the file; the files' sizes; and the middle kSampleBytes of kSampledTensors tensors.
// Folders and modification times do not enter. NOT_FOUND or INVALID_ARGUMENT when config.json
// cannot be read.
inline constexpr size_t kSampledTensors = 64;  // evenly over the sorted names; each costs a page
inline constexpr size_t kSampleBytes = 64;
absl::StatusOr<std::string> model_fingerprint(const Checkpoint& checkpoint);

}  // namespace brigade::runtime
