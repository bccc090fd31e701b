// An exchange that follows the views of a board: it takes a new one before a layer or in the middle
// of it, and says in its seat when no row travels under an older one. Step thread; one object per
// microbatch.
#pragma once

#include <memory>

#include "expert_parallel/exchange/cluster_exchange.h"
#include "runtime/cluster/view_board.h"

namespace brigade::runtime {

class ViewedExchange final : public expert_parallel::Exchange {
 public:
  // The board outlives the exchange.
  ViewedExchange(ViewBoard& board, std::unique_ptr<expert_parallel::ClusterExchange> exchange);
  ~ViewedExchange() override;

  // FAILED_PRECONDITION before the first view is published.
  absl::Status begin(kernels::Stream& stream, const expert_parallel::LayerRows& layer,
                     kernels::Waker* waker) override;
  absl::StatusOr<bool> poll() override;
  const void* answers() const override { return exchange_->answers(); }
  kernels::DType answer_dtype() const override { return exchange_->answer_dtype(); }
  std::span<const int32_t> parked_rows() const override { return exchange_->parked_rows(); }
  // The board's, so that a change between two steps shows.
  uint64_t view_version() const override { return board_.number(); }
  int32_t holder_of(int moe_layer, int32_t expert) const override {
    return exchange_->holder_of(moe_layer, expert);
  }
  uint64_t holders_version() const override { return exchange_->holders_version(); }

 private:
  absl::Status take_view();
  void name_debtors();
  absl::Status note_use();
  void leave();

  ViewBoard& board_;
  const std::unique_ptr<expert_parallel::ClusterExchange> exchange_;
  ViewBoard::Seat seat_;
  uint64_t taken_ = 0;                 // number of the exchange's view
  kernels::Stream* stream_ = nullptr;  // of the layer under way
};

}  // namespace brigade::runtime
