#include "runtime/api/open_calls.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace brigade::runtime {

absl::Status OpenCalls::add(std::shared_ptr<Call> call) {
  std::lock_guard lock(mutex_);
  if (!closed_.ok()) return closed_;
  if (calls_.size() >= max_calls_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server already has ", max_calls_, " open calls; try again later"));
  }
  calls_.insert(std::move(call));
  return absl::OkStatus();
}

void OpenCalls::remove(const std::shared_ptr<Call>& call) {
  std::lock_guard lock(mutex_);
  calls_.erase(call);
  if (calls_.empty()) emptied_.notify_all();
}

size_t OpenCalls::size() const {
  std::lock_guard lock(mutex_);
  return calls_.size();
}

bool OpenCalls::wait_until_empty(absl::Time deadline) {
  std::unique_lock lock(mutex_);
  return emptied_.wait_until(lock, absl::ToChronoTime(deadline), [this] { return calls_.empty(); });
}

void OpenCalls::close(const absl::Status& status) {
  std::vector<std::shared_ptr<Call>> calls;
  {
    std::lock_guard lock(mutex_);
    if (closed_.ok()) closed_ = status;
    calls.assign(calls_.begin(), calls_.end());
  }
  for (const std::shared_ptr<Call>& call : calls) call->abort(status);
}

int OpenCalls::cut_stalled(absl::Time limit) {
  std::vector<std::shared_ptr<Call>> stalled;
  {
    std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Call>& call : calls_) {
      if (call->writing_since() < limit) stalled.push_back(call);
    }
  }
  for (const std::shared_ptr<Call>& call : stalled) {
    call->cut(absl::ResourceExhaustedError("the client does not read its stream"));
  }
  return static_cast<int>(stalled.size());
}

}  // namespace brigade::runtime
