#include "runtime/model/kv_cache.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::runtime {

int64_t kv_bytes_per_block(const ModelSpec& spec, const KvCacheOptions& options) {
  return int64_t{2} * spec.num_layers() * spec.attention.kv_heads * options.block_size *
         spec.attention.head_dim * static_cast<int64_t>(kernels::dtype_bytes(options.dtype));
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::create(kernels::Device& device,
                                                         const ModelSpec& spec,
                                                         const KvCacheOptions& options) {
  if (options.block_size < 1 || options.dtype == kernels::DType::kI32) {
    return absl::InvalidArgumentError("KV cache: block size must be at least 1 and dtype a float");
  }
  const int64_t block_bytes = kv_bytes_per_block(spec, options);
  const int64_t blocks =
      options.num_blocks != 0 ? options.num_blocks : options.memory_bytes / block_bytes;
  if (blocks < 1 || blocks > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV cache: a budget of ", options.memory_bytes, " bytes holds ", blocks, " blocks of ",
        options.block_size, " positions, ", block_bytes, " bytes each"));
  }
  std::unique_ptr<KvCache> cache(new KvCache());
  cache->geometry_ = {.block_size = options.block_size,
                      .num_blocks = static_cast<int>(blocks),
                      .bytes_per_block = block_bytes};
  ASSIGN_OR_RETURN(cache->buffer_,
                   kernels::Buffer::allocate(device, static_cast<size_t>(blocks * block_bytes)));
  cache->layer_ = {.data = cache->buffer_.data(),
                   .block_stride_bytes = block_bytes,
                   .dtype = options.dtype,
                   .num_blocks = cache->geometry_.num_blocks,
                   .block_size = options.block_size,
                   .kv_heads = spec.attention.kv_heads,
                   .head_dim = spec.attention.head_dim};
  if (options.poison) {
    ASSIGN_OR_RETURN(const auto stream, device.create_stream());
    RETURN_IF_ERROR(stream->fill_bytes(cache->buffer_.data(), 0xFF, cache->buffer_.bytes()));
    RETURN_IF_ERROR(stream->synchronize(absl::Now() + absl::Minutes(1)));
  }
  return cache;
}

kernels::KvLayerView KvCache::layer(int index) const {
  kernels::KvLayerView view = layer_;
  view.data = buffer_.as<uint8_t>() + static_cast<size_t>(index) * layer_.layer_bytes();
  return view;
}

absl::Status KvCache::copy_block(kernels::Stream& stream, int from, int to) const {
  if (std::min(from, to) < 0 || std::max(from, to) >= geometry_.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat("KV cache: cannot copy block ", from, " to ", to,
                                                   " of ", geometry_.num_blocks));
  }
  uint8_t* base = buffer_.as<uint8_t>();
  return stream.copy_on_device(base + to * geometry_.bytes_per_block,
                               base + from * geometry_.bytes_per_block,
                               static_cast<size_t>(geometry_.bytes_per_block));
}

}  // namespace brigade::runtime
