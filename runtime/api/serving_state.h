// Where the process stands between start and stop, as health, status and calls see it: loading with
// progress, serving, draining. Thread-safe. The loader and the signal handling write, doors read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/api/served_model.h"
#include "runtime/cluster/cluster_status.h"
#include "runtime/engine/generator.h"
#include "runtime/speculative/draft_status.h"

namespace brigade::runtime {

class ServingState {
 public:
  struct Progress {
    std::string stage = "starting";
    int64_t done = 0, total = 0;  // bytes
  };
  struct Health {
    bool live = true, ready = false, draining = false;
    std::string reason;  // when not live or not ready
  };

  ServingState();

  void set_progress(Progress progress);
  // Known once the checkpoint's files were checked.
  void set_model(std::shared_ptr<const ServedModel> model);
  // From here on ready follows the generator. Needs the model.
  void set_generator(std::shared_ptr<Generator> generator);
  // Before any door opens. Called from any thread at any time, until the last door is shut.
  void set_cluster(std::function<ClusterStatus()> status) { cluster_ = std::move(status); }
  // The same for draft workers.
  void set_drafts(std::function<DraftWorkersStatus()> status) { drafts_ = std::move(status); }
  // No new calls; the generator drains too.
  void start_drain();

  Health health() const;
  Progress progress() const;
  std::shared_ptr<const ServedModel> model() const;
  // Null before set_generator.
  std::shared_ptr<Generator> generator() const;
  absl::Time started_at() const { return started_at_; }
  // Nothing without workers.
  std::optional<ClusterStatus> cluster() const {
    return cluster_ ? std::optional(cluster_()) : std::nullopt;
  }

  // Nothing where draft workers are not taken.
  std::optional<DraftWorkersStatus> drafts() const {
    return drafts_ ? std::optional(drafts_()) : std::nullopt;
  }

  struct Serving {
    std::shared_ptr<const ServedModel> model;
    std::shared_ptr<Generator> generator;
  };
  // What a new call works with. UNAVAILABLE with the reason when not ready or draining.
  absl::StatusOr<Serving> admit() const;

 private:
  const absl::Time started_at_;
  std::function<ClusterStatus()> cluster_;
  std::function<DraftWorkersStatus()> drafts_;
  mutable std::mutex mutex_;
  Progress progress_;
  std::shared_ptr<const ServedModel> model_;
  std::shared_ptr<Generator> generator_;
  bool draining_ = false;
};

}  // namespace brigade::runtime
