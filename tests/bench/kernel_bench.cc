// Speed of the weight-streaming kernels against this machine's own read bandwidth, measured in the
// same run: each kernel sample stands beside a ceiling sample, the medians of both and of their
// ratio are printed. Weights come from a block far larger than the last-level cache.
//   kernel_bench [--megabytes 1280] [--rounds 9] [--threads 1,2]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/device.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"
#include "tests/bench/read_bandwidth.h"

namespace brigade::bench {
namespace {

using kernels::Buffer;
using kernels::Device;
using kernels::WeightFormat;

struct Options {
  size_t megabytes = 1280;
  int rounds = 9;
  std::vector<int> threads = {1, 2};
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 >= argc) {
      std::fprintf(stderr, "kernel_bench: %s needs a value\n", name.c_str());
      std::exit(2);
    }
    if (name == "--megabytes") {
      options.megabytes = std::strtoul(argv[i + 1], nullptr, 10);
    } else if (name == "--rounds") {
      options.rounds = std::atoi(argv[i + 1]);
    } else if (name == "--threads") {
      options.threads.clear();
      for (const char* at = argv[i + 1]; at != nullptr && *at != 0;) {
        options.threads.push_back(std::max(1, std::atoi(at)));
        at = std::strchr(at, ',');
        if (at != nullptr) ++at;
      }
    } else {
      std::fprintf(stderr, "kernel_bench: unknown option %s\n", name.c_str());
      std::exit(2);
    }
  }
  if (options.megabytes < 512 || options.rounds < 1) {
    std::fprintf(stderr, "kernel_bench: --megabytes must be at least 512, --rounds at least 1\n");
    std::exit(2);
  }
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Timing {
  double seconds = 0;  // of one call
  double ceiling = 0;  // GB/s
  double ratio = 0;    // achieved over ceiling, side by side
  double best = 0;     // the fastest sample over the highest ceiling: what an undisturbed run gives
};

struct Machine {
  Device& device;
  kernels::Stream& stream;
  ColdMemory& memory;
  ReadBandwidth& bandwidth;
  int rounds;
};

// `call` reads `bytes` of cold weights. Samples hold a few calls, at least 8 MiB.
Timing time_call(const Machine& machine, double bytes, const std::function<void()>& call) {
  const int calls = std::max(1, static_cast<int>((8 << 20) / bytes));
  double (*const clock)() = machine.device.num_threads() == 1 ? thread_seconds : wall_seconds;
  std::vector<double> seconds, ceilings, ratios;
  call();
  for (int round = 0; round < machine.rounds; ++round) {
    ceilings.push_back(machine.bandwidth.sample());
    const double start = clock();
    for (int i = 0; i < calls; ++i) call();
    seconds.push_back((clock() - start) / calls);
    ratios.push_back(bytes / seconds.back() / 1e9 / ceilings.back());
  }
  const double fastest = *std::min_element(seconds.begin(), seconds.end());
  const double highest = *std::max_element(ceilings.begin(), ceilings.end());
  return {median(seconds), median(ceilings), median(ratios), bytes / fastest / 1e9 / highest};
}

void matmul_table(const Machine& machine) {
  std::printf("\nmatmul, %d thread(s)\n%-6s %-11s %4s %9s %9s %9s %8s %8s\n",
              machine.device.num_threads(), "format", "k x n", "rows", "us", "GB/s", "GMAC/s",
              "of read", "at best");
  struct Shape {
    int k, outputs;
  };
  std::vector<float> x(64 * 4096, 0.5f), y(64 * 4096);
  const kernels::WeightLayout layout = kernels::weight_layout(machine.device);
  for (const kernels::DType dtype : {kernels::DType::kBF16, kernels::DType::kF32}) {
    const WeightFormat format = kernels::weight_format(dtype, layout);
    for (const Shape shape : {Shape{1024, 2048}, Shape{4096, 1024}}) {
      const size_t bytes = kernels::packed_bytes(format, shape.outputs, shape.k);
      for (const int rows : {1, 2, 4, 8, 16, 64}) {
        const Timing timing = time_call(machine, static_cast<double>(bytes), [&] {
          const absl::Status status = kernels::matmul(
              machine.stream,
              {.x = x.data(),
               .weights = {machine.memory.next(bytes), format, shape.outputs, shape.k},
               .y = y.data(),
               .x_stride = shape.k,
               .y_stride = shape.outputs,
               .rows = rows});
          CHECK(status.ok());
        });
        std::printf(
            "%-6s %4dx%-6d %4d %9.0f %9.1f %9.1f %8.2f %8.2f\n", kernels::dtype_name(dtype),
            shape.k, shape.outputs, rows, timing.seconds * 1e6, bytes / timing.seconds / 1e9,
            1e-9 * rows * shape.k * shape.outputs / timing.seconds, timing.ratio, timing.best);
        std::fflush(stdout);
      }
    }
  }
}

// Random routing of `tokens` to two of the experts each, as groups in order of expert.
struct Routing {
  std::vector<kernels::ExpertGroup> groups;
  std::vector<int32_t> row_index, out_index;
};
Routing route(int tokens, int experts, std::mt19937& generator) {
  std::vector<std::vector<int32_t>> slots(experts);
  for (int token = 0; token < tokens; ++token) {
    const int first = static_cast<int>(generator() % experts);
    const int second = static_cast<int>((first + 1 + generator() % (experts - 1)) % experts);
    slots[first].push_back(2 * token);
    slots[second].push_back(2 * token + 1);
  }
  Routing routing;
  for (const std::vector<int32_t>& expert : slots) {
    kernels::ExpertGroup group;
    group.first = static_cast<int>(routing.out_index.size());
    group.count = static_cast<int>(expert.size());
    routing.groups.push_back(group);
    for (const int32_t slot : expert) {
      routing.row_index.push_back(slot / 2);
      routing.out_index.push_back(slot);
    }
  }
  return routing;
}

void expert_table(const Machine& machine) {
  constexpr int kExperts = 16, kHidden = 1024, kFfn = 2048, kMaxTokens = 64;
  const WeightFormat format =
      kernels::weight_format(kernels::DType::kBF16, kernels::weight_layout(machine.device));
  std::printf(
      "\nexpert layer, bf16, %d experts top-2, d %d, ffn %d, random routing, %d thread(s)\n"
      "%6s %7s %9s %9s %9s %8s %8s %10s\n",
      kExperts, kHidden, kFfn, machine.device.num_threads(), "tokens", "active", "us", "GB/s",
      "GMAC/s", "of read", "at best", "tokens/s");
  const size_t gate_up = 2 * kernels::packed_bytes(format, kFfn, kHidden);
  const size_t down = kernels::packed_bytes(format, kHidden, kFfn);
  const size_t scratch_bytes = kernels::expert_ffn_scratch_bytes(machine.device, 2 * kMaxTokens,
                                                                 kHidden, kFfn);
  auto scratch = Buffer::allocate(machine.device, scratch_bytes);
  CHECK(scratch.ok());
  std::vector<float> x(kMaxTokens * kHidden, 0.5f), out(2 * kMaxTokens * kHidden);
  std::mt19937 generator(7);
  for (const int tokens : {1, 4, 16, 64}) {
    // One routing for all rounds, so that a call reads the same number of experts each time.
    Routing routing = route(tokens, kExperts, generator);
    int active = 0;
    for (const kernels::ExpertGroup& group : routing.groups) active += group.count > 0;
    const double bytes = static_cast<double>(gate_up + down) * active;
    const Timing timing = time_call(machine, bytes, [&] {
      for (kernels::ExpertGroup& group : routing.groups) {
        if (group.count == 0) continue;
        group.weights.ffn = kFfn;
        group.weights.gate_up = {machine.memory.next(gate_up), format,
                                 kernels::gate_up_outputs(format, kFfn), kHidden};
        group.weights.down = {machine.memory.next(down), format, kHidden, kFfn};
      }
      const absl::Status status =
          kernels::expert_ffn(machine.stream, {.x = x.data(),
                                               .row_index = routing.row_index.data(),
                                               .out_index = routing.out_index.data(),
                                               .out = out.data(),
                                               .groups = routing.groups.data(),
                                               .num_groups = kExperts,
                                               .total = 2 * tokens,
                                               .hidden = kHidden,
                                               .scratch = scratch->data(),
                                               .scratch_bytes = scratch_bytes});
      CHECK(status.ok());
    });
    std::printf("%6d %7d %9.0f %9.1f %9.1f %8.2f %8.2f %10.0f\n", tokens, active,
                timing.seconds * 1e6, bytes / timing.seconds / 1e9,
                1e-9 * 2 * tokens * 3 * kHidden * kFfn / timing.seconds, timing.ratio, timing.best,
                tokens / timing.seconds);
    std::fflush(stdout);
  }
}

// Small bf16 numbers; read as f32 they are ordinary numbers as well.
void fill(uint8_t* data, size_t bytes) {
  std::mt19937 generator(1);
  constexpr size_t kPattern = size_t{1} << 20;
  auto* words = reinterpret_cast<uint32_t*>(data);
  for (size_t i = 0; i < kPattern / 4; ++i) {
    const uint32_t random = static_cast<uint32_t>(generator());
    words[i] = 0x3c003c00u | (random & 0x80ff80ffu);  // +-0.0078 .. 0.031 in both halves
  }
  for (size_t at = kPattern; at < bytes; at += kPattern) {
    std::memcpy(data + at, data, std::min(kPattern, bytes - at));
  }
}

int main_with(const Options& options) {
  const size_t bytes = options.megabytes << 20;
  auto device = Device::create(kernels::DeviceKind::kCpu, 1);
  CHECK(device.ok());
  auto block = Buffer::allocate(**device, bytes);
  if (!block.ok()) {
    std::fprintf(stderr, "kernel_bench: %s\n", std::string(block.status().message()).c_str());
    return 1;
  }
  fill(block->as<uint8_t>(), bytes);
  ColdMemory memory(block->as<uint8_t>(), bytes);
  std::printf(
      "weights from %zu MiB; medians of %d rounds; 'of read': achieved / read bandwidth "
      "beside it; 'at best': fastest sample / highest bandwidth\n",
      options.megabytes, options.rounds);
  for (const int threads : options.threads) {
    auto compute = Device::create(kernels::DeviceKind::kCpu, threads);
    CHECK(compute.ok());
    auto stream = (*compute)->create_stream();
    CHECK(stream.ok());
    kernels::ThreadPool readers(threads);
    ReadBandwidth bandwidth(readers, memory);
    std::vector<double> samples(options.rounds);
    for (double& sample : samples) sample = bandwidth.sample();
    std::printf(
        "\nread bandwidth, %d thread(s): median %.1f GB/s, best %.1f (%d streams, prefetch "
        "%zu bytes ahead; %s time)\n",
        threads, median(samples), *std::max_element(samples.begin(), samples.end()),
        bandwidth.streams(), bandwidth.ahead(), threads == 1 ? "processor" : "wall");
    const Machine machine{**compute, **stream, memory, bandwidth, options.rounds};
    matmul_table(machine);
    expert_table(machine);
  }
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) {
  return brigade::bench::main_with(brigade::bench::parse(argc, argv));
}
