// The command line. Links no kernels: it knows servers by their API and models by brigade-model.
#include <vector>

#include "CLI/CLI.hpp"
#include "launcher/cli/verb.h"
#include "launcher/exit_codes.h"

int main(int argc, char** argv) {
  namespace launcher = brigade::launcher;
  CLI::App app("brigade: start a Brigade cluster, talk to it and look at models.");
  app.require_subcommand(1);
  app.set_version_flag("--version", "brigade 0.1.0");
  app.footer(std::string("Examples:\n"
                         "  brigade up deploy/configs/one_host_cpu.yaml\n"
                         "  brigade generate --prompt 'Once upon a time'\n"
                         "  brigade status\n"
                         "  brigade bench --prompts prompts.jsonl --concurrency 8\n"
                         "  brigade inspect models/demo/target\n"
                         "  brigade validate deploy/configs/one_host_cpu.yaml\n\n") +
             launcher::kExitCodesHelp);
  const std::vector<launcher::Verb> verbs = {
      launcher::add_generate_verb(app), launcher::add_status_verb(app),
      launcher::add_bench_verb(app),    launcher::add_inspect_verb(app),
      launcher::add_validate_verb(app), launcher::add_up_verb(app),
      launcher::add_down_verb(app),     launcher::add_ps_verb(app),
      launcher::add_logs_verb(app),     launcher::add_restart_verb(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool asked_for = error.get_exit_code() == 0;  // --help, --version
    app.exit(error);
    return asked_for ? launcher::kOk : launcher::kBadUsage;
  }
  for (const launcher::Verb& verb : verbs) {
    if (verb.app->parsed()) return verb.run();
  }
  return launcher::kBadUsage;
}
