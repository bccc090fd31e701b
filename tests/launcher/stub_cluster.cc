#include "tests/launcher/stub_cluster.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "launcher/supervisor/process_identity.h"

namespace brigade::tests {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLimit = absl::Seconds(30);

}  // namespace

StubCluster::StubCluster(int workers, const std::string& launch_keys) {
  static int count = 0;
  folder_ = absl::StrCat(testing::TempDir(), "stub_cluster_", getpid(), "_", ++count);
  fs::remove_all(folder_);
  fs::create_directories(folder_ + "/bin");
  fs::create_directories(folder_ + "/model");
  for (const char* program : {"brigade-coordinator", "brigade-expert-worker"}) {
    fs::create_symlink(program_folder() + "/stub_process", folder_ + "/bin/" + program);
  }
  file_ = folder_ + "/cluster.yaml";
  errors_ = folder_ + "/up.stderr";
  write_file(absl::StrCat(
      "name: stub\nmodel:\n  path: model\ncoordinator:\n  port: 0\n  control_port: 0\nworkers:\n"
      "- name: w\n  count: ",
      workers, "\nlaunch:\n  program_folder: bin\n  state_folder: state\n", launch_keys));
  setenv("BRIGADE_STUB_FOLDER", folder_.c_str(), 1);
}

StubCluster::~StubCluster() {
  for (const pid_t pid : started()) {
    const auto process = launcher::identify(pid);
    // Only what is a stub of this folder.
    if (process &&
        read_file(absl::StrCat("/proc/", pid, "/cmdline")).find(folder_) != std::string::npos) {
      launcher::signal_process(*process, SIGKILL);
    }
  }
  if (!testing::Test::HasFailure()) fs::remove_all(folder_);
}

void StubCluster::write_file(const std::string& yaml) const { std::ofstream(file_) << yaml; }

void StubCluster::tell(const std::string& name, const std::string& text) const {
  if (text.empty()) {
    fs::remove(absl::StrCat(folder_, "/", name, ".does"));
  } else {
    std::ofstream(absl::StrCat(folder_, "/", name, ".does")) << text << "\n";
  }
}

void StubCluster::tell_once(const std::string& name, const std::string& text) const {
  std::ofstream(absl::StrCat(folder_, "/", name, ".next")) << text << "\n";
}

std::unique_ptr<ChildProcess> StubCluster::brigade(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), program_folder() + "/brigade");
  return std::make_unique<ChildProcess>(arguments, errors_);
}

std::unique_ptr<ChildProcess> StubCluster::up(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"up", file_};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return brigade(arguments);
}

int StubCluster::run(const std::vector<std::string>& arguments, std::string* output) const {
  const auto process = brigade(arguments);
  const std::string text = process->read_all();
  if (output != nullptr) *output = text;
  return process->wait().value_or(-1);
}

std::string StubCluster::stderr_text() const { return read_file(errors_); }

std::string StubCluster::line_with(ChildProcess& up, const std::string& text) const {
  while (const auto line = up.read_line(kLimit)) {
    if (line->find(text) != std::string::npos) return *line;
  }
  return "";
}

nlohmann::json StubCluster::ps() const {
  std::string text;
  if (run({"ps", file_, "--json"}, &text) != 0) return {};
  return nlohmann::json::parse(text, nullptr, false);
}

nlohmann::json StubCluster::process(const std::string& name) const {
  const nlohmann::json all = ps();
  if (!all.is_object()) return {};
  for (const nlohmann::json& process : all["processes"]) {
    if (process["name"] == name) return process;
  }
  return {};
}

bool StubCluster::wait_for(const std::string& name,
                           const std::function<bool(const nlohmann::json&)>& wanted) const {
  const absl::Time deadline = absl::Now() + kLimit;
  while (absl::Now() < deadline) {
    const nlohmann::json found = process(name);
    if (found.is_object() && wanted(found)) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

std::vector<std::string> StubCluster::events() const {
  return absl::StrSplit(read_file(folder_ + "/events"), '\n', absl::SkipEmpty());
}

int StubCluster::event(const std::string& begin) const {
  const std::vector<std::string> all = events();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].rfind(begin, 0) == 0) return static_cast<int>(i);
  }
  return -1;
}

bool StubCluster::wait_for_event(const std::string& begin) const {
  const absl::Time deadline = absl::Now() + kLimit;
  while (event(begin) < 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  return event(begin) >= 0;
}

std::vector<pid_t> StubCluster::started() const {
  std::vector<pid_t> pids;
  for (const std::string& event : events()) {
    std::istringstream words(event);
    std::string name, verb;
    pid_t pid = 0;
    if (words >> name >> verb >> pid && verb == "started") pids.push_back(pid);
  }
  return pids;
}

bool StubCluster::all_gone() const {
  const absl::Time deadline = absl::Now() + kLimit;
  while (true) {
    bool gone = true;
    for (const pid_t pid : started()) gone &= !launcher::identify(pid).has_value();
    if (gone || absl::Now() > deadline) return gone;
    absl::SleepFor(absl::Milliseconds(5));
  }
}

}  // namespace brigade::tests
