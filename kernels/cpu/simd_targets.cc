#include "kernels/cpu/simd_targets.h"

#include "hwy/targets.h"

namespace brigade::kernels {
namespace {

void update_chosen() { hwy::GetChosenTarget().Update(hwy::SupportedTargets()); }

}  // namespace

std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.push_back(hwy::TargetName(target));
  }
  return names;
}

bool force_simd_target(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  update_chosen();
  if (name.empty()) return true;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    update_chosen();
    return true;
  }
  return false;
}

}  // namespace brigade::kernels
