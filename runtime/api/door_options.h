// How a server's door is set up: address, trust, bounds. Plain data.
#pragma once

#include <cstddef>
#include <string>

#include "absl/time/time.h"

namespace brigade::runtime {

enum class DoorKind {
  kApi,      // takes client and operator tokens
  kControl,  // where workers join; takes worker tokens, and draft tokens from draft workers
};

struct DoorOptions {
  DoorKind kind = DoorKind::kApi;
  std::string listen = "127.0.0.1:50051";  // port 0: any free one
  // PEM files; empty: no TLS. With client_ca every client must show a certificate signed by it.
  std::string tls_cert, tls_key, client_ca;
  // Files with one token each. Once a role that the door takes has one, every call (but health) must
  // carry one of those as "authorization: Bearer ...". No two roles may share a token, so the files
  // of the other roles belong here too.
  std::string token_file, operator_token_file, worker_token_file, draft_token_file;
  bool insecure = false;  // allow a non-loopback address without TLS
  int max_request_bytes = 4 << 20;
  size_t max_open_calls = 4096;
  // A client that takes no byte of its stream for so long is cut.
  absl::Duration max_reader_stall = absl::Seconds(60);
};

}  // namespace brigade::runtime
