// The tokens of a door, taken up anew from their files, as certificates are: within two seconds of
// a change. Files that are not what they should be change nothing; stderr says so, once a change.
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/api/access_tokens.h"

namespace brigade::runtime {

class TokenWatch {
 public:
  // As AccessTokens::read().
  static absl::StatusOr<std::unique_ptr<TokenWatch>> open(const TokenFiles& files);

  // As of a second ago, at most. Never null; which roles have a token does not change.
  std::shared_ptr<const AccessTokens> now();

 private:
  // Of a file that is there: when it was written, its size and its number.
  using Stamp = std::array<int64_t, 4>;
  using Stamps = std::array<Stamp, 4>;
  TokenWatch(const TokenFiles& files, const Stamps& stamps, AccessTokens tokens);
  static Stamps stamps_of(const TokenFiles& files);

  const TokenFiles files_;
  std::mutex mutex_;  // guards what follows
  absl::Time look_at_;
  Stamps stamps_;
  std::shared_ptr<const AccessTokens> tokens_;
};

}  // namespace brigade::runtime
