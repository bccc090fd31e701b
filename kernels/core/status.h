// The two macros over absl::Status that the whole tree uses. Errors that a user, a file or a peer can
// cause travel as Status with one sentence that names the field, file, rank or step.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define BRIGADE_CONCAT_INNER(a, b) a##b
#define BRIGADE_CONCAT(a, b) BRIGADE_CONCAT_INNER(a, b)

// Leaves the function with the status if it is not OK.
#define RETURN_IF_ERROR(expression)                       \
  do {                                                    \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

// ASSIGN_OR_RETURN(auto value, call()): value of a StatusOr, or leave with its status.
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_IMPL(BRIGADE_CONCAT(status_or_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return std::move(result).status();         \
  declaration = *std::move(result)
