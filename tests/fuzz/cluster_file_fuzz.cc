// Any text as a cluster file. What is accepted must come back equal when it is printed and read
// again; what is refused must be lines that start with the file and a place.

#include <cstddef>
#include <cstdint>
#include <string>

#include "cluster_file/cluster_layout.h"
#include "cluster_file/problems.h"
#include "cluster_file/read_cluster_file.h"
#include "kernels/core/check.h"

namespace {

namespace cluster_file = brigade::cluster_file;

void check_complaint(const std::string& text) {
  CHECK(!text.empty());
  size_t lines = 0;
  for (size_t begin = 0; begin < text.size(); ++lines) {
    CHECK(text.compare(begin, 5, "/d/f:") == 0);
    const size_t end = text.find('\n', begin);
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  CHECK(lines <= cluster_file::Problems::kMax + 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto reading = cluster_file::parse_cluster_file(text, "/d/f", nullptr);
  if (!reading.ok()) {
    check_complaint(std::string(reading.status().message()));
    return 0;
  }
  CHECK(!cluster_file::expanded_workers(reading->file).empty() || reading->file.workers().empty());
  const auto again =
      cluster_file::parse_cluster_file(cluster_file::to_yaml(reading->file), "/d/f", nullptr);
  CHECK(again.ok());
  CHECK(again->file.SerializeAsString() == reading->file.SerializeAsString());
  return 0;
}
