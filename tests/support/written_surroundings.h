// A machine as a test writes it down: its addresses, folders and files.
#pragma once

#include <map>
#include <set>
#include <string>

#include "cluster_file/surroundings.h"

namespace brigade::tests {

class WrittenSurroundings final : public cluster_file::Surroundings {
 public:
  bool is_here(const std::string& address) const override;
  bool is_folder(const std::string& path) const override;
  std::optional<std::string> read_file(const std::string& path) const override;

  std::set<std::string> addresses = {"127.0.0.1"};
  std::set<std::string> folders;
  std::map<std::string, std::string> files;
};

}  // namespace brigade::tests
