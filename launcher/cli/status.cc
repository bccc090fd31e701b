// brigade status: what a server serves and how busy it is.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/core/status.h"
#include "launcher/cli/cluster_table.h"
#include "launcher/cli/drafting_table.h"
#include "launcher/cli/verb.h"
#include "launcher/exit_codes.h"
#include "launcher/interrupt.h"
#include "launcher/wait_ready.h"

namespace brigade::launcher {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(5);

struct StatusFlags {
  ConnectOptions connect;
  double wait_ready_seconds = 0;
  bool json = false, experts = false;
};

void row(const char* name, const std::string& value) {
  std::printf("%-18s %s\n", name, value.c_str());
}

std::string millions(int64_t count) {
  return absl::StrFormat("%.1f M", static_cast<double>(count) / 1e6);
}

void print_model(const v1::Model& model) {
  row("model", absl::StrCat(model.name(), " (", model.family(), ")"));
  std::string parameters = millions(model.parameters_total());
  if (model.moe_layers() > 0) {
    absl::StrAppend(&parameters, ", ", millions(model.parameters_active()), " active per token");
  }
  row("parameters", parameters);
  row("layers", absl::StrCat(model.layers(), ", ", model.moe_layers(), " with experts"));
  if (model.experts() > 0) {
    row("experts",
        absl::StrCat(model.experts(), " a layer, ", model.experts_per_token(), " a token"));
  }
  row("context", absl::StrCat(model.max_context(), " tokens, vocabulary ", model.vocab_size()));
  row("device", absl::StrCat(model.device(), model.same_words()
                                                 ? ""
                                                 : "; fast maths: words may depend on the batch"));
}

void print_load(const v1::Load& load) {
  row("requests", absl::StrCat(load.open_calls(), " open, ", load.waiting_requests(), " waiting, ",
                               load.running_sequences(), " sequences running"));
  row("since start",
      absl::StrCat(load.requests_finished(), " finished, ", load.requests_failed(), " failed, ",
                   load.requests_cancelled(), " cancelled, ", load.requests_rejected(),
                   " rejected, ", load.requests_expired(), " expired"));
  row("KV blocks", absl::StrCat(load.kv_blocks_in_use(), " in use, ", load.kv_blocks_cached(),
                                " cached, of ", load.kv_blocks_total()));
  row("tokens", absl::StrCat(load.prompt_tokens(), " prompt (", load.prefix_hit_tokens(),
                             " from cache), ", load.generated_tokens(), " generated"));
  row("tokens/s", absl::StrFormat("%.1f prompt, %.1f generated", load.prompt_tokens_per_second(),
                                  load.generated_tokens_per_second()));
  row("steps", absl::StrCat(load.steps(), ", largest batch ", load.max_sequences_in_step(), ", ",
                            load.preemptions(), " preemptions"));
}

// Rows each expert got, with the busiest as a multiple of even.
void print_experts(const v1::GetStatusResponse& status) {
  if (status.expert_rows().empty()) return;
  std::printf("\nrows per expert\n");
  for (int layer = 0; layer < status.expert_rows_size(); ++layer) {
    const auto& rows = status.expert_rows(layer).rows();
    int64_t sum = 0, most = 0;
    std::string line = absl::StrFormat("%-8s", absl::StrCat("layer ", layer));
    for (const int64_t count : rows) {
      sum += count;
      most = std::max(most, count);
      absl::StrAppendFormat(&line, " %8d", count);
    }
    if (sum > 0) {
      absl::StrAppendFormat(&line, "   busiest %.2f x even",
                            static_cast<double>(most) * rows.size() / static_cast<double>(sum));
    }
    std::printf("%s\n", line.c_str());
  }
}

void print_table(const v1::GetStatusResponse& status) {
  if (status.has_model()) print_model(status.model());
  row("live", status.live() ? "yes" : "no: " + status.reason());
  row("ready", status.ready() ? "yes" : "no: " + status.reason());
  row("uptime", absl::StrFormat("%.0f s", status.uptime_seconds()));
  if (!status.has_loading()) print_load(status.load());
  std::fputs(drafting_table(status.drafting(), status.load()).c_str(), stdout);
  if (status.has_cluster()) std::fputs(cluster_table(status.cluster()).c_str(), stdout);
  print_experts(status);
}

absl::Status run(const StatusFlags& flags) {
  ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::create(flags.connect));
  if (flags.wait_ready_seconds > 0) {
    RETURN_IF_ERROR(wait_until_ready(*client, absl::Now() + absl::Seconds(flags.wait_ready_seconds),
                                     interrupt_flag()));
  }
  ASSIGN_OR_RETURN(const v1::GetStatusResponse status, client->status(absl::Now() + kLimit));
  if (flags.experts) {
    print_experts(status);
  } else if (flags.json) {
    google::protobuf::util::JsonPrintOptions options;
    options.always_print_primitive_fields = true;
    options.preserve_proto_field_names = true;
    std::string json;
    if (!google::protobuf::util::MessageToJsonString(status, &json, options).ok()) {
      return absl::InternalError("the server's status cannot be written as JSON");
    }
    std::printf("%s\n", json.c_str());
  } else {
    print_table(status);
  }
  return absl::OkStatus();
}

}  // namespace

Verb add_status_verb(CLI::App& root) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* app = root.add_subcommand("status", "What a server serves and how busy it is");
  app->add_flag("--json", flags->json, "The whole status as JSON");
  app->add_flag("--experts", flags->experts, "Only the rows per expert");
  app->add_option("--wait-ready", flags->wait_ready_seconds,
                  "Wait so many seconds for a server that starts or loads")
      ->check(CLI::NonNegativeNumber);
  add_connect_flags(*app, &flags->connect);
  app->footer(std::string("Examples:\n"
                          "  brigade status\n"
                          "  brigade status --wait-ready 60 --server 127.0.0.1:50051\n"
                          "  brigade status --json | jq .load\n\n") +
              kExitCodesHelp);
  return {app, [flags] { return report(run(*flags)); }};
}

}  // namespace brigade::launcher
