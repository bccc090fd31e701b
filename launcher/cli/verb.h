// A verb of `brigade`: its flags on the command line and what it does. One file a verb.
#pragma once

#include <functional>

#include "launcher/client.h"

namespace CLI {
class App;
}

namespace brigade::launcher {

struct Verb {
  CLI::App* app = nullptr;
  std::function<int()> run;  // returns the exit code; called at most once, after parsing
};

Verb add_generate_verb(CLI::App& root);
Verb add_status_verb(CLI::App& root);
Verb add_bench_verb(CLI::App& root);
Verb add_inspect_verb(CLI::App& root);
Verb add_validate_verb(CLI::App& root);
Verb add_up_verb(CLI::App& root);
Verb add_down_verb(CLI::App& root);
Verb add_ps_verb(CLI::App& root);
Verb add_logs_verb(CLI::App& root);
Verb add_restart_verb(CLI::App& root);

// --server, TLS and token flags, shared by the verbs that talk to a server.
void add_connect_flags(CLI::App& app, ConnectOptions* options);

// Prints "brigade: ..." to stderr and returns the exit code for it.
int report(const absl::Status& status);

}  // namespace brigade::launcher
