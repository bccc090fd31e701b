#include "runtime/api/access_tokens.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "runtime/api/secret_file.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMinTokenBytes = 16;

struct TokenFlag {
  Role role;
  const char* flag;
  std::string TokenFiles::*path;
};

constexpr TokenFlag kFlags[] = {
    {Role::kClient, "--token-file", &TokenFiles::client},
    {Role::kOperator, "--operator-token-file", &TokenFiles::operator_},
    {Role::kWorker, "--worker-token-file", &TokenFiles::worker},
    {Role::kDraft, "--draft-token-file", &TokenFiles::draft},
};

absl::StatusOr<std::string> read_token(const std::string& path, const char* flag) {
  ASSIGN_OR_RETURN(std::string token, read_secret_file(path, flag));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() < kMinTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": the token has ", token.size(),
                                                   " bytes, needs at least ", kMinTokenBytes));
  }
  return token;
}

}  // namespace

const char* role_name(Role role) {
  switch (role) {
    case Role::kClient:
      return "client";
    case Role::kOperator:
      return "operator";
    case Role::kWorker:
      return "worker";
    case Role::kDraft:
      return "draft";
  }
  return "";
}

absl::StatusOr<AccessTokens> AccessTokens::read(const TokenFiles& files) {
  AccessTokens result;
  std::vector<const TokenFlag*> given;
  for (const TokenFlag& each : kFlags) {
    const std::string& path = files.*each.path;
    if (path.empty()) continue;
    ASSIGN_OR_RETURN(const std::string token, read_token(path, each.flag));
    const std::string authorization = "Bearer " + token;
    for (size_t i = 0; i < given.size(); ++i) {
      if (!equal_in_constant_time(result.tokens_[i].authorization, authorization)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(each.flag, " ", path, " holds the same token as ", given[i]->flag, " ",
                       files.*given[i]->path, "; every role needs one of its own"));
    }
    given.push_back(&each);
    result.tokens_.push_back({each.role, authorization});
  }
  return result;
}

bool AccessTokens::has(Role role) const {
  for (const Token& token : tokens_) {
    if (token.role == role) return true;
  }
  return false;
}

std::optional<Role> AccessTokens::role_of(std::string_view authorization) const {
  std::optional<Role> found;
  for (const Token& token : tokens_) {
    if (equal_in_constant_time(authorization, token.authorization)) found = token.role;
  }
  return found;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  volatile uint8_t different = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const uint8_t other = b.empty() ? 0 : static_cast<uint8_t>(b[i % b.size()]);
    different = different | (static_cast<uint8_t>(a[i]) ^ other);
  }
  return different == 0;
}

}  // namespace brigade::runtime
