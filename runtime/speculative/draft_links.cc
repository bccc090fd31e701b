#include "runtime/speculative/draft_links.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace brigade::runtime {

absl::StatusOr<std::shared_ptr<DraftLink>> DraftLinks::open(std::shared_ptr<kernels::Waker> waker,
                                                            absl::Time now) {
  std::lock_guard lock(mutex_);
  if (links_.size() >= kMaxLinks) {
    return absl::ResourceExhaustedError(
        absl::StrCat(links_.size(), " draft workers have joined; no more are taken"));
  }
  links_.push_back(std::make_shared<DraftLink>(options_, next_id_++, std::move(waker), now));
  ++version_;
  return links_.back();
}

void DraftLinks::close(const std::shared_ptr<DraftLink>& link, const std::string& why) {
  link->end();
  if (options_.log) {
    const std::string id = link->status().worker_id;
    options_.log(absl::StrCat("draft worker ", id.empty() ? "without a name" : id, " has left",
                              why.empty() ? "" : ": ", why));
  }
  std::lock_guard lock(mutex_);
  std::erase(links_, link);
  ++version_;
}

std::vector<std::shared_ptr<DraftLink>> DraftLinks::links() const {
  std::lock_guard lock(mutex_);
  return links_;
}

void DraftLinks::publish(const RemoteDraftsCounters& counters) {
  std::lock_guard lock(mutex_);
  counters_ = counters;
}

RemoteDraftsCounters DraftLinks::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

std::vector<DraftLinkStatus> DraftLinks::status() const {
  std::vector<DraftLinkStatus> all;
  for (const auto& link : links()) all.push_back(link->status());
  return all;
}

}  // namespace brigade::runtime
