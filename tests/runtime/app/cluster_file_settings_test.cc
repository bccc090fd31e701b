// The coordinator's settings from a cluster file, and flags that win over it.
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/app/config.h"
#include "tests/support/temp_folder.h"

namespace brigade::tests {
namespace {

using runtime::CoordinatorConfig;
using runtime::ParsedCommandLine;

constexpr char kFile[] = R"(
model: {path: m, name: story, max_context: 512}
numerics: {wire_dtype: bf16, kv_dtype: f16}
hosts:
  - {name: pass, address: 127.0.0.1, data_interface: lo}
  - {name: stove, address: 127.0.0.2}
coordinator:
  {device: cpu_async, threads: 3, port: 7001, control_port: 7002, metrics_port: 7003,
   kv_memory_bytes: 2G, microbatches: 3, token_budget: 99, max_sequences: 7,
   data_plane: host}
workers:
  - {name: grill, count: 2, host: stove}
  - {name: wok}
placement: {join_deadline: 7s}
timeouts: {heartbeat: 100ms, lost_after: 1500ms, reply_deadline: 3s, grace: 4s}
security:
  tokens: {client: c, operator: o, worker: w, draft: d}
  data_plane: trusted_network
)";

ParsedCommandLine parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "brigade-coordinator");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return runtime::parse_command_line(static_cast<int>(argv.size()), argv.data());
}

class ClusterFileSettingsTest : public testing::Test {
 protected:
  ClusterFileSettingsTest() {
    std::filesystem::create_directory(folder_.path() + "m");
    for (const std::string role : {"c", "o", "w", "d"}) {
      std::ofstream(folder_.path() + role) << "a token of role " << role << "\n";
    }
    std::ofstream(file_) << kFile;
  }

  const TempFolder folder_;
  const std::string file_ = folder_.path() + "f.yaml";
};

TEST_F(ClusterFileSettingsTest, EveryKeyArrives) {
  ParsedCommandLine parsed = parse({"--cluster", file_});
  ASSERT_EQ(parsed.exit_code, -1);
  CoordinatorConfig& config = parsed.config;
  ASSERT_TRUE(runtime::check(&config).ok()) << runtime::check(&config);
  EXPECT_EQ(config.model, folder_.path() + "m");
  EXPECT_EQ(config.name, "story");
  EXPECT_EQ(config.max_context, 512);
  EXPECT_EQ(config.kv_dtype, "f16");
  EXPECT_EQ(config.device.name, "cpu_async");
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.kv_memory_bytes, int64_t{2} << 30);
  EXPECT_EQ(config.token_budget, 99);
  EXPECT_EQ(config.engine.max_running_sequences, 7);
  EXPECT_EQ(config.grace, absl::Seconds(4));
  EXPECT_EQ(config.metrics_listen, "127.0.0.1:7003");
  EXPECT_EQ(config.door.listen, "127.0.0.1:7001");
  EXPECT_EQ(config.door.token_file, folder_.path() + "c");
  EXPECT_EQ(config.door.operator_token_file, folder_.path() + "o");
  EXPECT_EQ(config.door.worker_token_file, folder_.path() + "w");
  EXPECT_EQ(config.door.draft_token_file, folder_.path() + "d");
  EXPECT_EQ(config.cluster.workers, 3);
  EXPECT_EQ(config.cluster.control_listen, "127.0.0.1:7002");
  EXPECT_EQ(config.cluster.worker_token_file, folder_.path() + "w");
  EXPECT_TRUE(config.cluster.trusted_network);
  EXPECT_EQ(config.cluster.data_interface, "lo");
  EXPECT_EQ(config.cluster.data_plane, "host");
  EXPECT_EQ(config.cluster.microbatches, 3);
  EXPECT_EQ(config.cluster.wire_dtype, "bf16");
  EXPECT_EQ(config.cluster.join_deadline, absl::Seconds(7));
  EXPECT_EQ(config.cluster.heartbeat, absl::Milliseconds(100));
  EXPECT_EQ(config.cluster.lost_after, absl::Milliseconds(1500));
  EXPECT_EQ(config.cluster.reply_deadline, absl::Seconds(3));
  const runtime::DoorOptions control = runtime::control_door(config);
  EXPECT_EQ(control.kind, runtime::DoorKind::kControl);
  EXPECT_EQ(control.listen, "127.0.0.1:7002");
  EXPECT_EQ(control.worker_token_file, folder_.path() + "w");
}

TEST_F(ClusterFileSettingsTest, FlagsWin) {
  const ParsedCommandLine parsed =
      parse({"--listen", "127.0.0.1:0", "--cluster=" + file_, "--workers", "1", "--grace", "9",
             "--kv-memory", "64M", "--heartbeat", "0.25", "--name", "other"});
  ASSERT_EQ(parsed.exit_code, -1);
  EXPECT_EQ(parsed.config.door.listen, "127.0.0.1:0");
  EXPECT_EQ(parsed.config.cluster.workers, 1);
  EXPECT_EQ(parsed.config.grace, absl::Seconds(9));
  EXPECT_EQ(parsed.config.kv_memory_bytes, int64_t{64} << 20);
  EXPECT_EQ(parsed.config.cluster.heartbeat, absl::Milliseconds(250));
  EXPECT_EQ(parsed.config.name, "other");
  EXPECT_EQ(parsed.config.threads, 3) << "not on the command line: as the file says";
  EXPECT_EQ(parsed.config.engine.queue_timeout, runtime::EngineConfig().queue_timeout);
}

TEST_F(ClusterFileSettingsTest, FaultsEndWithTwo) {
  std::ofstream(file_) << "modell: {}\n";
  EXPECT_EQ(parse({"--cluster", file_}).exit_code, 2);
  EXPECT_EQ(parse({"--cluster", "/none"}).exit_code, 2);
  EXPECT_EQ(parse({"--kv-memory", "4X"}).exit_code, 2);
  ParsedCommandLine neither = parse({});
  EXPECT_EQ(runtime::check(&neither.config).message(),
            "--model is missing: the folder of a model, or --cluster");
}

// A GPU by file, by flag, and what does not fit together.
TEST_F(ClusterFileSettingsTest, DevicesAndTheirMaths) {
  std::ofstream(folder_.path() + "module.so") << "ELF";
  std::ofstream(file_) << "model: {path: m}\nnumerics: {gpu_math: fast}\n"
                          "hosts: [{name: a, address: 127.0.0.1, cuda_module: module.so}]\n"
                          "coordinator: {device: 'cuda:3', data_plane: nccl, gpu_graphs: off}\n";
  CoordinatorConfig config = parse({"--cluster", file_}).config;
  EXPECT_EQ(runtime::describe(config.device), "cuda:3, fast maths, no graphs");
  EXPECT_EQ(config.device.cuda_module, folder_.path() + "module.so");
  EXPECT_EQ(config.cluster.data_plane, "nccl");
  EXPECT_EQ(config.device.gpu_graphs, "off");
  ASSERT_TRUE(runtime::check(&config).ok()) << runtime::check(&config);
  EXPECT_EQ(config.kv_memory_bytes, 0);  // of what the GPU has left, once it is open
  config = parse({"--cluster", file_, "--device", "cuda:1", "--gpu-math", "identical",
                  "--cuda-module", "elsewhere.so"})
               .config;
  EXPECT_EQ(runtime::describe(config.device), "cuda:1, identical maths, no graphs");
  EXPECT_EQ(config.device.cuda_module, "elsewhere.so");
  EXPECT_FALSE(wants_graphs(config.device)) << "as the file says";
  config = parse({"--cluster", file_, "--gpu-graphs", "on"}).config;
  EXPECT_TRUE(wants_graphs(config.device));
  EXPECT_EQ(runtime::describe(config.device), "cuda:3, fast maths");
  const auto fault = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--model", folder_.path() + "m"});
    CoordinatorConfig wrong = parse(arguments).config;
    return std::string(runtime::check(&wrong).message());
  };
  EXPECT_EQ(fault({"--device", "gpu"}),
            "--device: device 'gpu' is none of cpu, cpu_async, cuda, cuda:N");
  EXPECT_EQ(fault({"--device", "cuda", "--gpu-math", "quick"}),
            "--gpu-math: 'quick' is neither identical nor fast");
  EXPECT_EQ(fault({"--gpu-graphs", "no"}), "--gpu-graphs: 'no' is neither on nor off");
  EXPECT_EQ(fault({"--gpu-math", "fast"}), "--gpu-math fast: the device is cpu, no GPU");
  EXPECT_EQ(fault({"--cuda-module", "x.so"}), "--cuda-module: the device is cpu, no GPU");
}

}  // namespace
}  // namespace brigade::tests
