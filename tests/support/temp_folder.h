// A fresh folder for the files of a test, removed with all in it. One owner.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "kernels/core/check.h"

namespace brigade::tests {

class TempFolder {
 public:
  TempFolder() : path_((std::filesystem::temp_directory_path() / "brigade_XXXXXX").string()) {
    CHECK(mkdtemp(path_.data()) != nullptr);
    path_ += '/';
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  // Ends with a slash.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace brigade::tests
