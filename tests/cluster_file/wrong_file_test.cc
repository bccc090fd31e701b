// Wrong cluster files and the exact lines that are said about them.
#include <string>
#include <vector>

#include "cluster_file/read_cluster_file.h"
#include "cluster_file/yaml_tree.h"
#include "gtest/gtest.h"
#include "tests/support/written_surroundings.h"

namespace brigade::tests {
namespace {

// A machine with the model and some secrets.
WrittenSurroundings machine() {
  WrittenSurroundings machine;
  machine.folders = {"/c/model"};
  machine.files = {{"/c/a", "token-number-one\n"},
                   {"/c/b", "token-number-two\n"},
                   {"/c/same", "token-number-one"},
                   {"/c/short", "abc\n"},
                   {"/c/empty", ""},
                   {"/c/pem", "not really a certificate"}};
  return machine;
}

std::string complaint(const std::string& text) {
  const WrittenSurroundings here = machine();
  return std::string(cluster_file::parse_cluster_file(text, "/c/f", &here).status().message());
}

struct Case {
  const char* text;
  const char* line;  // without "/c/f:"
};

void expect_lines(const std::vector<Case>& cases) {
  for (const Case& test : cases) EXPECT_EQ(complaint(test.text), std::string("/c/f:") + test.line);
}

TEST(WrongFileTest, Structure) {
  expect_lines({
      {"", "1:1: the file is empty"},
      {"# nothing\n", "1:1: the file is empty"},
      {"- a\n", "1:1: expected a map of keys, such as model: and workers:"},
      {"model", "1:1: expected a map of keys, such as model: and workers:"},
      {"model: {path: model}\n---\nname: b\n", "2:1: a second document; the file must hold one"},
      {"model: {path: model\n", "2:1: no YAML: end of map flow not found"},
      {"model:\n\tpath: x\n", "2:6: no YAML: illegal map value"},
      {"model: {path: model}\nmodel: {path: b}\n",
       "2:1: model: appears twice; the first is in line 1"},
      {"model: {path: a, path: b}\n", "1:18: model.path: appears twice; the first is in line 1"},
      {"model: {path: model}\nworker: []\n", "2:1: worker: unknown key; did you mean workers?"},
      {"model: {path: model}\n\"a\\nb\\e\": 1\n",
       "2:1: a?b?: unknown key; known: name, model, numerics, hosts, coordinator, workers, "
       "placement, "
       "timeouts, security, launch, drafts"},
      {"model: {path: model}\n? [a]\n: b\n", "2:3: a key must be a word"},
      {"model: {path: model}\n<<: {name: b}\n",
       "2:1: <<: merging (<<) is not done here; write the keys out"},
      {"model: {path: model}\nhosts: {name: a}\n",
       "2:8: hosts: expected a list, found a map of keys"},
      {"model: [path]\n", "1:8: model: expected a map of keys, found a list"},
      {"model: {path: [a]}\n", "1:15: model.path: expected a single value, found a list"},
      {"model: {path: model}\nworkers: [w]\n",
       "2:11: workers[0]: expected a map of keys, found a single value"},
      {"model: {path: }\n", "1:9: model.path: has no value"},
      {"model:\n", "1:1: model: has no value"},
      {"name: b\n", "1:1: model: is missing"},
      {"model: {name: b}\n", "1:8: model.path: is missing"},
      {"model: {path: model}\nworkers:\n  - host: a\n", "3:5: workers[0].name: is missing"},
      {"model: !!map {path: model}\n", "1:8: the tag tag:yaml.org,2002:map has no meaning here"},
      {"# \xe2\x98\xba \xc3\xa9\nname: \xff\n", "2:7: not UTF-8"},
      {"\xe0\x80\xaf", "1:1: not UTF-8"},
      {"\xed\xa0\x80", "1:1: not UTF-8"},
      {"\xf4\x90\x80\x80", "1:1: not UTF-8"},
      {"\xe2\x98", "1:1: not UTF-8"},
      {"model: {path: \x01}\n", "1:15: a control character; this is no text file"},
  });
}

TEST(WrongFileTest, Values) {
  const auto coordinator = [](const std::string& text) {
    return complaint("model: {path: model}\ncoordinator: {" + text + "}\n");
  };
  const auto timeouts = [](const std::string& text) {
    return complaint("model: {path: model}\ntimeouts: {" + text + "}\n");
  };
  EXPECT_EQ(coordinator("threads: four"),
            "/c/f:2:24: coordinator.threads: expected a whole number, found \"four\"");
  EXPECT_EQ(coordinator("threads: '4'"),
            "/c/f:2:24: coordinator.threads: expected a whole number, found text in quotes");
  EXPECT_EQ(coordinator("threads: 1.5"),
            "/c/f:2:24: coordinator.threads: expected a whole number, found \"1.5\"");
  EXPECT_EQ(coordinator("threads: 010"),
            "/c/f:2:24: coordinator.threads: expected a whole number, found \"010\"");
  EXPECT_EQ(coordinator("threads: -1"),
            "/c/f:2:24: coordinator.threads: is -1, must be from 0 to 1024");
  EXPECT_EQ(coordinator("port: 65536"),
            "/c/f:2:21: coordinator.port: is 65536, must be from 0 to 65535");
  EXPECT_EQ(coordinator("port: 99999999999999999999"),
            "/c/f:2:21: coordinator.port: is out of any range");
  EXPECT_EQ(coordinator("microbatches: 9"),
            "/c/f:2:29: coordinator.microbatches: is 9, must be from 1 to 8");
  EXPECT_EQ(coordinator("microbatches: 0"),
            "/c/f:2:29: coordinator.microbatches: is 0, must be from 1 to 8");
  EXPECT_EQ(coordinator("kv_memory_bytes: 4X"),
            "/c/f:2:32: coordinator.kv_memory_bytes: \"4X\" is no size; write bytes, or 512M, 4G");
  EXPECT_EQ(coordinator("kv_memory_bytes: 1K"),
            "/c/f:2:32: coordinator.kv_memory_bytes: is 1K, must be from 64K to 1024T");
  EXPECT_EQ(coordinator("kv_memory_bytes: 99999999999T"),
            "/c/f:2:32: coordinator.kv_memory_bytes: \"99999999999T\" is larger than any memory");
  EXPECT_EQ(coordinator("device: gpu"),
            "/c/f:2:23: coordinator.device: there is no device \"gpu\"; did you mean cpu?");
  EXPECT_EQ(coordinator("device: 'cuda:x'"),
            "/c/f:2:23: coordinator.device: there is no device \"cuda:x\"; did you mean cuda:0?");
  EXPECT_EQ(coordinator("listen_address: '10.0.0.1:50051'"),
            "/c/f:2:31: coordinator.listen_address: \"10.0.0.1:50051\": the address goes without a "
            "port");
  EXPECT_EQ(
      timeouts("heartbeat: 5"),
      "/c/f:2:23: timeouts.heartbeat: \"5\" is no duration; write a number and a unit, such as "
      "500ms, 2s, 10m");
  EXPECT_EQ(
      timeouts("heartbeat: 5 parsecs"),
      "/c/f:2:23: timeouts.heartbeat: \"5 parsecs\" is no duration; write a number and a unit, "
      "such as 500ms, 2s, 10m");
  EXPECT_EQ(timeouts("heartbeat: 0s"),
            "/c/f:2:23: timeouts.heartbeat: is 0s, must be from 1ms to 1h");
  EXPECT_EQ(timeouts("heartbeat: -2s"),
            "/c/f:2:23: timeouts.heartbeat: is -2s, must be from 1ms to 1h");
  EXPECT_EQ(timeouts("lost_after: 9999999h"),
            "/c/f:2:24: timeouts.lost_after: is 9999999h, must be from 1ms to 1h");
  expect_lines({
      {"model: {path: ''}\n", "1:15: model.path: is empty; leave the key out instead"},
      {"model: {path: ~/m}\n",
       "1:15: model.path: \"~/m\": ~ is not expanded here; write the folder"},
      {"model: {path: \"a\\nb\"}\n",
       "1:15: model.path: has a line break or another control character"},
      {"model: {path: model}\nname: ../b\n",
       "2:7: name: \"../b\" is no name; use letters, digits, '.', '-' and '_', the first a letter "
       "or "
       "digit, at most 64"},
      {"model: {path: model}\nnumerics: {wire_dtype: fp16}\n",
       "2:24: numerics.wire_dtype: there is no dtype \"fp16\"; known: f32, bf16"},
      {"model: {path: model}\nnumerics: {kv_dtype: double}\n",
       "2:22: numerics.kv_dtype: there is no dtype \"double\"; known: f32, bf16, f16"},
      {"model: {path: model}\nnumerics: {gpu_math: quick}\n",
       "2:22: numerics.gpu_math: there is no maths mode \"quick\"; known: identical, fast"},
      {"model: {path: model}\ncoordinator: {gpu_graphs: true}\n",
       "2:27: coordinator.gpu_graphs: there is no setting \"true\"; known: on, off"},
      {"model: {path: model}\ncoordinator: {data_plane: ncll}\n",
       "2:27: coordinator.data_plane: there is no data plane \"ncll\"; did you mean nccl?"},
      {"model: {path: model}\nworkers: [{name: w, data_plane: trusted_network}]\n",
       "2:33: workers[0].data_plane: there is no data plane \"trusted_network\"; known: auto, "
       "nccl, "
       "host"},
      {"model: {path: model}\nsecurity: {data_plane: trusted-network}\n",
       "2:24: security.data_plane: cannot be \"trusted-network\"; did you mean trusted_network?"},
      {"model: {path: model}\nsecurity: {data_plane: unspecified}\n",
       "2:24: security.data_plane: cannot be \"unspecified\"; known: loopback, trusted_network"},
      {"model: {path: model}\nsecurity: {insecure: yes}\n",
       "2:22: security.insecure: expected true or false, found \"yes\""},
      {"model: {path: model}\nlaunch: {restart: {policy: allways}}\n",
       "2:28: launch.restart.policy: cannot be \"allways\"; did you mean always?"},
  });
}

TEST(WrongFileTest, NamesAndNumbers) {
  expect_lines({
      {"model: {path: model}\nworkers:\n  - {name: w, host: nodea}\nhosts:\n"
       "  - {name: node-a, address: 127.0.0.1}\n",
       "3:15: workers[0].host: there is no host \"nodea\"; did you mean node-a?"},
      {"model: {path: model}\ncoordinator:\n  host: pass\n",
       "3:3: coordinator.host: there is no host \"pass\"; known: local"},
      {"model: {path: model}\nhosts:\n  - {name: a, address: 127.0.0.1}\n"
       "  - {name: a, address: 127.0.0.2}\n",
       "4:6: hosts[1].name: there are two hosts \"a\""},
      {"model: {path: model}\nhosts:\n  - {name: a, address: 0.0.0.0}\nsecurity: {insecure: "
       "true}\n",
       "3:15: hosts[0].address: 0.0.0.0 cannot be dialled; write the address that the others reach "
       "the host by"},
      {"model: {path: model}\nworkers:\n  - {name: w, count: 2}\n  - {name: w-1}\n",
       "4:6: workers[1].name: there are two workers \"w-1\"; the first is workers[0]"},
      {"model: {path: model}\nworkers:\n  - {name: w, count: 2}\ndrafts: [{name: w-1, model: "
       "model}]\n",
       "4:11: drafts[0].name: there are two workers \"w-1\"; the first is workers[0]"},
      {"model: {path: model}\ndrafts: [{name: d, model: model}, {name: d, model: model}]\n",
       "2:36: drafts[1].name: there are two workers \"d\"; the first is drafts[0]"},
      {"model: {path: model}\ndrafts: [{name: d, model: model, host: x}]\n",
       "2:34: drafts[0].host: there is no host \"x\"; known: local"},
      {"model: {path: model}\nworkers: [{name: w, count: 0}]\n",
       "2:28: workers[0].count: is 0, must be from 1 to 256"},
      {"model: {path: model}\nworkers:\n  - &w {name: w, count: 256}\n  - *w\n  - *w\n  - *w\n  - "
       "*w\n",
       "7:5: workers[4]: makes more than 1024 workers"},
      {"model: {path: model}\nworkers: [{name: w, count: 80, device: 'cuda:{index}'}]\n",
       "2:21: workers[0].count: {index} goes past the last device, cuda:63"},
      {"model: {path: model}\ncoordinator: {device: 'cuda:{index}'}\n",
       "2:15: coordinator.device: {index} is for workers with a count"},
      {"model: {path: model}\ndrafts: [{name: d, model: model, device: 'cuda:{index}'}]\n",
       "2:34: drafts[0].device: {index} is for workers with a count"},
      {"model: {path: model}\nnumerics: {gpu_math: fast}\n",
       "2:12: numerics.gpu_math: is fast, but the coordinator computes on cpu; then the coordinator "
       "and all workers need devices cuda:N"},
      {"model: {path: model}\nnumerics: {gpu_math: fast}\ncoordinator: {device: 'cuda:0'}\n"
       "workers: [{name: w, device: 'cuda:1'}, {name: v}]\n",
       "2:12: numerics.gpu_math: is fast, but v computes on cpu; then the coordinator and all "
       "workers need devices cuda:N"},
      {"model: {path: model}\ncoordinator: {port: 7000, control_port: 7000}\n",
       "2:27: coordinator.control_port: is 7000, and so is port"},
      {"model: {path: model}\ncoordinator:\n  port: 50052\n",
       "3:3: coordinator.port: is 50052, and so is control_port"},
      {"model: {path: model}\ncoordinator: {control_port: 0}\nworkers: [{name: w, host: b}]\n"
       "hosts: [{name: a, address: 127.0.0.1}, {name: b, address: 127.0.0.2}]\n",
       "2:15: coordinator.control_port: is 0 (any free one), but workers[0] is on another host and "
       "must know the port to dial"},
      {"model: {path: model}\ntimeouts: {heartbeat: 1001ms}\n",
       "2:12: timeouts.heartbeat: must be at most half of lost_after, or a late one is a loss"},
      {"model: {path: model}\nlaunch: {restart: {first_delay: 40s}}\n",
       "2:20: launch.restart.first_delay: is longer than longest_delay"},
  });
}

TEST(WrongFileTest, Trust) {
  expect_lines({
      {"model: {path: model}\nhosts:\n  - {name: a, address: 10.0.0.1}\n",
       "3:15: hosts[0].address: 10.0.0.1 is not a loopback address; it needs security.tls.cert and "
       "key, security.tokens.client (or security.tls.client_ca), or the words security.insecure: "
       "true"},
      {"model: {path: model}\ncoordinator: {listen_address: 0.0.0.0}\nworkers: [{name: w}]\n"
       "security: {tls: {cert: pem, key: pem, ca: pem, client_ca: pem, peer_cert: pem, peer_key: "
       "pem}}\n",
       "2:15: coordinator.listen_address: 0.0.0.0 is not a loopback address; it needs "
       "security.tokens.worker, or the words security.insecure: true"},
      {"model: {path: model}\ncoordinator: {listen_address: '::'}\n"
       "security: {insecure: true, tokens: {client: a}}\n",
       "3:28: security.tokens: would travel in clear over ::; add security.tls"},
      {"model: {path: model}\nhosts:\n  - {name: a, address: 10.0.0.1}\nsecurity: {insecure: "
       "true}\n"
       "workers: [{name: w}]\n",
       "3:15: hosts[0].address: 10.0.0.1 is not a loopback address, and activations travel "
       "unencrypted; if nobody else is on that network set security.data_plane: trusted_network"},
      {"model: {path: model}\nhosts:\n  - {name: a, address: 127.0.0.1}\n"
       "  - {name: b, address: 10.0.0.2}\nworkers: [{name: w, host: b}]\n"
       "coordinator: {listen_address: 127.0.0.1}\nsecurity: {data_plane: trusted_network}\n",
       "6:15: coordinator.listen_address: 127.0.0.1 is not reached from host b"},
      {"model: {path: model}\nsecurity: {tls: {cert: pem}}\n",
       "2:18: security.tls.cert: needs security.tls.key beside it"},
      {"model: {path: model}\nsecurity: {tls: {peer_key: pem}}\n",
       "2:18: security.tls.peer_key: needs security.tls.peer_cert beside it"},
      {"model: {path: model}\nsecurity: {tls: {client_ca: pem}}\n",
       "2:18: security.tls.client_ca: needs security.tls.cert beside it"},
      {"model: {path: model}\nsecurity: {tls: {cert: pem, key: pem}}\nworkers: [{name: w}]\n",
       "2:18: security.tls.cert: needs security.tls.ca beside it, by which workers know the "
       "coordinator"},
      {"model: {path: model}\nsecurity: {tls: {cert: pem, key: pem, ca: pem, client_ca: pem}}\n"
       "workers: [{name: w}]\n",
       "2:48: security.tls.client_ca: asks workers for a certificate; set security.tls.peer_cert "
       "and "
       "peer_key"},
      {"model: {path: model}\nsecurity: {tokens: {client: a, worker: ./x/../a}}\n",
       "2:32: security.tokens.worker: is the same file as security.tokens.client; every role needs "
       "a "
       "token of its own"},
      {"model: {path: model}\nlaunch: {remote_shell: ssh}\n"
       "hosts: [{name: a, address: 127.0.0.1}, {name: b, address: 127.0.0.2}]\n"
       "workers: [{name: w, host: b}]\n",
       "2:10: launch.remote_shell: has no {host}, but the roles are on 2 hosts"},
      {"model: {path: model}\nlaunch: {remote_shell: 'ssh {user}@{host}'}\n",
       "2:10: launch.remote_shell: has another word in braces than {host}, {address} and "
       "{command}"},
  });
}

// NCCL carries rows between two GPUs, each of one process; one plane holds for all workers.
TEST(WrongFileTest, DataPlanes) {
  expect_lines({
      {"model: {path: model}\ncoordinator: {data_plane: nccl}\n",
       "2:15: coordinator.data_plane: is nccl, but the coordinator computes on cpu"},
      {"model: {path: model}\ncoordinator: {device: 'cuda:0', data_plane: nccl}\n"
       "workers: [{name: w, device: 'cuda:1'}, {name: v}]\n",
       "2:33: coordinator.data_plane: is nccl, but v computes on cpu"},
      {"model: {path: model}\ncoordinator: {device: 'cuda:1', data_plane: nccl}\n"
       "workers: [{name: w, count: 2, device: 'cuda:{index}'}]\n",
       "2:33: coordinator.data_plane: is nccl, but w-1 shares cuda:1 of host local with the "
       "coordinator"},
      {"model: {path: model}\ncoordinator: {device: 'cuda:0', data_plane: nccl}\n"
       "workers: [{name: w, device: 'cuda:1', data_plane: host}]\n",
       "2:33: coordinator.data_plane: is nccl, but workers[0].data_plane is host"},
      {"model: {path: model}\ncoordinator: {device: 'cuda:0', data_plane: host}\n"
       "workers: [{name: w, device: 'cuda:1', data_plane: nccl}]\n",
       "3:39: workers[0].data_plane: is nccl, but coordinator.data_plane is host, and that holds "
       "for "
       "all workers"},
      {"model: {path: model}\nworkers: [{name: w, device: 'cuda:1', data_plane: nccl}]\n",
       "2:39: workers[0].data_plane: is nccl, but the coordinator computes on cpu"},
      {"model: {path: model}\ncoordinator: {device: 'cuda:0'}\n"
       "workers: [{name: w, data_plane: nccl}]\n",
       "3:21: workers[0].data_plane: is nccl, but w computes on cpu"},
  });
}

TEST(WrongFileTest, Files) {
  expect_lines({
      {"model: {path: model}\nhosts: [{name: a, address: 127.0.0.1, cuda_module: none.so}]\n",
       "2:39: hosts[0].cuda_module: cannot read /c/none.so"},
      {"model: {path: nothing}\n", "1:9: model.path: there is no folder /c/nothing"},
      {"model: {path: /c/pem}\n", "1:9: model.path: there is no folder /c/pem"},
      {"model: {path: model}\nsecurity: {tokens: {client: none}}\n",
       "2:21: security.tokens.client: cannot read /c/none"},
      {"model: {path: model}\nsecurity: {tokens: {client: empty}}\n",
       "2:21: security.tokens.client: /c/empty is empty"},
      {"model: {path: model}\nsecurity: {tokens: {client: short}}\n",
       "2:21: security.tokens.client: the token in /c/short has 3 bytes, needs at least 16"},
      {"model: {path: model}\nsecurity: {tokens: {client: a, operator: b, draft: same}}\n",
       "2:45: security.tokens.draft: /c/same has the same token as security.tokens.client; every "
       "role "
       "needs one of its own"},
      {"model: {path: model}\nsecurity: {tls: {cert: pem, key: none}}\n",
       "2:29: security.tls.key: cannot read /c/none"},
  });
}

TEST(WrongFileTest, SeveralAtOnceInOrder) {
  EXPECT_EQ(
      complaint("modle: {path: model}\nworkers:\n  - {name: w, thread: 1}\nname: 'a b'\n"),
      "/c/f:1:1: modle: unknown key; did you mean model?\n"
      "/c/f:1:1: model: is missing\n"
      "/c/f:3:15: workers[0].thread: unknown key; did you mean threads?\n"
      "/c/f:4:7: name: \"a b\" is no name; use letters, digits, '.', '-' and '_', the first a "
      "letter or digit, at most 64");
}

TEST(WrongFileTest, TwentyAndACount) {
  std::string text = "model: {path: model}\n";
  for (int i = 0; i < 25; ++i) text += "key" + std::to_string(i) + ": 1\n";
  const std::string lines = complaint(text);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 20);
  EXPECT_TRUE(lines.ends_with("\n/c/f: and 5 more")) << lines;
}

TEST(WrongFileTest, AliasesAreBounded) {
  std::string laughs = "a: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    laughs += "b" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last;
    for (int j = 1; j < 9; ++j) laughs += ", " + last;
    laughs += "]\n";
  }
  EXPECT_EQ(complaint(laughs),
            "/c/f:5:10: more than 10000 values (aliases count as what they stand for)");
  EXPECT_EQ(complaint("a: &a [*a]\n"), "/c/f:1:8: an alias inside what it stands for");
  EXPECT_EQ(complaint("a: *b\n"), "/c/f:1:4: no YAML: the referenced anchor is not defined");
  const auto nested = [](int depth) {
    return complaint("a: " + std::string(depth, '[') + std::string(depth, ']'));
  };
  EXPECT_EQ(nested(15).find("deeper"), std::string::npos);
  EXPECT_EQ(nested(16), "/c/f:1:19: nested deeper than 16");
  EXPECT_NE(nested(20000).find("nested deeper than 16"), std::string::npos);
  EXPECT_NE(complaint("a: " + std::string(2000, '[')).find("deeper"), std::string::npos);
  EXPECT_EQ(complaint(std::string(cluster_file::kMaxFileBytes + 1, ' ')),
            "/c/f:1:1: larger than 1 MiB");
}

}  // namespace
}  // namespace brigade::tests
