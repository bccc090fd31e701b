// Who somebody is by the token they send: client, operator, worker or draft worker. Unchanged once
// read (TokenWatch reads anew); thread-safe. Tokens are compared in constant time and never logged.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace brigade::runtime {

enum class Role {
  kClient,    // may generate and see the load
  kOperator,  // may also see and steer the cluster
  kWorker,    // may join as an expert worker
  kDraft,     // may join as a draft worker
};

// "client".
const char* role_name(Role role);

// Files with one token each; empty: the role has none.
struct TokenFiles {
  std::string client, operator_, worker, draft;
};

class AccessTokens {
 public:
  AccessTokens() = default;

  // INVALID_ARGUMENT names the flag and the file: unreadable, shorter than 16 bytes, or the token
  // of another role.
  static absl::StatusOr<AccessTokens> read(const TokenFiles& files);

  bool has(Role role) const;

  // Of "Bearer TOKEN", the value of the authorization header; nullopt for a stranger. Looks at
  // every token, whichever matches.
  std::optional<Role> role_of(std::string_view authorization) const;

 private:
  struct Token {
    Role role;
    std::string authorization;  // "Bearer ..."
  };
  std::vector<Token> tokens_;
};

// Time depends on the lengths only.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace brigade::runtime
