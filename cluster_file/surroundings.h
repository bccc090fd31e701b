// What the checks of a cluster file may ask the machine they run on. Replaced in tests.
#pragma once

#include <optional>
#include <string>

namespace brigade::cluster_file {

class Surroundings {
 public:
  virtual ~Surroundings() = default;

  // True when a host with this address is the machine (or network namespace) we run on; only then
  // the files of its roles can be looked at.
  virtual bool is_here(const std::string& address) const = 0;

  virtual bool is_folder(const std::string& path) const = 0;

  // The first 64 KiB of a regular file; nullopt when it cannot be read.
  virtual std::optional<std::string> read_file(const std::string& path) const = 0;
};

// This machine, now. Thread-safe.
const Surroundings& this_machine();

}  // namespace brigade::cluster_file
