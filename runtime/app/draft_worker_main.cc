// brigade-draft-worker: config, construct, run.
#include <utility>

#include "runtime/app/worker_process.h"
#include "runtime/draft_worker/draft_worker.h"

int main(int argc, char** argv) {
  using namespace brigade::runtime;  // NOLINT: a program of two lines
  draft_worker::ParsedDraftFlags parsed = draft_worker::parse_draft_flags(argc, argv);
  if (parsed.exit_code >= 0) return parsed.exit_code;
  return run_worker_process<draft_worker::DraftWorker>("brigade-draft-worker",
                                                       std::move(parsed.config));
}
