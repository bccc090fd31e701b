#include "runtime/api/secret_file.h"

#include <fstream>

#include "absl/strings/str_cat.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxSecretFileBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::string> read_secret_file(const std::string& path, const std::string& flag) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", path));
  std::string text(kMaxSecretFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, " is empty"));
  return text;
}

}  // namespace brigade::runtime
