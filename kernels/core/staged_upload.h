// Host bytes on their way to a device through a few pinned pieces of fixed size: one is written while
// the others travel. However large a tensor is, it needs no more host memory than the pieces, and no
// copy waits for the one before it. Where the host writes device memory itself (`cpu`) there are no
// pieces, no stream and nothing to wait for.
//
// Planned at start; one thread at a time. Device memory that is being filled must stay until finish()
// has returned, or until a call has failed: a failure waits for what is still under way.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/core/device.h"
#include "kernels/core/host_buffer.h"

namespace brigade::kernels {

struct StagedUploadOptions {
  size_t piece_bytes = size_t{8} << 20;  // a multiple of StagedUpload::kUnit
  int pieces = 2;
  absl::Duration timeout = absl::Seconds(60);  // for one piece to arrive
};

class StagedUpload {
 public:
  // Pieces begin at multiples of this many bytes of the whole.
  static constexpr size_t kUnit = 64;

  // INVALID_ARGUMENT for sizes that make no piece.
  static absl::StatusOr<std::unique_ptr<StagedUpload>> create(
      Device& device, const StagedUploadOptions& options = {});
  // Waits for what is under way, `timeout` at most.
  ~StagedUpload();
  StagedUpload(const StagedUpload&) = delete;
  StagedUpload& operator=(const StagedUpload&) = delete;

  // Writes bytes [first, first + bytes) of the whole to `to`. Called in order, without gaps.
  using Write = absl::FunctionRef<void(size_t first, size_t bytes, void* to)>;
  // Fills `bytes` of device memory at `to`; returns when all is written, with the last pieces still
  // under way. An error names `what` and may come from the piece before. DEADLINE_EXCEEDED when a
  // piece does not arrive in time. An error of the device stays.
  absl::Status fill(const std::string& what, void* to, size_t bytes, Write write);
  // The point after all that was filled so far.
  absl::StatusOr<Event> filled();
  // Waits until all of it has arrived.
  absl::Status finish();

  Device& device() const { return device_; }
  // Null on `cpu`.
  Stream* stream() const { return stream_.get(); }

 private:
  struct Piece {
    HostBuffer memory;
    Event sent;  // it may be written again
  };
  StagedUpload(Device& device, const StagedUploadOptions& options);
  absl::Status send_piece(size_t first, size_t bytes, std::byte* to, Write write);
  absl::Status give_up(const absl::Status& why);

  Device& device_;
  const StagedUploadOptions options_;
  std::vector<Piece> pieces_;
  size_t next_ = 0;            // piece to write
  std::string what_;           // is being filled, or was last
  absl::Status failed_;        // pieces are under way that nobody waits for any more
  std::unique_ptr<Stream> stream_;  // last: it ends before the pieces go
};

}  // namespace brigade::kernels
