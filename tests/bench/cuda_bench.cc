// Speed of the CUDA kernels, in both modes of arithmetic, beside a copy and a cuBLAS product of the
// same run, and of decode through a stack of 8x7B-shaped layers.
//   cuda_bench [--json] [--small] [--device cuda|cpu] [--module PATH]   or   cuda_bench --probe
// --small: tiny shapes, for trying the program where there is no GPU. --probe: names the GPUs, or
// says why there are none.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/core/device_cuda.h"
#include "kernels/core/status.h"
#include "tests/bench/layer_stack.h"

namespace brigade::bench {
namespace {

using kernels::Buffer;
using kernels::Device;

struct Options {
  bool json = false, small = false, probe = false;
  std::string device = "cuda", module;
};

Options parse(int argc, char** argv) {
  Options options;
  if (const char* module = std::getenv("BRIGADE_CUDA_MODULE")) options.module = module;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool more = i + 1 < argc;
    if (word == "--json") {
      options.json = true;
    } else if (word == "--small") {
      options.small = true;
    } else if (word == "--probe") {
      options.probe = true;
    } else if (word == "--device" && more) {
      options.device = argv[++i];
    } else if (word == "--module" && more) {
      options.module = argv[++i];
    } else {
      std::fprintf(stderr, "cuda_bench: unknown option %s\n", word.c_str());
      std::exit(2);
    }
  }
  return options;
}

struct Row {
  std::string name;
  double us = 0, gb_per_s = 0, of_copy = 0, tflop_per_s = 0, of_gemm = 0;
};

// Times work on one stream: the median of samples that each hold several calls, so that the wait at
// their end weighs little.
class Clock {
 public:
  Clock(LayerStack& stack, bool once) : stack_(stack), samples_(once ? 1 : 7), once_(once) {}

  // Seconds of one call.
  absl::StatusOr<double> time(const std::function<absl::Status()>& call) {
    constexpr double kSampleSeconds = 0.01;
    RETURN_IF_ERROR(several(1, call).status());
    int calls = 1;
    if (!once_) {
      ASSIGN_OR_RETURN(const double one, several(1, call));
      calls = static_cast<int>(std::clamp(kSampleSeconds / one, 1.0, 200.0));
    }
    std::vector<double> seconds;
    for (int i = 0; i < samples_; ++i) {
      ASSIGN_OR_RETURN(const double all, several(calls, call));
      seconds.push_back(all / calls);
    }
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    return seconds[seconds.size() / 2];
  }

 private:
  absl::StatusOr<double> several(int calls, const std::function<absl::Status()>& call) {
    const absl::Time start = absl::Now();
    for (int i = 0; i < calls; ++i) RETURN_IF_ERROR(call());
    RETURN_IF_ERROR(stack_.synchronize());
    return absl::ToDoubleSeconds(absl::Now() - start);
  }

  LayerStack& stack_;
  const int samples_;
  const bool once_;
};

struct Report {
  std::vector<Row> rows;
  double copy = 0;  // bytes/s, read and written
  double gemm = 0;  // FLOP/s
  std::string summary;
};

absl::Status add(Report& report, Clock& clock, const std::string& name, double bytes, double flop,
                 const std::function<absl::Status()>& call) {
  ASSIGN_OR_RETURN(const double seconds, clock.time(call));
  Row row{name, seconds * 1e6, bytes / seconds / 1e9, bytes / seconds / report.copy,
          flop / seconds / 1e12};
  row.of_gemm = report.gemm > 0 ? flop / seconds / report.gemm : 0;
  report.rows.push_back(row);
  return absl::OkStatus();
}

absl::Status time_copy(const Options& options, Device& device, LayerStack& stack, Clock& clock,
                       Report& report) {
  const size_t bytes = options.small ? 1 << 16 : size_t{1} << 30;
  ASSIGN_OR_RETURN(const Buffer from, stack.filled(bytes));
  ASSIGN_OR_RETURN(const Buffer to, Buffer::allocate(device, bytes));
  ASSIGN_OR_RETURN(const double copy_seconds, clock.time([&] {
    return stack.stream().copy_on_device(to.data(), from.data(), bytes);
  }));
  report.copy = 2.0 * bytes / copy_seconds;
  report.rows.push_back({"copy", copy_seconds * 1e6, report.copy / 1e9, 1});
  return absl::OkStatus();
}

// A square bf16 product; on a GPU through cuBLAS, so the device is one in mode fast. The rounding
// of x to bf16 is part of it: some 5 % of its time.
absl::Status time_gemm(const Options& options, Device& device, LayerStack& stack, Clock& clock,
                       Report& report) {
  const int size = options.small ? 320 : 8192;
  const kernels::WeightFormat format =
      kernels::weight_format(kernels::DType::kBF16, kernels::weight_layout(device));
  const size_t bytes = sizeof(float) * size * size;
  ASSIGN_OR_RETURN(const Buffer x, stack.filled(bytes));
  ASSIGN_OR_RETURN(const Buffer y, Buffer::allocate(device, bytes));
  ASSIGN_OR_RETURN(const Buffer w, stack.filled(kernels::packed_bytes(format, size, size)));
  ASSIGN_OR_RETURN(const double seconds, clock.time([&] {
    return kernels::matmul(stack.stream(), {.x = x.as<float>(),
                                            .weights = {w.data(), format, size, size},
                                            .y = y.as<float>(),
                                            .x_stride = size,
                                            .y_stride = size,
                                            .rows = size});
  }));
  report.gemm = 2.0 * size * size * size / seconds;
  report.rows.push_back({"GEMM", seconds * 1e6, 0, 0, report.gemm / 1e12, 1});
  return absl::OkStatus();
}

absl::Status ops(const Options& options, const std::string& mode, LayerStack& stack, Clock& clock,
                 Report& report) {
  const double row_bytes = 4.0 * stack.shape().hidden;
  int turn = 0;
  const auto layer = [&] { return turn++ % stack.num_layers(); };
  for (const int rows : options.small ? std::vector<int>{1, 5} : std::vector<int>{1, 16, 512}) {
    const std::string of = absl::StrCat(", ", rows, " rows", mode);
    RETURN_IF_ERROR(add(report, clock, "rms_norm" + of, 2 * rows * row_bytes, 0,
                        [&] { return stack.norm(layer(), rows); }));
    RETURN_IF_ERROR(add(report, clock, "qkv" + of, stack.qkv_bytes(), stack.qkv_bytes() * rows,
                        [&] { return stack.qkv(layer(), rows); }));
    RETURN_IF_ERROR(add(report, clock, "attention" + of, stack.attention_bytes(rows),
                        stack.attention_flop(rows),
                        [&] { return stack.attention(layer(), rows); }));
    RETURN_IF_ERROR(
        add(report, clock, "router" + of, 0, 0, [&] { return stack.router(layer(), rows); }));
    RETURN_IF_ERROR(add(report, clock, "experts" + of, stack.expert_bytes(rows),
                        stack.expert_flop(rows), [&] { return stack.experts(layer(), rows); }));
    RETURN_IF_ERROR(add(report, clock, "combine" + of, (stack.shape().top_k + 2) * rows * row_bytes,
                        0, [&] { return stack.combine(rows); }));
    RETURN_IF_ERROR(add(report, clock, "logits" + of, stack.logits_bytes(),
                        stack.logits_bytes() * rows, [&] { return stack.logits(rows); }));
  }
  return absl::OkStatus();
}

// Decode of a model of 32 such layers, from the stack's time a layer.
absl::Status decode(const Options& options, const std::string& mode, LayerStack& stack,
                    Clock& clock, Report& report) {
  constexpr int kModelLayers = 32;
  std::vector<std::string> said;
  for (const int rows : options.small ? std::vector<int>{1} : std::vector<int>{1, 16}) {
    ASSIGN_OR_RETURN(const double layers, clock.time([&] { return stack.layers(rows); }));
    ASSIGN_OR_RETURN(const double logits, clock.time([&] { return stack.logits(rows); }));
    const double step = layers / stack.num_layers() * kModelLayers + logits;
    const double bytes = stack.layer_bytes(rows) * kModelLayers + stack.logits_bytes();
    report.rows.push_back({absl::StrCat("32 layers and logits, ", rows, " rows", mode), step * 1e6,
                           bytes / step / 1e9, bytes / step / report.copy});
    said.push_back(absl::StrFormat("%d stream(s) %.1f tokens/s", rows, rows / step));
  }
  absl::StrAppend(&report.summary, report.summary.empty() ? "8x7B-shaped decode: " : "; ",
                  absl::StrJoin(said, ", "), mode);
  return absl::OkStatus();
}

// Everything in one mode. The first one takes the copy, the fast one (on a CPU: the only one) the
// product.
absl::Status measure_mode(const Options& options, kernels::CudaMath math, Report& report) {
  ASSIGN_OR_RETURN(kernels::DeviceOptions device_options, Device::parse(options.device));
  device_options.cuda_module = options.module;
  device_options.cuda_math = math;
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, Device::create(device_options));
  LayerShape shape;
  if (options.small) {
    shape = {.hidden = 128,
             .heads = 4,
             .kv_heads = 2,
             .head_dim = 64,
             .experts = 4,
             .top_k = 2,
             .ffn = 96,
             .vocab = 512,
             .context = 160,
             .block_size = 16,
             .sequences = 4};
  }
  ASSIGN_OR_RETURN(const auto stack, LayerStack::create(*device, shape, options.small ? 2 : 4,
                                                        options.small ? 8 : 512));
  Clock clock(*stack, options.small);
  const bool fast = math == kernels::CudaMath::kFast;
  if (report.copy == 0) RETURN_IF_ERROR(time_copy(options, *device, *stack, clock, report));
  if (fast || device->kind() != kernels::DeviceKind::kCuda) {
    RETURN_IF_ERROR(time_gemm(options, *device, *stack, clock, report));
  }
  const std::string mode = fast ? ", fast" : "";
  RETURN_IF_ERROR(ops(options, mode, *stack, clock, report));
  return decode(options, mode, *stack, clock, report);
}

absl::StatusOr<Report> measure(const Options& options) {
  Report report;
  ASSIGN_OR_RETURN(const kernels::DeviceOptions device, Device::parse(options.device));
  // Memory of one mode is given back before the next one starts.
  if (device.kind == kernels::DeviceKind::kCuda) {
    RETURN_IF_ERROR(measure_mode(options, kernels::CudaMath::kFast, report));
  }
  RETURN_IF_ERROR(measure_mode(options, kernels::CudaMath::kIdentical, report));
  return report;
}

void print(const Options& options, const Report& report) {
  if (!options.json) {
    std::printf("%-36s %10s %9s %8s %9s %8s\n", "what", "us", "GB/s", "of copy", "TFLOP/s",
                "of GEMM");
    for (const Row& row : report.rows) {
      std::printf("%-36s %10.1f %9.1f %8.2f %9.2f %8.3f\n", row.name.c_str(), row.us, row.gb_per_s,
                  row.of_copy, row.tflop_per_s, row.of_gemm);
    }
    std::printf("%s\n", report.summary.c_str());
    return;
  }
  std::vector<std::string> rows;
  for (const Row& row : report.rows) {
    rows.push_back(absl::StrFormat(
        R"({"name": "%s", "us": %.3f, "gb_per_s": %.3f, "of_copy": %.4f, "tflop_per_s": %.4f, "of_gemm": %.4f})",
        row.name, row.us, row.gb_per_s, row.of_copy, row.tflop_per_s, row.of_gemm));
  }
  std::printf("{\"summary\": \"%s\", \"rows\": [%s]}\n", report.summary.c_str(),
              absl::StrJoin(rows, ",\n").c_str());
}

int probe(const Options& options) {
  const auto open = kernels::open_cuda_module(options.module);
  const auto found = open.ok() ? open->module->devices() : open.status();
  if (!found.ok()) {
    std::printf("%s\n", std::string(found.status().message()).c_str());
    return 3;
  }
  for (const kernels::CudaDeviceInfo& gpu : *found) {
    std::printf("cuda:%d %s, compute %d.%d, %zu MiB\n", gpu.ordinal, gpu.name.c_str(), gpu.major,
                gpu.minor, gpu.memory_bytes >> 20);
  }
  return 0;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.probe) return probe(options);
  const absl::StatusOr<Report> report = measure(options);
  if (!report.ok()) {
    std::fprintf(stderr, "cuda_bench: %s\n", std::string(report.status().message()).c_str());
    return 1;
  }
  print(options, *report);
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) { return brigade::bench::run(argc, argv); }
