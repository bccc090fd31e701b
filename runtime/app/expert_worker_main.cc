// brigade-expert-worker: config, construct, run.
#include <utility>

#include "runtime/app/worker_process.h"
#include "runtime/worker/expert_worker.h"

int main(int argc, char** argv) {
  using namespace brigade::runtime;  // NOLINT: a program of two lines
  worker::ParsedWorkerFlags parsed = worker::parse_worker_flags(argc, argv);
  if (parsed.exit_code >= 0) return parsed.exit_code;
  return run_worker_process<worker::ExpertWorker>("brigade-expert-worker",
                                                  std::move(parsed.config));
}
