// Right cluster files: what they come to with defaults, in words of the file again, and by layout.
#include <string>

#include "cluster_file/cluster_layout.h"
#include "cluster_file/duration_and_size.h"
#include "cluster_file/near_miss.h"
#include "cluster_file/read_cluster_file.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/support/written_surroundings.h"

namespace brigade::tests {
namespace {

using google::protobuf::util::MessageDifferencer;

constexpr char kTwoHosts[] = R"(
name: kitchen
model: {path: ../models/m/, name: "story: \"teller\"", max_context: 512}
numerics: {wire_dtype: bf16}
hosts:
  - {name: pass, address: 10.0.0.1}
  - {name: stove, address: "fd00::2", data_interface: ib0, cuda_module: lib/brigade_cuda.so}
coordinator: {device: cpu, threads: 3, port: 0, kv_memory_bytes: 2G, listen_address: 0.0.0.0}
workers:
  - &station {name: grill, host: stove, threads: 4, memory_bytes: 512MB}
  - {name: gpu, count: 3, device: "cuda:{index}"}
timeouts: {heartbeat: 100ms, lost_after: 1.5s, grace: 0s}
security:
  tls: {cert: tls/c.pem, key: tls/k.pem, ca: tls/ca.pem}
  tokens: {client: client.token, worker: /secrets/worker.token}
  data_plane: trusted_network
launch:
  remote_shell: "ip netns exec {host}"
  restart: {max_restarts: 0}
)";

cluster_file::Reading read(const std::string& text) {
  auto reading = cluster_file::parse_cluster_file(text, "/c/files/f.yaml", nullptr);
  EXPECT_TRUE(reading.ok()) << reading.status();
  return reading.ok() ? *std::move(reading) : cluster_file::Reading();
}

TEST(EffectiveFileTest, TheSmallestFile) {
  EXPECT_EQ(cluster_file::to_yaml(read("model:\n  path: m\nworkers:\n").file),
            R"(name: brigade
model:
  path: /c/files/m
  name: m
numerics:
  wire_dtype: f32
  kv_dtype: f32
  gpu_math: identical
hosts:
  - name: local
    address: "127.0.0.1"
coordinator:
  host: local
  device: cpu
  port: 50051
  control_port: 50052
  metrics_port: 0
  listen_address: "127.0.0.1"
  microbatches: 1
  token_budget: 256
  max_sequences: 64
  data_plane: auto
  gpu_graphs: "on"
placement:
  join_deadline: 1m
timeouts:
  heartbeat: 200ms
  lost_after: 2s
  reply_deadline: 10s
  rejoin: 10m
  grace: 30s
security:
  data_plane: loopback
launch:
  remote_shell: "ssh {host}"
  restart:
    policy: on_failure
    first_delay: 500ms
    longest_delay: 30s
    max_restarts: 10
  ready_timeout: 5m
)");
}

TEST(EffectiveFileTest, PrintedAndReadAgainIsEqual) {
  for (const std::string& text : {std::string("model: {path: m}\n"), std::string(kTwoHosts)}) {
    const cluster_file::Reading once = read(text);
    const cluster_file::Reading again = read(cluster_file::to_yaml(once.file));
    EXPECT_TRUE(MessageDifferencer::Equals(once.file, again.file))
        << cluster_file::to_yaml(once.file);
  }
}

TEST(EffectiveFileTest, WhatIsSetStays) {
  const v1::ClusterFile file = read(kTwoHosts).file;
  EXPECT_EQ(file.model().path(), "/c/models/m");
  EXPECT_EQ(file.model().name(), "story: \"teller\"");
  EXPECT_EQ(file.security().tls().cert(), "/c/files/tls/c.pem");
  EXPECT_EQ(file.security().tokens().worker(), "/secrets/worker.token");
  EXPECT_EQ(file.coordinator().port(), 0);
  EXPECT_EQ(file.coordinator().kv_memory_bytes(), int64_t{2} << 30);
  EXPECT_EQ(file.coordinator().microbatches(), 2);
  EXPECT_EQ(file.launch().restart().max_restarts(), 0);
  EXPECT_EQ(cluster_file::to_duration(file.timeouts().lost_after()), absl::Milliseconds(1500));
  EXPECT_EQ(cluster_file::to_duration(file.timeouts().grace()), absl::ZeroDuration());
}

TEST(EffectiveFileTest, WorkersWrittenOut) {
  const cluster_file::Reading reading = read(kTwoHosts);
  const auto workers = cluster_file::expanded_workers(reading.file);
  ASSERT_EQ(workers.size(), 4);
  EXPECT_EQ(workers[0].name, "grill");
  EXPECT_EQ(workers[0].host, "stove");
  EXPECT_EQ(workers[0].memory_bytes, int64_t{512} << 20);
  EXPECT_EQ(workers[3].name, "gpu-2");
  EXPECT_EQ(workers[3].host, "pass");
  EXPECT_EQ(workers[3].device, "cuda:2");
  EXPECT_EQ(workers[3].data_plane, "auto");
  EXPECT_EQ(reading.file.hosts(1).cuda_module(), "/c/files/lib/brigade_cuda.so");
  ASSERT_EQ(reading.notes.size(), 1);
  EXPECT_EQ(reading.notes[0], "device cuda:N needs the CUDA module");
  EXPECT_EQ(cluster_file::control_address(reading.file), "10.0.0.1:50052");
  EXPECT_EQ(cluster_file::with_port("fd00::2", 7), "[fd00::2]:7");
}

// Notes of a coordinator on a GPU whose plane is not said.
TEST(EffectiveFileTest, WhoCouldNotJoinOverNccl) {
  const auto note = [](const std::string& roles) {
    const cluster_file::Reading reading = read("model: {path: m}\ncoordinator: " + roles);
    return reading.notes.empty() ? "" : reading.notes.back();
  };
  const std::string begin =
      "coordinator.data_plane: auto is nccl on a machine with NCCL and several GPUs, and ";
  const std::string end = ": set host if it is to join";
  EXPECT_EQ(note("{device: 'cuda:0'}\nworkers: [{name: a, device: 'cuda:1'}, {name: w}]\n"),
            begin + "w computes on cpu" + end);
  EXPECT_EQ(note("{device: 'cuda:0'}\nworkers: [{name: w, count: 2, device: 'cuda:{index}'}]\n"),
            begin + "w-0 shares cuda:0 of host local with the coordinator" + end);
  EXPECT_EQ(note("{device: 'cuda:0'}\n"
                 "workers: [{name: w, device: 'cuda:1', data_plane: host}]\n"),
            begin + "workers[0].data_plane is host" + end);
  for (const char* fine :
       {"{device: 'cuda:0', data_plane: host}\nworkers: [{name: w, device: 'cuda:0'}]\n",
        "{device: 'cuda:2', data_plane: nccl}\n"
        "workers: [{name: w, count: 2, device: 'cuda:{index}', data_plane: nccl}]\n"}) {
    EXPECT_EQ(note(fine), "device cuda:N needs the CUDA module") << fine;
  }
}

TEST(EffectiveFileTest, DraftWorkers) {
  const v1::ClusterFile file =
      read("model: {path: m}\ndrafts:\n  - {name: d, model: small, threads: 1}\n").file;
  ASSERT_EQ(file.drafts_size(), 1);
  EXPECT_EQ(file.drafts(0).model(), "/c/files/small");
  EXPECT_EQ(file.drafts(0).host(), "local");
  EXPECT_EQ(file.drafts(0).kv_memory_bytes(), int64_t{256} << 20);
  EXPECT_EQ(file.drafts(0).max_sequences(), 32);
  EXPECT_TRUE(cluster_file::has_joiners(file));
  EXPECT_EQ(cluster_file::joining_hosts(file), std::set<std::string>{"local"});
  EXPECT_FALSE(cluster_file::has_joiners(read("model: {path: m}\n").file));
}

TEST(EffectiveFileTest, AliasesStandForTheirAnchors) {
  const v1::ClusterFile file = read(
                                   "model: {path: m}\nworkers:\n  - {name: &n a, threads: &t 2}\n"
                                   "  - {name: b, threads: *t}\n")
                                   .file;
  EXPECT_EQ(file.workers(1).threads(), 2);
}

TEST(EffectiveFileTest, FilesAreLookedAtOnlyWhereTheyAre) {
  WrittenSurroundings third_machine;
  third_machine.addresses = {"10.0.0.9"};
  const auto reading = cluster_file::parse_cluster_file(kTwoHosts, "/c/f", &third_machine);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->notes.back(), "files on other hosts were not looked at: pass, stove");
  WrittenSurroundings stove;
  stove.addresses = {"fd00::2"};
  stove.files = {{"/c/tls/ca.pem", "x"},
                 {"/secrets/worker.token", "0123456789abcdef"},
                 {"/c/lib/brigade_cuda.so", "ELF"}};
  const auto there = cluster_file::parse_cluster_file(kTwoHosts, "/c/f", &stove);
  EXPECT_EQ(there.status().message(), "/c/f:3:9: model.path: there is no folder /models/m")
      << "the path starts at the file's folder";
}

TEST(EffectiveFileTest, AFileThatIsNotThere) {
  EXPECT_EQ(cluster_file::read_cluster_file("/none/f.yaml").status().message(),
            "/none/f.yaml: cannot read the cluster file");
  EXPECT_EQ(cluster_file::read_cluster_file("/").status().code(), absl::StatusCode::kNotFound);
}

TEST(EffectiveFileTest, LoopbackAndWildcardAddresses) {
  for (const char* address : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) {
    EXPECT_TRUE(cluster_file::is_loopback_address(address)) << address;
  }
  for (const char* address : {"10.0.0.1", "127.evil.example", "0.0.0.0", "::", "fd00::1", "pass"}) {
    EXPECT_FALSE(cluster_file::is_loopback_address(address)) << address;
  }
  EXPECT_TRUE(cluster_file::is_wildcard_address("::"));
  EXPECT_FALSE(cluster_file::is_wildcard_address("::1"));
}

TEST(EffectiveFileTest, DurationsAndSizes) {
  EXPECT_EQ(*cluster_file::parse_duration("1h30m"), absl::Minutes(90));
  EXPECT_EQ(*cluster_file::parse_duration("0.5s"), absl::Milliseconds(500));
  for (const char* text : {"", "s", "5", "0", "inf", "+2s", "2 s", "2d", "--2s", "1e3s"}) {
    EXPECT_FALSE(cluster_file::parse_duration(text).ok()) << text;
  }
  EXPECT_EQ(*cluster_file::parse_size("4k"), 4096);
  EXPECT_EQ(*cluster_file::parse_size("1TB"), int64_t{1} << 40);
  for (const char* text : {"", "G", "B", "-1", "1.5G", "1GG", "9223372036854775808", "8388608T"}) {
    EXPECT_FALSE(cluster_file::parse_size(text).ok()) << text;
  }
  for (const int64_t bytes : {0L, 1L, 1024L, 1536L, 3L << 30, 5L << 40}) {
    EXPECT_EQ(*cluster_file::parse_size(cluster_file::print_size(bytes)), bytes);
  }
}

TEST(EffectiveFileTest, NearMisses) {
  const std::vector<std::string> keys = {"host", "device", "threads", "control_port"};
  EXPECT_EQ(cluster_file::near_miss("hots", keys), "host");
  EXPECT_EQ(cluster_file::near_miss("Control-Port", keys), "control_port");
  EXPECT_EQ(cluster_file::near_miss("thread", keys), "threads");
  EXPECT_EQ(cluster_file::near_miss("zebra", keys), "");
  EXPECT_EQ(cluster_file::near_miss(std::string(1 << 20, 'a'), keys), "");
}

}  // namespace
}  // namespace brigade::tests
