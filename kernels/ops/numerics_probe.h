// What this machine computes, as one number: a fixed probe runs every kernel and format on odd
// shapes, and its output bits are hashed. Processes whose numbers agree may serve one model
// together whatever their instruction sets; others would change tokens. Inputs are made of
// integers, so that no library's rounding enters. Start-up only; takes a few milliseconds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/dtype.h"

namespace brigade::kernels {

// Bits that one piece of the probe gave.
struct ProbeOutput {
  std::string name;  // op, format, shape
  std::vector<uint8_t> bytes;
};
absl::StatusOr<std::vector<ProbeOutput>> run_numerics_probe(Device& device);

// XXH3 over names and bits.
uint64_t hash_probe(std::span<const ProbeOutput> outputs);

// Both in one.
absl::StatusOr<uint64_t> numerics_probe(Device& device);

// A process's numerics: its id, and what went into it for the sentence of a refusal. A device that does
// not keep bits (fast GPU maths) has no probe in it: such processes serve with each other alone, and
// promise no equal bits.
struct Numerics {
  uint64_t id = 0;
  std::string text;
};
absl::StatusOr<Numerics> numerics_of(Device& device, DType wire_dtype, DType kv_dtype);

// Part of promise "same bits" beside the probe: the dtypes in which answers travel and KV is kept.
uint64_t numerics_id(uint64_t probe, DType wire_dtype, DType kv_dtype);
// What went into the id, for the sentence of a refusal: "probe 1f00..., wire f32, KV bf16".
std::string numerics_text(uint64_t probe, DType wire_dtype, DType kv_dtype);

}  // namespace brigade::kernels
