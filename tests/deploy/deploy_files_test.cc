// The ready-made files of deploy/: cluster files are accepted, and containers and units start our
// programs with flags that they take.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "cluster_file/cluster_layout.h"
#include "cluster_file/read_cluster_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/program_flags.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_env.h"
#include "tests/support/written_surroundings.h"
#include "yaml-cpp/yaml.h"

namespace brigade::tests {
namespace {

namespace fs = std::filesystem;
constexpr char kInstalledFile[] = "/etc/brigade/cluster.yaml";

std::string deploy(const std::string& path) { return source_dir() + "/deploy/" + path; }

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

// The command with the installed file where it is here.
std::vector<std::string> with_file(std::vector<std::string> words, const std::string& file) {
  std::replace(words.begin(), words.end(), std::string(kInstalledFile), file);
  return words;
}

std::vector<std::string> worker_names(const v1::ClusterFile& file) {
  std::vector<std::string> names;
  for (const auto& worker : cluster_file::expanded_workers(file)) names.push_back(worker.name);
  return names;
}

TEST(DeployFilesTest, EveryConfigIsAccepted) {
  std::map<std::string, cluster_file::Reading> readings;
  for (const auto& entry : fs::directory_iterator(deploy("configs"))) {
    // A machine that is none of the hosts, but for loopback.
    WrittenSurroundings machine;
    machine.folders = {source_dir() + "/models/demo/target"};
    const auto reading = cluster_file::parse_cluster_file(read_text(entry.path().string()),
                                                          entry.path().string(), &machine);
    ASSERT_TRUE(reading.ok()) << reading.status();
    readings[entry.path().filename().string()] = *reading;
  }
  ASSERT_EQ(readings.size(), 4);
  EXPECT_EQ(worker_names(readings.at("one_host_cpu.yaml").file),
            (std::vector<std::string>{"worker-0", "worker-1"}));
  const auto gpus = cluster_file::expanded_workers(readings.at("one_host_gpus.yaml").file);
  ASSERT_EQ(gpus.size(), 7);
  EXPECT_EQ(gpus[6].device, "cuda:6");
  EXPECT_EQ(readings.at("one_host_gpus.yaml").notes,
            std::vector<std::string>{"device cuda:N needs the CUDA module"});
  EXPECT_EQ(readings.at("one_host_gpus.yaml").file.coordinator().device(), "cuda:7");
  EXPECT_EQ(readings.at("two_hosts.yaml").file.hosts_size(), 2);
  const auto both = cluster_file::expanded_workers(readings.at("two_hosts_gpus.yaml").file);
  ASSERT_EQ(both.size(), 15);
  EXPECT_EQ(both[14].host + " " + both[14].device, "stove cuda:7");
}

TEST(DeployFilesTest, ComposeStartsWhatItsClusterFileSays) {
  const YAML::Node compose = YAML::LoadFile(deploy("docker/compose.yaml"));
  const auto reading = cluster_file::read_cluster_file(deploy("docker/cluster.yaml"));
  ASSERT_TRUE(reading.ok()) << reading.status();
  std::set<std::string> hosts, started;
  for (const v1::Host& host : reading->file.hosts()) hosts.insert(host.address());
  ASSERT_TRUE(compose["services"].IsMap());
  for (const auto& service : compose["services"]) {
    const auto name = service.first.as<std::string>();
    const auto words = service.second["command"].as<std::vector<std::string>>();
    EXPECT_TRUE(takes_flags(with_file(words, deploy("docker/cluster.yaml")))) << name;
    EXPECT_EQ(service.second["hostname"].as<std::string>(), name);
    started.insert(name);
  }
  EXPECT_EQ(started, hosts);
  const YAML::Node common = compose["x-process"];
  EXPECT_TRUE(fs::exists(deploy("docker/" + common["build"]["context"].as<std::string>()) + "/" +
                         common["build"]["dockerfile"].as<std::string>()));
  EXPECT_FALSE(takes_flags({"brigade-coordinator", "--no-such-flag"})) << "the check checks";
}

// What the build loads must be in the image. Compared by package, where this is a Debian.
class ImageTest : public testing::TestWithParam<const char*> {};

TEST_P(ImageTest, HasTheLibrariesThatProgramsLoad) {
  const std::string text = read_text(deploy(std::string("docker/") + GetParam()));
  const size_t run_stage = text.rfind("FROM ");
  ASSERT_NE(run_stage, std::string::npos);
  const std::vector<std::string> words = words_of(text.substr(run_stage));
  const std::set<std::string> installed(words.begin(), words.end());
  if (run_shell("grep -q 'VERSION_ID=\"12\"' /etc/os-release && command -v dpkg").exit_code != 0) {
    GTEST_SKIP() << "skipped: this is no Debian 12";
  }
  // dpkg knows some files by their names under /lib, others under /usr/lib.
  const CommandResult loaded = run_shell(
      "cd " BRIGADE_PROGRAMS
      " && files=$(ldd brigade brigade-coordinator brigade-expert-worker "
      "brigade-draft-worker brigade-model | awk '/=> \\//{print $3}' | sort -u) && real=$(readlink "
      "-f $files) && "
      "{ dpkg -S $files $real $(echo \"$real\" | sed 's#^/usr##') 2>/dev/null || true; } | "
      "cut -d: -f1 | sort -u");
  ASSERT_EQ(loaded.exit_code, 0) << loaded.output;
  const std::set<std::string> of_base = {"libc6", "libgcc-s1", "libstdc++6", "zlib1g"};
  int found = 0;
  for (const std::string& package : words_of(loaded.output)) {
    ++found;
    EXPECT_TRUE(installed.count(package) > 0 || of_base.count(package) > 0) << package;
  }
  EXPECT_GT(found, 10) << loaded.output;
}

// Every program of a cluster is built, and what is built is in the image.
TEST_P(ImageTest, HasEveryProgram) {
  const std::string text = read_text(deploy(std::string("docker/") + GetParam()));
  const size_t run_stage = text.rfind("FROM ");
  ASSERT_NE(run_stage, std::string::npos);
  const std::vector<std::string> built = words_of(text.substr(0, run_stage));
  for (const char* program : {"brigade", "brigade-coordinator", "brigade-expert-worker",
                              "brigade-draft-worker", "brigade-model"}) {
    EXPECT_THAT(built, testing::Contains(program));
    EXPECT_THAT(text.substr(run_stage), testing::HasSubstr(std::string("/bin/") + program + " "));
  }
}

INSTANTIATE_TEST_SUITE_P(Docker, ImageTest, testing::Values("Dockerfile", "Dockerfile.cuda"),
                         [](const auto& info) {
                           return std::string(info.param) == "Dockerfile" ? "Cpu" : "Cuda";
                         });

class UnitsTest : public testing::TestWithParam<const char*> {};

TEST_P(UnitsTest, StartOurProgramsWithFlagsTheyTake) {
  std::istringstream lines(read_text(deploy(std::string("systemd/") + GetParam())));
  int starts = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string key = "ExecStart=";
    if (!line.starts_with(key)) continue;
    std::vector<std::string> words = words_of(line.substr(key.size()));
    std::replace(words.begin(), words.end(), std::string("%i"), std::string("worker-a"));
    EXPECT_TRUE(takes_flags(with_file(words, deploy("docker/cluster.yaml")))) << line;
    ++starts;
  }
  EXPECT_EQ(starts, 1);
}

// With the programs of this build in place of the installed ones. It prints nothing when all is
// well.
TEST_P(UnitsTest, PassSystemdsOwnCheck) {
  if (run_shell("command -v systemd-analyze").exit_code != 0) {
    GTEST_SKIP() << "skipped: there is no systemd-analyze";
  }
  const TempFolder folder;
  std::string name = GetParam();
  std::string text = read_text(deploy("systemd/" + name));
  for (size_t at; (at = text.find("/usr/local/bin")) != std::string::npos;) {
    text.replace(at, std::string("/usr/local/bin").size(), BRIGADE_PROGRAMS);
  }
  if (const size_t at = name.find('@'); at != std::string::npos) name.insert(at + 1, "worker-a");
  std::ofstream(folder.path() + name) << text;
  const CommandResult verified =
      run_shell("timeout 50 systemd-analyze verify " + folder.path() + name);
  EXPECT_EQ(verified.exit_code, 0);
  EXPECT_EQ(verified.output, "");
}

INSTANTIATE_TEST_SUITE_P(All, UnitsTest,
                         testing::Values("brigade-coordinator.service", "brigade-worker@.service"));

}  // namespace
}  // namespace brigade::tests
