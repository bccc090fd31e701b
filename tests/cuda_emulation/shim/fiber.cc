#include "tests/cuda_emulation/shim/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace brigade::cuda_emulation {
namespace {

namespace context = boost::context::detail;

constexpr size_t kPage = 4096;
// Kernels keep their arrays in registers; frames of the sanitizer are several times larger.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = size_t{256} << 10;
#else
constexpr size_t kStackBytes = size_t{128} << 10;
#endif

class StackPool {
 public:
  char* take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) add_stack();
    char* bottom = free_.back();
    free_.pop_back();
    return bottom;
  }
  void give_back(char* bottom) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(bottom);
  }

 private:
  void add_stack() {
    void* mapped = mmap(nullptr, kStackBytes + kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED || mprotect(mapped, kPage, PROT_NONE) != 0) {
      std::fprintf(stderr, "cuda emulation: no memory for another thread's stack\n");
      std::abort();
    }
    free_.push_back(static_cast<char*>(mapped) + kPage);
  }

  std::mutex mutex_;
  std::vector<char*> free_;  // guarded by mutex_
};

StackPool& stack_pool() {
  static auto* const pool = new StackPool;  // outlives every thread
  return *pool;
}

// What is handed over at a switch is the fiber that is being left.
void after_switch([[maybe_unused]] Fiber* entered, context::transfer_t transfer) {
  Fiber* const left = static_cast<Fiber*>(transfer.data);
  left->context = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(entered == nullptr ? nullptr : entered->fake_stack,
                                  &left->stack_bottom, &left->stack_size);
#endif
}

}  // namespace

FiberStack::FiberStack() : bottom_(stack_pool().take()) {}
FiberStack::~FiberStack() { stack_pool().give_back(bottom_); }
size_t FiberStack::size() { return kStackBytes; }
char* FiberStack::top() const {
  constexpr size_t kLine = 64;
  const size_t number = reinterpret_cast<uintptr_t>(bottom_) / (kStackBytes + kPage);
  return bottom_ + kStackBytes - number * 5 % (kPage / kLine) * kLine;
}
bool FiberStack::overflowed_at(const void* address) const {
  const char* at = static_cast<const char*>(address);
  return at < bottom_ && at >= bottom_ - kPage;
}

void reset_fiber(Fiber& fiber, void (*entry)(context::transfer_t)) {
  if (!fiber.stack) fiber.stack = std::make_unique<FiberStack>();
  fiber.stack_bottom = fiber.stack->bottom();
  fiber.stack_size = FiberStack::size();
  fiber.fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(fiber.stack->bottom(), FiberStack::size());
#endif
  char* const top = fiber.stack->top();
  fiber.context =
      context::make_fcontext(top, static_cast<size_t>(top - fiber.stack->bottom()), entry);
}

void switch_fiber(Fiber& from, Fiber& to) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack_bottom, to.stack_size);
#endif
  const context::transfer_t transfer = context::jump_fcontext(to.context, &from);
  after_switch(&from, transfer);
}

void fiber_entered(context::transfer_t transfer) { after_switch(nullptr, transfer); }

}  // namespace brigade::cuda_emulation
