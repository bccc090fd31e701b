// Authorities and certificates for "localhost" and 127.0.0.1, made afresh as PEM files, expired
// ones too. For tests of TLS.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace brigade::tests {

class TestAuthority {
 public:
  // Writes FOLDER/NAME.pem. `folder` ends with a slash.
  TestAuthority(const std::string& folder, const std::string& name);
  ~TestAuthority();

  std::string path() const;

  // FOLDER/NAME.pem and FOLDER/NAME.key, signed by this authority; the files are replaced as a
  // whole, key first. Valid from a day ago until `life` from now, which may be negative.
  void issue(const std::string& name, absl::Duration life = absl::Hours(24)) const;

 private:
  struct Parts;
  const std::string folder_, name_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace brigade::tests
