// brigade-model: offline work on checkpoints. `inspect DIR` reads a model folder as a server would,
// checks everything that needs no weights' values, and prints what it is and needs. Exit codes: 0
// fine, 2 the command line or the checkpoint is refused.

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "runtime/model/model_summary.h"

namespace {

constexpr int kRefused = 2;

int inspect(const std::string& folder, bool as_json) {
  const auto model = brigade::runtime::open_model(folder);
  if (!model.ok()) {
    std::fprintf(stderr, "brigade-model: %s\n", std::string(model.status().message()).c_str());
    return kRefused;
  }
  for (const std::string& note : model->notes) {
    std::fprintf(stderr, "brigade-model: note: %s\n", note.c_str());
  }
  const brigade::runtime::ModelSummary summary = brigade::runtime::summarize(*model);
  const std::string text = as_json ? to_json(summary).dump(2) + "\n" : to_text(summary);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Offline work on model checkpoints in the Hugging Face layout.", "brigade-model");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n  brigade-model inspect models/demo/target\n"
      "  brigade-model inspect --json /models/mixtral | jq .memory\n\n"
      "Exit codes: 0 fine, 2 the command line or the checkpoint is refused.");
  std::string folder;
  bool as_json = false;
  CLI::App* inspect_command = app.add_subcommand(
      "inspect", "Family, parameters, bytes by part, memory needed, rope, routing, end tokens");
  inspect_command->add_option("DIR", folder, "Folder with config.json and *.safetensors")
      ->required();
  inspect_command->add_flag("--json", as_json, "One JSON object instead of a table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kRefused;
  }
  return inspect(folder, as_json);
}
