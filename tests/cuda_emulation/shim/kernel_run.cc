#include "tests/cuda_emulation/shim/kernel_run.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "tests/cuda_emulation/shim/block_runner.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace brigade::cuda_emulation {
namespace {

constexpr uint64_t kSeedUnset = ~uint64_t{0};
std::atomic<uint64_t> chosen_seed{kSeedUnset};

bool (*describe_fault)(const void*, char*, size_t) = nullptr;
struct sigaction previous_segv;
struct sigaction previous_bus;

void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& previous = signal == SIGSEGV ? previous_segv : previous_bus;
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(signal, info, context);
  } else {
    ::signal(signal, SIG_DFL);  // the access is repeated and ends the process
  }
}

// A kernel that touches what is not its own ends as a fault of its launch, as on a device.
// SI_KERNEL: no address at all, such as the pattern of memory that nobody wrote.
void on_memory_fault(int signal, siginfo_t* info, void* context) {
  char address[160];
  const bool is_device =
      describe_fault != nullptr && describe_fault(info->si_addr, address, sizeof(address));
  if (!is_device) std::snprintf(address, sizeof(address), "%p", info->si_addr);
  BlockRunner* const runner = current_runner;
  if (runner == nullptr) {
    if (is_device) std::fprintf(stderr, "cuda emulation: host code accesses %s\n", address);
    pass_on(signal, info, context);
    return;
  }
  sigset_t unblocked;
  sigemptyset(&unblocked);
  sigaddset(&unblocked, signal);
  pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
  if (info->si_code == SI_KERNEL) {
    runner->note_fault(cudaErrorIllegalAddress, "a memory access at what is no address");
  } else if (runner->in_stack_guard(info->si_addr)) {
    runner->note_fault(cudaErrorIllegalAddress, "used more local memory than a thread's stack has");
  } else {
    runner->note_fault(cudaErrorIllegalAddress, "illegal memory access at " + std::string(address));
  }
  runner->abandon();
}

void set_signal_actions() {
  struct sigaction action = {};
  action.sa_sigaction = on_memory_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous_segv);
  sigaction(SIGBUS, &action, &previous_bus);
}

void install_fault_handler() {
  static std::once_flag installed;
  std::call_once(installed, set_signal_actions);
}

// The handler needs a stack of its own: an emulated thread may have used up its own.
class SignalStack {
 public:
  SignalStack() : memory_(new char[kBytes]) {
    stack_t stack{};
    stack.ss_sp = memory_.get();
    stack.ss_size = kBytes;
    sigaltstack(&stack, &previous_);
  }
  ~SignalStack() { sigaltstack(&previous_, nullptr); }

 private:
  static constexpr size_t kBytes = size_t{64} << 10;
  std::unique_ptr<char[]> memory_;
  stack_t previous_{};
};

BlockRunner& runner() { return *current_runner; }

}  // namespace

void set_schedule_seed(uint64_t seed) { chosen_seed = seed; }

uint64_t schedule_seed() {
  const uint64_t chosen = chosen_seed;
  if (chosen != kSeedUnset) return chosen;
  const char* set = std::getenv("BRIGADE_EMULATION_SEED");
  return set == nullptr ? 2 : std::strtoull(set, nullptr, 10);
}

void describe_faults_with(bool (*describe)(const void*, char*, size_t)) {
  describe_fault = describe;
  install_fault_handler();
}

std::string kernel_name(const void* kernel) {
  Dl_info info;
  if (dladdr(kernel, &info) == 0 || info.dli_sname == nullptr || info.dli_saddr != kernel) {
    char address[32];
    std::snprintf(address, sizeof(address), "at %p", kernel);
    return address;
  }
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> readable(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
  return status == 0 ? readable.get() : info.dli_sname;
}

std::optional<KernelFault> run_kernel(const KernelLaunch& launch, uint64_t seed) {
  install_fault_handler();
  SignalStack signal_stack;
  static thread_local SharedMemory shared;  // kept: mapping it anew costs more than a small launch
  BlockRunner runner(launch, seed, shared);
  current_runner = &runner;
  std::optional<KernelFault> fault = runner.run();
  current_runner = nullptr;
  return fault;
}

int block_barrier(BarrierKind kind, int predicate, Site site) {
  return runner().barrier(kind, predicate, site);
}

const LaneValues& warp_exchange(WarpOp op, uint32_t mask, const void* value, size_t bytes,
                                Site site) {
  return runner().exchange(op, mask, value, bytes, site);
}

bool completed_exchange() { return runner().current().completed_exchange; }
int lane_id() { return static_cast<int>(runner().current().number % 32); }
uint32_t active_lanes() { return runner().warp().alive; }
void* dynamic_shared() { return runner().shared().dynamic(); }
size_t dynamic_shared_bytes() { return runner().launch().dynamic_shared_bytes; }

void* static_shared(size_t bytes, size_t alignment, const void* key) {
  void* const found = runner().shared().static_variable(bytes, alignment, key);
  if (found == nullptr || runner().shared().static_bytes() + dynamic_shared_bytes() >
                              runner().launch().allowed_shared_bytes) {
    runner().note_fault(cudaErrorLaunchFailure,
                        "its shared variables and dynamic shared memory pass " +
                            std::to_string(runner().launch().allowed_shared_bytes) + " bytes");
    runner().abandon();
  }
  return found;
}

void yield_thread() { runner().yield(); }

void device_trap(const char* reason, Site site) {
  runner().note_fault(cudaErrorLaunchFailure,
                      std::string(reason) + " at " + site.file + ":" + std::to_string(site.line));
  runner().abandon();
}

}  // namespace brigade::cuda_emulation
