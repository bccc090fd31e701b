// A paged cache with sequences in it and rows that attend to it, for the tests of rope and attention.
// Blocks are dealt out in a scattered order; whatever a sequence has not written is NaN.
#pragma once

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/kernels/op_runner.h"

namespace brigade::tests {

struct AttentionShape {
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  int block_size = 16;
  kernels::DType dtype = kernels::DType::kF32;
  int window = 0;
};

struct AttentionCase {
  // `lengths`: written positions of each sequence. Rows are chosen with add_row().
  AttentionCase(const AttentionShape& shape_in, const std::vector<int>& lengths_in, uint64_t seed)
      : shape(shape_in), lengths(lengths_in), random(seed) {
    const int longest = *std::max_element(lengths.begin(), lengths.end());
    max_blocks = (longest + shape.block_size - 1) / shape.block_size + 1;
    const int blocks = max_blocks * static_cast<int>(lengths.size());
    for (int block = 0; block < blocks; ++block) block_tables.push_back(block);
    std::shuffle(block_tables.begin(), block_tables.end(), random);
    kernels::KvLayerView layer = view(nullptr);
    cache.assign(size_t(blocks) * layer.block_stride_bytes, 0xFF);
    for (size_t sequence = 0; sequence < lengths.size(); ++sequence) fill(layer, sequence);
  }

  void add_row(int sequence, int position) {
    row_sequence.push_back(sequence);
    row_position.push_back(position);
    for (const float value : random_floats(random, width(), 2)) q.push_back(value);
  }
  int rows() const { return static_cast<int>(row_sequence.size()); }
  int width() const { return shape.heads * shape.head_dim; }

  kernels::KvLayerView view(void* data) const {
    kernels::KvLayerView layer;
    layer.data = data;
    layer.dtype = shape.dtype;
    layer.num_blocks = static_cast<int>(block_tables.size());
    layer.block_size = shape.block_size;
    layer.kv_heads = shape.kv_heads;
    layer.head_dim = shape.head_dim;
    layer.block_stride_bytes = static_cast<int64_t>(layer.layer_bytes()) + 64;  // other layers' bytes
    return layer;
  }

  // Everything but the pointers.
  kernels::PagedAttentionArgs sizes(int count) const {
    kernels::PagedAttentionArgs args;
    args.q_stride = args.out_stride = width();
    args.rows = count;
    args.heads = shape.heads;
    args.max_blocks = max_blocks;
    args.sequences = static_cast<int>(lengths.size());
    args.window = shape.window;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    return args;
  }

  std::vector<float> run(OpRunner& runner, int first, int count) const {
    const kernels::Buffer cache_at = runner.upload(cache), tables_at = runner.upload(block_tables);
    const kernels::Buffer q_at = runner.upload(q), sequence_at = runner.upload(row_sequence);
    const kernels::Buffer position_at = runner.upload(row_position);
    const kernels::Buffer out = runner.allocate(size_t(count) * width() * sizeof(float));
    const kernels::Buffer scratch = runner.allocate(kernels::attention_scratch_bytes(
        runner.device(), count, shape.heads, shape.head_dim));
    kernels::PagedAttentionArgs args = sizes(count);
    args.q = q_at.as<float>() + int64_t{first} * width();
    args.cache = view(cache_at.data());
    args.block_tables = tables_at.as<int32_t>();
    args.row_sequence = sequence_at.as<int32_t>() + first;
    args.row_position = position_at.as<int32_t>() + first;
    args.out = out.as<float>();
    args.scratch = scratch.data();
    args.scratch_bytes = scratch.bytes();
    OpRunner::expect_ok(kernels::paged_attention(runner.stream(), args));
    return runner.download<float>(out);
  }

  std::vector<float> truth() {
    std::vector<float> out(size_t(rows()) * width());
    kernels::PagedAttentionArgs args = sizes(rows());
    args.q = q.data();
    args.cache = view(cache.data());
    args.block_tables = block_tables.data();
    args.row_sequence = row_sequence.data();
    args.row_position = row_position.data();
    args.out = out.data();
    kernels::reference::paged_attention(args);
    return out;
  }

  AttentionShape shape;
  std::vector<int> lengths;
  std::mt19937_64 random;
  int max_blocks = 0;
  std::vector<int32_t> block_tables;  // [sequences, max_blocks]
  std::vector<uint8_t> cache;
  std::vector<int32_t> row_sequence, row_position;
  std::vector<float> q;

 private:
  void fill(const kernels::KvLayerView& layer, size_t sequence) {
    const size_t element = kernels::dtype_bytes(shape.dtype);
    for (int position = 0; position < lengths[sequence]; ++position) {
      const int64_t block = block_tables[sequence * max_blocks + position / shape.block_size];
      for (int plane = 0; plane < 2 * shape.kv_heads; ++plane) {
        const std::vector<uint8_t> bytes =
            encode(random_floats(random, shape.head_dim), shape.dtype);
        const int64_t index = int64_t{plane} * shape.block_size + position % shape.block_size;
        std::copy(bytes.begin(), bytes.end(),
                  cache.begin() + block * layer.block_stride_bytes +
                      index * shape.head_dim * static_cast<int64_t>(element));
      }
    }
  }
};

}  // namespace brigade::tests
