#include "tests/support/written_surroundings.h"

namespace brigade::tests {

bool WrittenSurroundings::is_here(const std::string& address) const {
  return addresses.count(address) > 0;
}

bool WrittenSurroundings::is_folder(const std::string& path) const {
  return folders.count(path) > 0;
}

std::optional<std::string> WrittenSurroundings::read_file(const std::string& path) const {
  const auto found = files.find(path);
  if (found == files.end()) return std::nullopt;
  return found->second;
}

}  // namespace brigade::tests
