// What the real brigade-expert-worker costs: memory for the experts that it holds, and no processor
// time while nothing is asked of it.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/e2e/expert_worker_process.h"

namespace brigade::tests {
namespace {

using ExpertWorkerMemoryTest = ExpertWorkerProcessTest;

// Bytes of a process: private memory, and what is mapped of files with `name` in their path.
struct Resident {
  int64_t anonymous = 0, of_file = 0;
};
Resident resident_of(pid_t pid, const std::string& name) {
  Resident resident;
  std::ifstream maps(absl::StrCat("/proc/", pid, "/smaps"));
  bool is_file = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t kilobytes = 0;
    words >> key;
    if (!key.empty() && key.back() != ':') {
      is_file = absl::StrContains(line, name);
    } else if (words >> kilobytes) {
      if (key == "Anonymous:") resident.anonymous += kilobytes << 10;
      if (key == "Rss:" && is_file) resident.of_file += kilobytes << 10;
    }
  }
  return resident;
}

int64_t cpu_ticks_of(pid_t pid) {
  const std::string stat = read_file(absl::StrCat("/proc/", pid, "/stat"));
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(stat.rfind(')') + 2), ' ');
  return std::atoll(fields.at(11).c_str()) + std::atoll(fields.at(12).c_str());
}

// 2 layers of 16 experts of 768 KiB in f32: 24 MiB.
void write_model(const ModelFolder& folder) {
  constexpr int kExperts = 16, kFfn = 256, kHidden = 256;
  nlohmann::json config = tiny_mixtral_config();
  TinyTensors tensors;
  for (const auto& [key, value] : std::map<std::string, int>{{"hidden_size", kHidden},
                                                             {"intermediate_size", kFfn},
                                                             {"num_local_experts", kExperts},
                                                             {"num_attention_heads", 2},
                                                             {"num_key_value_heads", 1}})
    config[key] = value;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
    tensors[name] = random_f32({16, kHidden}, 1);
  tensors["model.norm.weight"] = random_f32({kHidden}, 2);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
      tensors[prefix + norm] = random_f32({kHidden}, 3);
    for (const char* matrix : {"q_proj", "o_proj"})
      tensors[absl::StrCat(prefix, "self_attn.", matrix, ".weight")] =
          random_f32({kHidden, kHidden}, 4);
    for (const char* matrix : {"k_proj", "v_proj"})
      tensors[absl::StrCat(prefix, "self_attn.", matrix, ".weight")] =
          random_f32({kHidden / 2, kHidden}, 5);
    const std::string moe = prefix + "block_sparse_moe.";
    tensors[moe + "gate.weight"] = random_f32({kExperts, kHidden}, 6);
    for (int expert = 0; expert < kExperts; ++expert) {
      for (const char* matrix : {"w1", "w3", "w2"})
        tensors[absl::StrCat(moe, "experts.", expert, ".", matrix, ".weight")] =
            random_f32({kFfn, kHidden}, 7 + expert);
    }
  }
  folder.write_json("config.json", config);
  folder.write("model.safetensors", safetensors_bytes(tensors));
}

// Half of the experts cost half of their bytes: by our accounts exactly, by the process's memory
// map within 5 % and a constant for stacks and buffers. Nothing of the checkpoint stays mapped in,
// and what is released is given back.
TEST_F(ExpertWorkerMemoryTest, HoldsWhatItWasGivenAndNothingElse) {
  constexpr int64_t kSlack = 1 << 20;
  write_model(folder_);
  ScriptedCoordinator coordinator;
  WorkerLinksBed bed(folder_.path());
  const auto all = static_cast<int64_t>(bed.whole().resident_bytes());
  ASSERT_GE(all, 24 << 20);
  auto worker = start(coordinator.address(), {"--model", folder_.path()});
  auto session = coordinator.accept();
  ASSERT_NE(session, nullptr) << log();
  ASSERT_TRUE(bed.admit(*session));
  // Everything but experts is in place: the first answers have been given.
  ASSERT_TRUE(bed.load(*session, {{0, 1}}).has_loaded());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(bed.compare(0, {0, 1}), "");
  const int64_t two = static_cast<int64_t>(2 * bed.whole().expert_bytes());
  const Resident before = resident_of(worker->pid(), "model.safetensors");

  const std::vector<int> half = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto loaded = bed.load(*session, {half, half});
  ASSERT_TRUE(loaded.has_loaded());
  EXPECT_EQ(loaded.loaded().resident_bytes(), all / 2);
  const Resident with_half = resident_of(worker->pid(), "model.safetensors");
  EXPECT_NEAR(with_half.anonymous - before.anonymous, all / 2 - two, 0.05 * all / 2 + kSlack);
  EXPECT_LE(with_half.of_file, kSlack) << "pages of the checkpoint stayed";
  EXPECT_EQ(bed.compare(1, half), "");

  bed.release(*session, {half, half});
  EXPECT_EQ(bed.load(*session, {}).loaded().resident_bytes(), 0);
  RecordProperty("grown_by", absl::StrCat(with_half.anonymous - before.anonymous));
  const Resident with_none = resident_of(worker->pid(), "model.safetensors");
  EXPECT_NEAR(with_none.anonymous - before.anonymous, -two, 0.05 * all / 2 + kSlack);
}

// Nothing polls: with a coordinator and a link, but no rows, below 2 % of a core.
TEST_F(ExpertWorkerMemoryTest, IdleItCostsNothing) {
  ScriptedCoordinator coordinator;
  WorkerLinksBed bed(demo_model());
  auto worker = start(coordinator.address());
  auto session = coordinator.accept();
  ASSERT_NE(session, nullptr) << log();
  ASSERT_TRUE(bed.admit(*session));
  ASSERT_TRUE(bed.load(*session, {{0, 1}}).has_loaded());
  ASSERT_EQ(bed.compare(0, {0, 1}), "");
  const int64_t ticks = cpu_ticks_of(worker->pid()), beats = session->heartbeats();
  absl::SleepFor(absl::Seconds(2));
  EXPECT_GT(session->heartbeats(), beats + 10);
  EXPECT_LE(cpu_ticks_of(worker->pid()) - ticks, sysconf(_SC_CLK_TCK) * 2 / 50);
}

}  // namespace
}  // namespace brigade::tests
