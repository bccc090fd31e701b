#include "runtime/api/token_watch.h"

#include <sys/stat.h>

#include <cstdio>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);

}  // namespace

// The stamps first: a change in between is seen by the next look.
absl::StatusOr<std::unique_ptr<TokenWatch>> TokenWatch::open(const TokenFiles& files) {
  const Stamps stamps = stamps_of(files);
  ASSIGN_OR_RETURN(AccessTokens tokens, AccessTokens::read(files));
  return std::unique_ptr<TokenWatch>(new TokenWatch(files, stamps, std::move(tokens)));
}

TokenWatch::TokenWatch(const TokenFiles& files, const Stamps& stamps, AccessTokens tokens)
    : files_(files),
      look_at_(absl::Now() + kLookEvery),
      stamps_(stamps),
      tokens_(std::make_shared<const AccessTokens>(std::move(tokens))) {}

TokenWatch::Stamps TokenWatch::stamps_of(const TokenFiles& files) {
  Stamps stamps{};
  size_t next = 0;
  for (const std::string* path : {&files.client, &files.operator_, &files.worker, &files.draft}) {
    struct stat info = {};
    Stamp& stamp = stamps[next++];
    if (path->empty() || stat(path->c_str(), &info) != 0) continue;
    stamp = {info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_size,
             static_cast<int64_t>(info.st_ino)};
  }
  return stamps;
}

std::shared_ptr<const AccessTokens> TokenWatch::now() {
  std::lock_guard lock(mutex_);
  const absl::Time now = absl::Now();
  if (now < look_at_) return tokens_;
  look_at_ = now + kLookEvery;
  const Stamps stamps = stamps_of(files_);
  if (stamps == stamps_) return tokens_;
  stamps_ = stamps;
  absl::StatusOr<AccessTokens> read = AccessTokens::read(files_);
  if (read.ok()) {
    tokens_ = std::make_shared<const AccessTokens>(*std::move(read));
  } else {
    std::fprintf(stderr, "the tokens in force stay: %s\n",
                 std::string(read.status().message()).c_str());
  }
  return tokens_;
}

}  // namespace brigade::runtime
