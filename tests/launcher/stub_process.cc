// Plays a coordinator or an expert worker for the launcher's tests: same flags, no model. What it
// does is told by files in BRIGADE_STUB_FOLDER, where it also records what happened to it:
//   NAME.does   words, read at each start; NAME.next the same for one start only
//               exit CODE | exit-later CODE MS | signal N | hang (no SIGTERM, no end of stdin) |
//               say TEXT | say-many COUNT | never-ready | dismiss (coordinator: its workers end
//               when it is asked to) | believe (coordinator: a registration counts whoever is dead)
//               | join-when-told (worker: registers once NAME.go is there)
//   events      lines "NAME started PID ARGUMENTS", "NAME term", "NAME eof", "NAME ended"
//   NAME.joined of a worker that runs: its incarnation and pid
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "brigade/v1/generation.grpc.pb.h"

namespace {

namespace fs = std::filesystem;
namespace v1 = brigade::v1;

std::string folder, name;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  fs::rename(path + ".new", path);
}

void record(const std::string& event) {
  const std::string line = name + " " + event + "\n";
  const int file = open((folder + "/events").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (write(file, line.data(), line.size()) < 0) std::abort();
  close(file);
}

std::string instructions() {
  const std::string once = folder + "/" + name + ".next";
  std::string text = read_file(once);
  if (text.empty()) return read_file(folder + "/" + name + ".does");
  fs::remove(once);
  return text;
}

std::map<std::string, std::string> parse(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int i = 1; i < argc; ++i) {
    const bool value = i + 1 < argc && argv[i + 1][0] != '-';
    flags[argv[i]] = value ? argv[i + 1] : "";
    i += value;
  }
  return flags;
}

class StubGeneration : public v1::Generation::Service {
 public:
  StubGeneration(bool ready, bool believe) : ready_(ready), believe_(believe) {}

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    response->set_live(true);
    response->set_ready(ready_);
    if (!ready_) response->set_reason("told to be never ready");
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".joined") continue;
      uint64_t incarnation = 0;
      pid_t pid = 0;
      std::istringstream(read_file(entry.path())) >> incarnation >> pid;
      v1::Worker* worker = response->mutable_cluster()->add_workers();
      worker->set_worker_id(entry.path().stem().string());
      worker->set_incarnation(incarnation);
      worker->set_state(believe_ || (pid > 0 && kill(pid, 0) == 0) ? "active" : "lost");
    }
    return grpc::Status::OK;
  }

 private:
  const bool ready_, believe_;
};

struct Behaviour {
  int exit_code = -1, signal = 0, exit_later_ms = -1;
  bool hang = false, never_ready = false, dismiss = false, believe = false, join_when_told = false;
};

Behaviour behave(const std::string& text) {
  Behaviour behaviour;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "say") std::printf("%s\n", line.substr(4).c_str());
    if (verb == "say-many") {
      int count = 0;
      words >> count;
      for (int i = 0; i < count; ++i) std::printf("line %d of many, to fill a pipe with\n", i);
    }
    if (verb == "exit") words >> behaviour.exit_code;
    if (verb == "exit-later") words >> behaviour.exit_code >> behaviour.exit_later_ms;
    if (verb == "signal") words >> behaviour.signal;
    behaviour.hang |= verb == "hang";
    behaviour.never_ready |= verb == "never-ready";
    behaviour.dismiss |= verb == "dismiss";
    behaviour.believe |= verb == "believe";
    behaviour.join_when_told |= verb == "join-when-told";
  }
  std::fflush(stdout);
  return behaviour;
}

// Until SIGTERM, the end of stdin, a dismissal or the told time.
void serve(const Behaviour& behaviour, bool watch_stdin) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pollfd waiting[2] = {{signalfd(-1, &set, SFD_CLOEXEC), POLLIN, 0},
                       {watch_stdin ? STDIN_FILENO : -1, POLLIN, 0}};
  for (int waited_ms = 0;; waited_ms += 5) {
    const int ready = poll(waiting, 2, 5);
    if (behaviour.exit_later_ms >= 0 && waited_ms >= behaviour.exit_later_ms) {
      std::_Exit(behaviour.exit_code);
    }
    if (fs::exists(folder + "/dismissed") && name != "coordinator") return record("dismissed");
    if (ready <= 0) continue;
    const bool term = (waiting[0].revents & POLLIN) != 0;
    if (term) {
      signalfd_siginfo info;
      if (read(waiting[0].fd, &info, sizeof(info)) < 0) std::abort();
    }
    record(term ? "term" : "eof");
    if (!behaviour.hang) return;
    if (!term) waiting[1].fd = -1;
  }
}

void run_coordinator(std::map<std::string, std::string>& flags, const Behaviour& behaviour) {
  StubGeneration service(!behaviour.never_ready, behaviour.believe);
  grpc::ServerBuilder builder;
  int port = 0;
  const std::string listen = flags.count("--listen") > 0 ? flags["--listen"] : "127.0.0.1:0";
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) std::_Exit(1);
  const std::string control = flags["--control-listen"];
  const std::string control_port =
      control.empty() ? "7" : control.substr(control.rfind(':') + 1);  // nobody dials it
  if (flags.count("--control-port-file") > 0)
    write_file(flags["--control-port-file"], control_port);
  if (flags.count("--port-file") > 0) write_file(flags["--port-file"], std::to_string(port));
  serve(behaviour, flags.count("--exit-on-stdin-eof") > 0);
  if (behaviour.dismiss) write_file(folder + "/dismissed", "x");
  server->Shutdown(std::chrono::system_clock::now());
}

void run_worker(std::map<std::string, std::string>& flags, const Behaviour& behaviour) {
  const std::string joined = folder + "/" + name + ".joined";
  // Another process says when, by a file; there is no call that waits for one. A minute at most.
  for (int looks = 0; behaviour.join_when_told && looks < 12000; ++looks) {
    if (fs::exists(folder + "/" + name + ".go")) break;
    usleep(5000);
  }
  write_file(joined, std::to_string(getpid() + 1'000'000) + " " + std::to_string(getpid()));
  serve(behaviour, flags.count("--exit-on-stdin-eof") > 0);
  fs::remove(joined);
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  auto flags = parse(argc, argv);
  folder = std::getenv("BRIGADE_STUB_FOLDER") == nullptr ? "." : std::getenv("BRIGADE_STUB_FOLDER");
  const bool worker = std::string(argv[0]).find("expert-worker") != std::string::npos;
  name = worker ? flags["--name"] : "coordinator";
  std::string started = "started " + std::to_string(getpid());
  for (int i = 1; i < argc; ++i) started += std::string(" ") + argv[i];
  record(started);
  const Behaviour behaviour = behave(instructions());
  if (behaviour.signal != 0) raise(behaviour.signal);
  if (behaviour.exit_code >= 0 && behaviour.exit_later_ms < 0) return behaviour.exit_code;
  if (worker) {
    run_worker(flags, behaviour);
  } else {
    run_coordinator(flags, behaviour);
  }
  record("ended");
  return 0;
}
