#include "tests/bench/read_streams.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/read_streams.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <int kStreams>
uint64_t read_as(const uint8_t* data, size_t bytes, size_t ahead) {
  const hn::ScalableTag<uint64_t> d;
  constexpr size_t kTurn = 256;
  const size_t part = bytes / kStreams;
  auto sum = hn::Zero(d);
  for (size_t at = 0; at < part; at += kTurn) {
    for (int stream = 0; stream < kStreams; ++stream) {
      const uint8_t* turn = data + stream * part + at;
      for (size_t line = 0; line < kTurn; line += 64) {
        __builtin_prefetch(turn + line + ahead, 0, 2);
        for (size_t i = 0; i < 64; i += sizeof(uint64_t) * hn::Lanes(d)) {
          sum = hn::Add(sum, hn::Load(d, reinterpret_cast<const uint64_t*>(turn + line + i)));
        }
      }
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

uint64_t read_streams_vectors(const uint8_t* data, size_t bytes, int streams, size_t ahead) {
  switch (streams) {
    case 2:
      return read_as<2>(data, bytes, ahead);
    case 4:
      return read_as<4>(data, bytes, ahead);
    default:
      return read_as<8>(data, bytes, ahead);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace brigade::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::bench {

HWY_EXPORT(read_streams_vectors);
uint64_t read_streams(const uint8_t* data, size_t bytes, int streams, size_t ahead) {
  return HWY_DYNAMIC_DISPATCH(read_streams_vectors)(data, bytes, streams, ahead);
}

}  // namespace brigade::bench
#endif
