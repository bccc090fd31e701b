#include "runtime/draft_worker/draft_worker_config.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster_file/read_cluster_file.h"
#include "kernels/core/status.h"
#include "runtime/device/device_flags.h"
#include "runtime/joining/worker_flags.h"

namespace brigade::runtime::draft_worker {
namespace {

constexpr int kMaxSequences = 4096;

constexpr const char* kFooter =
    "Examples:\n"
    "  brigade-draft-worker --join 127.0.0.1:50052 --model models/demo/draft\n"
    "  brigade-draft-worker --cluster cluster.yaml --name d0\n"
    "  brigade-draft-worker --join 10.0.0.1:50052 --model m --name d0 --ca ca.pem \\\n"
    "      --token-file draft.token\n\n"
    "It drafts ahead of the coordinator, which checks every token: it can cost nobody a word. A\n"
    "coordinator that is lost is dialled again. SIGTERM or SIGINT: it leaves at once.\n"
    "Exit codes: 0 asked to stop, 1 no coordinator for --rejoin-timeout, 2 bad usage, settings or\n"
    "model, or refused by the coordinator.";

constexpr CommandLine kCommandLine = {"brigade-draft-worker", "drafts ahead for a coordinator.",
                                      kFooter};

void add_flags(CLI::App& app, DraftWorkerConfig* config) {
  add_joining_flags(app.add_option_group("Joining"),
                    "Shown in the coordinator's status; default: host and process",
                    "File with the draft workers' token", config);
  CLI::Option_group* group = app.add_option_group("Running");
  add_running_flags(group, "Folder of a dense model and its tokenizer.json", config);
  add_graph_flag(group, &config->device);
  group->add_option("--max-sequences", config->max_sequences, "Drafted for at the same time")
      ->capture_default_str();
  group->add_option("--max-context", config->max_context,
                    "Tokens of one sequence; 0: as the model says");
  group->add_option("--token-budget", config->token_budget, "Rows of one step")
      ->capture_default_str();
  add_size(group, "--kv-memory", &config->kv_memory_bytes, "For keys and values, such as 256M",
           "256M");
}

absl::Status check_range(const char* flag, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", value, ", must be from ", low, " to ", high));
}

absl::StatusOr<v1::DraftRole> find_draft(const v1::ClusterFile& file,
                                         const DraftWorkerConfig& config) {
  std::vector<std::string> names;
  for (const v1::DraftRole& draft : file.drafts()) {
    if (draft.name() == config.name) return draft;
    names.push_back(draft.name());
  }
  return no_such_name(config, "draft", names);
}

absl::Status apply_cluster_file(DraftWorkerConfig* config) {
  ASSIGN_OR_RETURN(const cluster_file::Reading reading,
                   cluster_file::read_cluster_file(config->cluster_file));
  const v1::ClusterFile& file = reading.file;
  ASSIGN_OR_RETURN(const v1::DraftRole draft, find_draft(file, *config));
  config->model = draft.model();
  config->device.name = draft.device();
  config->device.gpu_graphs = draft.gpu_graphs();
  config->threads = static_cast<int>(draft.threads());
  config->kv_memory_bytes = draft.kv_memory_bytes();
  config->max_sequences = static_cast<int>(draft.max_sequences());
  take_cluster_file(file, draft.host(), file.security().tokens().draft(), config);
  return absl::OkStatus();
}

}  // namespace

ParsedDraftFlags parse_draft_flags(int argc, char** argv) {
  ParsedDraftFlags parsed;
  parsed.exit_code = parse_over_cluster_file<DraftWorkerConfig>(
      kCommandLine, argc, argv, &add_flags, &apply_cluster_file, &parsed.config);
  return parsed;
}

absl::Status check(DraftWorkerConfig* config) {
  RETURN_IF_ERROR(check_worker("a dense model", config).status());
  RETURN_IF_ERROR(check_range("--max-sequences", config->max_sequences, 1, kMaxSequences));
  RETURN_IF_ERROR(check_range("--max-context", config->max_context, 0, 1 << 20));
  RETURN_IF_ERROR(check_range("--token-budget", config->token_budget, 1, 1 << 16));
  return check_range("--kv-memory", config->kv_memory_bytes, 1, int64_t{1} << 50);
}

std::string describe(const DraftWorkerConfig& config) {
  std::string text = describe_worker(config);
  const auto line = [&text](const char* key, const auto& value) {
    absl::StrAppend(&text, "  ", key, " ", value, "\n");
  };
  line("max-sequences", config.max_sequences);
  line("max-context", config.max_context == 0 ? "the model's" : absl::StrCat(config.max_context));
  line("token-budget", config.token_budget);
  line("kv-memory", config.kv_memory_bytes);
  return text;
}

}  // namespace brigade::runtime::draft_worker
