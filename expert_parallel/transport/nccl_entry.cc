// The module's second entry point.
#include <nccl.h>

#include "absl/strings/str_cat.h"
#include "expert_parallel/transport/nccl_transport.h"

namespace brigade::expert_parallel {
namespace {

// Whose configurations and aborts of communicators without blocking are those that are used here.
constexpr int kOldest = NCCL_VERSION(2, 20, 0);

std::string text_of(int code) {
  return absl::StrCat(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

absl::StatusOr<std::string> version() {
  int code = 0;
  if (const ncclResult_t got = ncclGetVersion(&code); got != ncclSuccess)
    return absl::InternalError(absl::StrCat("ncclGetVersion: ", ncclGetErrorString(got)));
  if (code < kOldest) {
    return absl::FailedPreconditionError(
        absl::StrCat("libnccl.so.2 of this machine is NCCL ", text_of(code), ", the module needs ",
                     text_of(kOldest), " or later; use the data plane host"));
  }
  return text_of(code);
}

}  // namespace
}  // namespace brigade::expert_parallel

extern "C" __attribute__((visibility("default"))) const brigade::expert_parallel::NcclModule*
brigade_nccl_module() {
  namespace expert_parallel = brigade::expert_parallel;
  static const expert_parallel::NcclModule module = {
      .layout = expert_parallel::kNcclModuleLayout,
      .version = &expert_parallel::version,
      .create = &expert_parallel::NcclTransport::create,
  };
  return &module;
}
