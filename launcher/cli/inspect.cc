// brigade inspect: hands over to brigade-model, which reads checkpoints.
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "launcher/cli/own_folder.h"
#include "launcher/cli/verb.h"
#include "launcher/exit_codes.h"

namespace brigade::launcher {
namespace {

absl::Status run(const std::vector<std::string>& arguments) {
  const std::string program = own_folder() + "/brigade-model";
  std::vector<char*> argv = {const_cast<char*>(program.c_str()), const_cast<char*>("inspect")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());  // returns only when it failed
  return absl::InvalidArgumentError(absl::StrCat("inspect: cannot start ", program));
}

}  // namespace

Verb add_inspect_verb(CLI::App& root) {
  auto arguments = std::make_shared<std::vector<std::string>>();
  CLI::App* app = root.add_subcommand(
      "inspect", "Family, parameters, bytes and memory of a model on disk (brigade-model inspect)");
  app->add_option("model", *arguments,
                  "Folder of the checkpoint; further flags go to brigade-model")
      ->required();
  app->allow_extras();
  app->footer("Example:\n  brigade inspect models/demo/target\n");
  return {app, [app, arguments] {
            std::vector<std::string> all = *arguments;
            for (const std::string& extra : app->remaining()) all.push_back(extra);
            return report(run(all));
          }};
}

}  // namespace brigade::launcher
