#include "kernels/core/staged_upload.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"

namespace brigade::kernels {

absl::StatusOr<std::unique_ptr<StagedUpload>> StagedUpload::create(
    Device& device, const StagedUploadOptions& options) {
  if (options.pieces < 1 || options.piece_bytes == 0 || options.piece_bytes % kUnit != 0) {
    return absl::InvalidArgumentError(absl::StrCat("an upload by ", options.pieces, " pieces of ",
                                                   options.piece_bytes,
                                                   " bytes: needs one or more, of a multiple of ",
                                                   kUnit, " bytes"));
  }
  auto upload = std::unique_ptr<StagedUpload>(new StagedUpload(device, options));
  if (device.kind() == DeviceKind::kCpu) return upload;
  for (int i = 0; i < options.pieces; ++i) {
    ASSIGN_OR_RETURN(HostBuffer memory, HostBuffer::allocate(device, options.piece_bytes));
    upload->pieces_.push_back({std::move(memory), Event()});
  }
  ASSIGN_OR_RETURN(upload->stream_, device.create_stream());
  return upload;
}

StagedUpload::StagedUpload(Device& device, const StagedUploadOptions& options)
    : device_(device), options_(options) {}

StagedUpload::~StagedUpload() {
  if (stream_ != nullptr) stream_->synchronize(absl::Now() + options_.timeout).IgnoreError();
}

absl::Status StagedUpload::fill(const std::string& what, void* to, size_t bytes, Write write) {
  if (stream_ == nullptr) {
    if (bytes > 0) write(0, bytes, to);
    return absl::OkStatus();
  }
  what_ = what;
  RETURN_IF_ERROR(failed_);
  for (size_t first = 0; first < bytes; first += options_.piece_bytes) {
    const size_t count = std::min(options_.piece_bytes, bytes - first);
    const absl::Status status = send_piece(first, count, static_cast<std::byte*>(to) + first, write);
    if (!status.ok()) return give_up(status);
  }
  return absl::OkStatus();
}

absl::Status StagedUpload::send_piece(size_t first, size_t bytes, std::byte* to, Write write) {
  Piece& piece = pieces_[next_];
  RETURN_IF_ERROR(piece.sent.wait_until(absl::Now() + options_.timeout));
  write(first, bytes, piece.memory.data());
  RETURN_IF_ERROR(stream_->copy_to_device(to, piece.memory.data(), bytes));
  ASSIGN_OR_RETURN(piece.sent, stream_->record());
  next_ = (next_ + 1) % pieces_.size();
  return absl::OkStatus();
}

// The caller may free the memory next: nothing may be on its way there any more.
absl::Status StagedUpload::give_up(const absl::Status& why) {
  const absl::Status named(
      why.code(), absl::StrCat("uploading ", what_, ": ", std::string(why.message())));
  if (stream_->synchronize(absl::Now() + options_.timeout).ok()) {
    for (Piece& piece : pieces_) piece.sent = Event();
  } else {
    failed_ = named;
  }
  return named;
}

absl::StatusOr<Event> StagedUpload::filled() {
  if (stream_ == nullptr) return Event();
  RETURN_IF_ERROR(failed_);
  return stream_->record();
}

absl::Status StagedUpload::finish() {
  if (stream_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(failed_);
  const absl::Status arrived = stream_->synchronize(absl::Now() + options_.timeout);
  return arrived.ok() ? arrived : give_up(arrived);
}

}  // namespace brigade::kernels
