// The least that two processes can do with UCX: tagged messages there and back, one thread each,
// asleep in poll() until the worker's descriptor says so. Same settings as the transport; no
// frames, credits, checks or threads. The yardstick of exchange_bench.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace brigade::bench {

// A question and the messages that answer it, by size.
struct Trip {
  size_t question = 0;
  std::vector<size_t> answers;
};

class BareUcx {
 public:
  explicit BareUcx(bool shared_memory);
  ~BareUcx();
  BareUcx(const BareUcx&) = delete;
  BareUcx& operator=(const BareUcx&) = delete;

  std::string address() const;
  void connect(const std::string& remote);
  // Sends all questions, returns when all answers are here and all memory is free again.
  void ask(const std::vector<Trip>& trips);
  // Answers each question of `trips` as it comes, in order, for ever.
  void answer(const std::vector<Trip>& trips);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brigade::bench
