// Text that may hold any bytes (file names, echoes of bad input) made fit for a proto3 string or a
// gRPC status message. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace brigade::runtime {

// What is not UTF-8 becomes U+FFFD; control characters (but tab and newline) become spaces; longer
// results are cut at a character and end in "...".
std::string safe_text(std::string_view bytes, size_t max_bytes = 2048);

}  // namespace brigade::runtime
