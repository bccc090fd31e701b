// Stacks and switches for emulated CUDA threads, over Boost.Context. A fiber belongs to the OS
// thread that entered it until it is entered afresh; stacks come from one pool of the process.
// Tells the address sanitizer about every switch.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <memory>
#include <vector>

namespace brigade::cuda_emulation {

// Memory of one stack with an inaccessible page below it; goes back to the pool at the end.
class FiberStack {
 public:
  FiberStack();
  ~FiberStack();
  FiberStack(const FiberStack&) = delete;
  FiberStack& operator=(const FiberStack&) = delete;

  char* bottom() const { return bottom_; }
  // Where its first frame begins: not at the same place of a page in every stack, or switching from
  // one to the next would have them all fight for the same lines of the cache.
  char* top() const;
  static size_t size();
  // True when `address` lies in the page below: the emulated thread used too much stack.
  bool overflowed_at(const void* address) const;

 private:
  char* bottom_;
};

// One context to switch to. The first (the OS thread's own) has no stack of ours.
struct Fiber {
  boost::context::detail::fcontext_t context = nullptr;
  const void* stack_bottom = nullptr;  // of the OS thread: learned at the first switch, for asan
  size_t stack_size = 0;
  void* fake_stack = nullptr;  // asan's own bookkeeping while the fiber is not running
  std::unique_ptr<FiberStack> stack;
};

// Makes `fiber` ready to run `entry` from the start; what ran on it before is forgotten.
void reset_fiber(Fiber& fiber, void (*entry)(boost::context::detail::transfer_t));

// Leaves `from` and runs `to`. Returns when something switches back to `from`.
void switch_fiber(Fiber& from, Fiber& to);

// The first statement of an entry function.
void fiber_entered(boost::context::detail::transfer_t transfer);

}  // namespace brigade::cuda_emulation
