// What either kind of worker takes from the cluster file for itself: its role's keys, its host's,
// and flags that win over both.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/draft_worker/draft_worker_config.h"
#include "runtime/worker/worker_config.h"
#include "tests/support/temp_folder.h"

namespace brigade::tests {
namespace {

constexpr char kFile[] = R"(
model: {path: m}
numerics: {gpu_math: fast}
hosts:
  - {name: pass, address: 127.0.0.1}
  - {name: stove, address: 127.0.0.2, data_interface: lo, cuda_module: module.so}
coordinator: {device: "cuda:0", control_port: 7002}
workers:
  - {name: grill, count: 2, host: stove, device: "cuda:{index}", memory_bytes: 3G}
  - {name: wok, device: "cuda:1", data_plane: nccl, threads: 5}
drafts:
  - {name: d0, model: m, host: stove, device: "cuda:9", gpu_graphs: off}
  - {name: d1, model: m}
)";

class WorkerFileSettingsTest : public testing::Test {
 protected:
  WorkerFileSettingsTest() {
    std::filesystem::create_directory(folder_.path() + "m");
    std::ofstream(folder_.path() + "module.so") << "ELF";
    std::ofstream(file_) << kFile;
  }

  template <typename Parse>
  auto parse(Parse parse_flags, const std::string& name, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"program", "--cluster", file_, "--name", name});
    std::vector<char*> argv;
    for (std::string& word : more) argv.push_back(word.data());
    const auto parsed = parse_flags(static_cast<int>(argv.size()), argv.data());
    EXPECT_EQ(parsed.exit_code, -1);
    return parsed.config;
  }

  const TempFolder folder_;
  const std::string file_ = folder_.path() + "f.yaml";
};

TEST_F(WorkerFileSettingsTest, ExpertWorkers) {
  const auto grill = parse(&runtime::worker::parse_worker_flags, "grill-1");
  EXPECT_EQ(grill.device.name, "cuda:1");
  EXPECT_EQ(grill.device.gpu_math, "fast");
  EXPECT_EQ(grill.device.cuda_module, folder_.path() + "module.so");
  EXPECT_EQ(grill.data_plane, "auto");
  EXPECT_EQ(grill.data_interface, "lo");
  EXPECT_EQ(grill.memory_bytes, int64_t{3} << 30);
  EXPECT_EQ(grill.dial.address, "127.0.0.1:7002");
  const auto wok = parse(&runtime::worker::parse_worker_flags, "wok");
  EXPECT_EQ(wok.data_plane, "nccl");
  EXPECT_EQ(wok.threads, 5);
  EXPECT_EQ(wok.device.cuda_module, "") << "its host names none";
  const auto told = parse(&runtime::worker::parse_worker_flags, "wok",
                          {"--data-plane", "host", "--cuda-module", "other.so"});
  EXPECT_EQ(told.data_plane, "host");
  EXPECT_EQ(told.device.cuda_module, "other.so");
}

TEST_F(WorkerFileSettingsTest, DraftWorkers) {
  const auto far = parse(&runtime::draft_worker::parse_draft_flags, "d0");
  EXPECT_EQ(far.device.name, "cuda:9");
  EXPECT_EQ(far.device.gpu_math, "fast");
  EXPECT_EQ(far.device.gpu_graphs, "off");
  EXPECT_EQ(far.device.cuda_module, folder_.path() + "module.so");
  EXPECT_EQ(parse(&runtime::draft_worker::parse_draft_flags, "d1").device.gpu_math, "identical");
}

}  // namespace
}  // namespace brigade::tests
