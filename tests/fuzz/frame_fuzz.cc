// Hostile frames: whatever arrives is refused or can be read to its end. The first byte chooses
// whether the checksum is made good, so that the checks behind it are reached too.
#include <xxhash.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "expert_parallel/transport/frame.h"

using namespace brigade::expert_parallel;

namespace {

constexpr size_t kChecksumAt = kFrameHeaderBytes - sizeof(uint64_t);

void make_checksum_good(std::vector<std::byte>& frame) {
  if (frame.size() < kFrameHeaderBytes) return;
  const uint64_t head = XXH3_64bits(frame.data(), kChecksumAt);
  const uint64_t sum = XXH3_64bits_withSeed(frame.data() + kFrameHeaderBytes,
                                            frame.size() - kFrameHeaderBytes, head);
  std::memcpy(frame.data() + kChecksumAt, &sum, sizeof(sum));
}

uint64_t read_all(const FrameView& view) {
  uint64_t sum = 0;
  const FrameHeader& header = view.header;
  for (uint32_t i = 0; i < header.entry_count; ++i) {
    sum += header.kind == FrameKind::kDispatch ? view.entry(i).row : view.slot(i);
  }
  const size_t bytes =
      size_t(header.row_count) * header.hidden * brigade::kernels::dtype_bytes(header.dtype);
  for (size_t i = 0; i < bytes; ++i) sum += static_cast<uint8_t>(view.rows[i]);
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<std::byte> frame(size - 1);
  if (size > 1) std::memcpy(frame.data(), data + 1, size - 1);
  if (data[0] % 2 == 0) make_checksum_good(frame);
  FrameLimits limits = {.hidden = 8, .experts = 16, .moe_layers = 4, .max_slots = 256};
  if (data[0] & 2) limits.answer_dtype = brigade::kernels::DType::kBF16;
  FrameView view;
  if (parse_frame(frame, limits, &view) != Refusal::kNone) return 0;
  volatile uint64_t sum = read_all(view);
  (void)sum;
  if (frame_bytes(view.header) != frame.size()) std::abort();
  return 0;
}
