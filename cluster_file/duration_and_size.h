// Durations ("500ms", "2s", "1h30m") and sizes ("512M", "4G", "1048576") as the cluster file writes
// them, both ways. Pure functions; errors are INVALID_ARGUMENT with a sentence without a subject.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace brigade::cluster_file {

// One or more numbers with units h, m, s, ms, us; a minus sign is read so that it can be refused by
// its value.
absl::StatusOr<absl::Duration> parse_duration(const std::string& text);
std::string print_duration(absl::Duration duration);

// Bytes; units K, M, G, T are powers of 1024, with or without a B.
absl::StatusOr<int64_t> parse_size(const std::string& text);
std::string print_size(int64_t bytes);

}  // namespace brigade::cluster_file
