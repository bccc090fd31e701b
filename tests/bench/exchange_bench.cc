// Dispatch and combine of one layer, without the experts' work, against a bare UCX ping-pong of the
// same messages over the same lanes: exchange_bench [--rounds N] [--trips N] [--hidden N] [--pin
// 0|1]. This process asks, echo workers and a bare peer answer. Rounds interleave them; medians.
// Pinned (the default), this process has core 0 and those that answer have core 1.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "expert_parallel/exchange/cluster_exchange.h"
#include "expert_parallel/transport/ucx_transport.h"
#include "kernels/core/check.h"
#include "tests/bench/bare_ucx.h"
#include "tests/bench/echo_worker.h"

extern char** environ;

namespace brigade::bench {
namespace {

using namespace expert_parallel;

constexpr int kTopK = 2, kExperts = 8, kMaxRows = 256;

constexpr char kPinVariable[] = "BRIGADE_BENCH_PIN";

struct Settings {
  int hidden = 1024, rounds = 15, trips = 60, pin = 1, rows = 0;
};

const Session kSession = {.coordinator_id = 5, .secret = {1, 2, 3}};
const Party kCoordinatorParty = {kCoordinator, 11}, kWorkerParty = {0, 22};

FrameLimits limits_of(int hidden) {
  return {.hidden = hidden, .experts = kExperts, .moe_layers = 1, .max_slots = kMaxRows * kTopK};
}

std::vector<int32_t> chosen_experts() {
  std::vector<int32_t> experts;
  for (int i = 0; i < kMaxRows * kTopK; ++i) experts.push_back(i % kExperts);
  return experts;
}

Placement all_at_the_worker() {
  return *Placement::create(1, {std::vector<std::vector<Rank>>(kExperts, {0})}, 1);
}

// The messages of an exchange: the packer's own frames, and the echo worker's answers to them.
std::vector<Trip> trips_of(int rows, int hidden) {
  DispatchPlan plan(kMaxRows, kTopK, kExperts, 1);
  FramePacker packer(kMaxRows, kTopK, 1, hidden);
  const std::vector<int32_t> experts = chosen_experts();
  plan.build({experts.data(), size_t(rows) * kTopK}, rows, [](int32_t, int) { return Rank{0}; });
  packer.start(plan);
  const std::vector<float> x(size_t(rows) * hidden);
  AlignedBlock frame(1, kMaxFrameBytes);
  std::vector<Trip> trips;
  FramePacker::Share& share = packer.shares()[0];
  while (!share.done()) {
    std::span<const int32_t> terms;
    Trip trip;
    trip.question = packer.write(share, {}, x.data(), frame.at(0), &terms);
    const size_t most = rows_per_answer(hidden);
    for (size_t left = terms.size(); left > 0; left -= std::min(left, most)) {
      const auto count = static_cast<uint32_t>(std::min(left, most));
      trip.answers.push_back(frame_bytes({.kind = FrameKind::kAnswer,
                                          .hidden = static_cast<uint32_t>(hidden),
                                          .row_count = count,
                                          .entry_count = count}));
    }
    trips.push_back(trip);
  }
  return trips;
}

std::unique_ptr<Transport> make_transport(bool shared_memory) {
  auto transport = make_ucx_transport(
      {.shared_memory = shared_memory, .net_devices = shared_memory ? "" : "lo"});
  CHECK(transport.ok());
  return *std::move(transport);
}

void write_line(int fd, const std::string& bytes) {
  const std::string line = absl::BytesToHexString(bytes) + "\n";
  CHECK(write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
}

std::string read_line(int fd) {
  std::string line;
  for (char c; read(fd, &c, 1) == 1 && c != '\n';) line.push_back(c);
  return absl::HexStringToBytes(line);
}

// A child of this program: `--child KIND LANES ROWS HIDDEN`. Addresses travel over its stdin and
// stdout.
class Child {
 public:
  explicit Child(std::vector<std::string> arguments) {
    int to[2], from[2];
    CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    CHECK(posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, pointers.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(to_);
    close(from_);
  }
  std::string ask_address() { return read_line(from_); }
  void give_address(const std::string& address) { write_line(to_, address); }

 private:
  pid_t pid_ = 0;
  int to_ = -1, from_ = -1;
};

void pin_to(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  CHECK(sched_setaffinity(0, sizeof(cores), &cores) == 0);
}

int child_main(const std::string& kind, bool shared_memory, int rows, int hidden) {
  if (kind == "bare") {
    BareUcx bare(shared_memory);
    write_line(STDOUT_FILENO, bare.address());
    bare.connect(read_line(STDIN_FILENO));
    bare.answer(trips_of(rows, hidden));
  }
  EchoWorker worker(make_transport(shared_memory), limits_of(hidden), kSession, kCoordinatorParty,
                    kWorkerParty);
  write_line(STDOUT_FILENO, worker.address());
  worker.connect(read_line(STDIN_FILENO));
  worker.start();
  read_line(STDIN_FILENO);  // until the parent ends
  return 0;
}

// The coordinator's side of the product: links, one exchange, the step thread's way of waiting.
class Coordinator {
 public:
  Coordinator(bool shared_memory, int hidden, bool drives)
      : hidden_(hidden),
        drives_(drives),
        child_({"exchange_bench", "--child", "echo", shared_memory ? "shm" : "tcp", "0",
                std::to_string(hidden)}),
        device_(*kernels::Device::create(kernels::DeviceKind::kCpu, 1)),
        stream_(*device_->create_stream()),
        links_(make_transport(shared_memory),
               {.session = kSession,
                .incarnation = kCoordinatorParty.incarnation,
                .limits = limits_of(hidden),
                .num_ranks = 1},
               nullptr) {
    const ExpertGeometry geometry = {
        .moe_layers = 1, .experts = kExperts, .top_k = kTopK, .hidden = hidden, .ffn = 16};
    exchange_ = *ClusterExchange::create(*device_, links_, nullptr,
                                         {.geometry = geometry, .max_rows = kMaxRows});
    links_.start();
    const absl::Time soon = absl::Now() + absl::Seconds(20);
    child_.give_address(*links_.open(0, kWorkerParty.incarnation, soon));
    CHECK(links_.connect(0, child_.ask_address(), soon).ok());
    auto view = std::make_shared<ClusterView>();
    view->placement = std::make_shared<const Placement>(all_at_the_worker());
    view->incarnation = {kWorkerParty.incarnation};
    CHECK(exchange_->set_view(view).ok());
    x_.resize(size_t(kMaxRows) * hidden);
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>(i % 977);
  }

  void exchange(int rows) {
    CHECK(exchange_->begin(*stream_, {0, x_.data(), experts_.data(), rows}, &waker_).ok());
    while (true) {
      const absl::StatusOr<bool> done = exchange_->poll();
      CHECK(done.ok());
      if (*done) break;
      const absl::Time deadline = absl::Now() + absl::Seconds(20);
      CHECK(drives_ ? links_.sleep_until(waker_, deadline) : waker_.wait_until(deadline));
    }
  }
  void check_answers(int rows) const {
    const auto* answers = static_cast<const float*>(exchange_->answers());
    for (int slot = 0; slot < rows * kTopK; ++slot) {
      CHECK(std::memcmp(answers + size_t(slot) * hidden_, &x_[size_t(slot / kTopK) * hidden_],
                        hidden_ * sizeof(float)) == 0);
    }
  }

 private:
  const int hidden_;
  const bool drives_;
  Child child_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Stream> stream_;
  kernels::Waker waker_;
  WorkerLinks links_;
  std::unique_ptr<ClusterExchange> exchange_;
  const std::vector<int32_t> experts_ = chosen_experts();
  std::vector<float> x_;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

template <typename Work>
double microseconds(Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

void measure(bool shared_memory, int rows, const Settings& settings) {
  Coordinator driving(shared_memory, settings.hidden, true);
  Coordinator handing_over(shared_memory, settings.hidden, false);
  Child peer({"exchange_bench", "--child", "bare", shared_memory ? "shm" : "tcp",
              std::to_string(rows), std::to_string(settings.hidden)});
  BareUcx bare(shared_memory);
  peer.give_address(bare.address());
  bare.connect(peer.ask_address());
  const std::vector<Trip> trips = trips_of(rows, settings.hidden);
  size_t there = 0, back = 0, messages = 0;
  for (const Trip& trip : trips) {
    there += trip.question;
    for (const size_t bytes : trip.answers) back += bytes;
    messages += 1 + trip.answers.size();
  }
  std::vector<double> ours, with_switches, bares;
  for (int round = -2; round < settings.rounds; ++round) {
    for (int i = 0; i < settings.trips; ++i) {
      const double time = microseconds([&] { driving.exchange(rows); });
      if (round >= 0) ours.push_back(time);
    }
    driving.check_answers(rows);
    for (int i = 0; i < settings.trips; ++i) {
      const double time = microseconds([&] { handing_over.exchange(rows); });
      if (round >= 0) with_switches.push_back(time);
    }
    for (int i = 0; i < settings.trips; ++i) {
      const double time = microseconds([&] { bare.ask(trips); });
      if (round >= 0) bares.push_back(time);
    }
  }
  std::printf("| %s | %4d | %8zu | %8zu | %2zu | %8.1f | %8.1f | %8.1f | %5.2f |\n",
              shared_memory ? "shm" : "tcp", rows, there, back, messages, median(with_switches),
              median(ours), median(bares), median(ours) / median(bares));
  std::fflush(stdout);
}

int main_of(int argc, char** argv) {
  if (argc >= 6 && std::strcmp(argv[1], "--child") == 0) {
    if (std::getenv(kPinVariable) != nullptr) pin_to(1);
    return child_main(argv[2], std::strcmp(argv[3], "shm") == 0, std::atoi(argv[4]),
                      std::atoi(argv[5]));
  }
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    int* value = name == "--rounds"   ? &settings.rounds
                 : name == "--trips"  ? &settings.trips
                 : name == "--hidden" ? &settings.hidden
                 : name == "--pin"    ? &settings.pin
                 : name == "--rows"   ? &settings.rows
                                      : nullptr;
    if (value == nullptr || !absl::SimpleAtoi(argv[i + 1], value) || *value < 0) {
      std::fprintf(stderr,
                   "exchange_bench [--rounds N] [--trips N] [--hidden N] [--pin 0|1] [--rows N]\n");
      return 2;
    }
  }
  if (settings.pin != 0) {
    setenv(kPinVariable, "1", 1);
    pin_to(0);
  }
  std::printf("hidden %d, top-%d, one worker; microseconds, medians of %d\n", settings.hidden,
              kTopK, settings.rounds * settings.trips);
  std::printf(
      "| lanes | rows | bytes there | back | messages | own progress thread | step thread drives | "
      "bare | ratio |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  for (const bool shared_memory : {true, false}) {
    for (const int rows : {1, 16, 64, 256}) {
      if (settings.rows == 0 || settings.rows == rows) measure(shared_memory, rows, settings);
    }
  }
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) { return brigade::bench::main_of(argc, argv); }
