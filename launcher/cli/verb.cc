#include "launcher/cli/verb.h"

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "launcher/exit_codes.h"

namespace brigade::launcher {

void add_connect_flags(CLI::App& app, ConnectOptions* options) {
  CLI::Option_group* group = app.add_option_group("Connection");
  group->add_option("--server", options->server, "Address of the coordinator")
      ->envname("BRIGADE_SERVER")
      ->capture_default_str();
  group->add_option("--ca", options->ca, "PEM file: use TLS and trust this authority");
  group->add_option("--cert", options->cert, "PEM file: this client's certificate");
  group->add_option("--key", options->key, "PEM file: this client's private key");
  group->add_option("--server-name", options->server_name,
                    "Name in the server's certificate, when it is not the address");
  group->add_option("--token-file", options->token_file, "File with the access token")
      ->envname("BRIGADE_TOKEN_FILE");
}

int report(const absl::Status& status) {
  if (status.ok()) return kOk;
  std::fprintf(stderr, "brigade: %s: %s\n",
               std::string(absl::StatusCodeToString(status.code())).c_str(),
               std::string(status.message()).c_str());
  return exit_code_of(status);
}

}  // namespace brigade::launcher
