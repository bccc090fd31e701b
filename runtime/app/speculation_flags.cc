#include "runtime/app/speculation_flags.h"

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace brigade::runtime {
namespace {

constexpr int kMaxDepth = 16;

}  // namespace

void add_speculation_flags(CLI::App& app, std::string* speculation, int* max_draft_depth) {
  CLI::Option_group* group = app.add_option_group("Speculation");
  group
      ->add_option("--speculation", *speculation,
                   "For requests that leave it open: off, auto, or a number of drafts; default: "
                   "auto with --drafts, else off")
      ->type_name("off|auto|N");
  group->add_option("--max-draft-depth", *max_draft_depth, "Drafts of one sequence in one step")
      ->capture_default_str();
}

absl::Status apply_speculation(const std::string& speculation, bool drafts, EngineConfig* config) {
  SpeculationParams& params = config->speculation;
  if (speculation.empty()) {
    params.mode = drafts ? SpeculationMode::kAuto : SpeculationMode::kOff;
  } else if (speculation == "off") {
    params.mode = SpeculationMode::kOff;
  } else if (speculation == "auto") {
    params.mode = SpeculationMode::kAuto;
  } else if (absl::SimpleAtoi(speculation, &params.depth) && params.depth >= 1 &&
             params.depth <= config->max_draft_depth) {
    params.mode = SpeculationMode::kFixed;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--speculation ", speculation, ": must be off, auto or a number from 1 to ",
                     config->max_draft_depth, " (--max-draft-depth)"));
  }
  if (config->max_draft_depth < 0 || config->max_draft_depth > kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat("--max-draft-depth is ", config->max_draft_depth,
                                                   ", must be from 0 to ", kMaxDepth));
  }
  return absl::OkStatus();
}

std::string describe_speculation(const EngineConfig& config) {
  switch (config.speculation.mode) {
    case SpeculationMode::kAuto:
      return absl::StrCat("auto, at most ", config.max_draft_depth, " drafts");
    case SpeculationMode::kFixed:
      return absl::StrCat(config.speculation.depth, " drafts");
    default:
      return "off";
  }
}

}  // namespace brigade::runtime
