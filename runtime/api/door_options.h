// How a server's door is set up: address, trust, bounds. Plain data.
#pragma once

#include <cstddef>
#include <string>

#include "absl/time/time.h"

namespace brigade::runtime {

struct DoorOptions {
  std::string listen = "127.0.0.1:50051";  // port 0: any free one
  // PEM files; empty: no TLS. With client_ca every client must show a certificate signed by it.
  std::string tls_cert, tls_key, client_ca;
  // A file with the token that every call (but health) must carry as "authorization: Bearer ...".
  std::string token_file;
  bool insecure = false;  // allow a non-loopback address without TLS
  int max_request_bytes = 4 << 20;
  size_t max_open_calls = 4096;
  // A client that takes no byte of its stream for so long is cut.
  absl::Duration max_reader_stall = absl::Seconds(60);
};

}  // namespace brigade::runtime
