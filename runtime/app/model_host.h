// The model behind the door: its files checked in open(), its weights packed and its engine started
// in load(). Owns everything from the mapped files to the step thread. Used by the thread that
// loads, then by the main thread.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "runtime/api/served_model.h"
#include "runtime/app/config.h"
#include "runtime/app/loading_display.h"
#include "runtime/cluster/cluster_status.h"
#include "runtime/engine/generator.h"

namespace brigade::runtime {

class ModelHost {
 public:
  // Reads config, tensor headers and tokenizer; refuses what cannot be served with one sentence
  // that names the file and the key. Packs nothing yet. With workers the control port opens.
  static absl::StatusOr<std::unique_ptr<ModelHost>> open(const CoordinatorConfig& config);
  ~ModelHost();

  std::shared_ptr<const ServedModel> served() const;

  // Packs the weights, allocates the KV cache, waits for workers until every expert has a holder,
  // starts the engine and waits for its warm-up step.
  absl::Status load(const CoordinatorConfig& config, LoadingDisplay& progress);

  // After load(). Holding it keeps alive all that the engine works on.
  std::shared_ptr<Generator> generator() const;

  // Without workers: nothing. Any thread.
  std::optional<ClusterStatus> cluster_status() const;
  // Nothing where draft workers are not taken. Any thread.
  std::optional<DraftWorkersStatus> draft_status() const;
  // Lets the workers go, at any time; what is under way gets no further.
  void dismiss_workers();

  // Ends the engine, then lets the workers go. May be called twice.
  void stop();

 private:
  struct Parts;
  explicit ModelHost(std::shared_ptr<Parts> parts);
  std::shared_ptr<Parts> parts_;
};

}  // namespace brigade::runtime
