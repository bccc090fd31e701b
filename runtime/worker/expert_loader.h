// Loads and releases experts in the background, one command after the other, so that answers on the
// data plane are not held up: packing happens on the loader's thread, only the change of a slot on
// the shard's owner's. The loader alone changes the shard while it runs.
//
// The queue is bounded: kMaxCommands wait at most, another one fails at once with a sentence.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "expert_parallel/experts/expert_shard.h"
#include "runtime/model/expert_reader.h"
#include "runtime/model/load_model.h"
#include "runtime/worker/control_messages.h"

namespace brigade::runtime::worker {

// Runs a change on the thread that owns the shard and waits for it. Called by the loader's thread.
using RunOnOwner = std::function<absl::Status(std::function<void()>)>;
// An ExpertsLoaded or LoadFailed for the registration that asked. On the loader's thread, or within
// load(); must not wait.
using LoadReport = std::function<void(uint64_t incarnation, WorkerMessage report)>;
// Lines about long loads, and about what each came to. On the loader's thread.
using LoadLog = std::function<void(const std::string& line)>;

class ExpertLoader {
 public:
  static constexpr size_t kMaxCommands = 1024;

  // Model, device and shard outlive the loader. `memory_limit`: bytes of packed experts; 0: none. Where
  // the device has memory of its own, loads plan ahead within it (planned_experts()).
  static absl::StatusOr<std::unique_ptr<ExpertLoader>> create(
      const OpenedModel& model, kernels::Device& device, expert_parallel::ExpertShard& shard,
      int64_t memory_limit, RunOnOwner run_on_owner, LoadReport report, LoadLog log = nullptr);
  ~ExpertLoader();
  void start();
  // Ends after the expert in hand. May be called twice.
  void stop();

  // Any thread. Experts that are there already cost nothing. With drop_others all that the command
  // does not name are released first. A load that fails leaves nothing of itself behind.
  void load(uint64_t incarnation, LoadExperts command, bool drop_others);
  void release(uint64_t incarnation, ReleaseExperts command);
  // Queued loads and releases are forgotten, the one in hand ends after its expert; none is
  // reported any more. What is loaded stays.
  void abandon();

 private:
  using Key = std::pair<int, int>;  // MoE layer, expert
  struct Command {
    uint64_t epoch = 0, incarnation = 0;
    bool is_load = true, drop_others = false;
    int64_t number = 0;
    ExpertRanges experts;
  };
  ExpertLoader(const OpenedModel& model, std::unique_ptr<kernels::StagedUpload> upload,
               expert_parallel::ExpertShard& shard, int64_t memory_limit, RunOnOwner run_on_owner,
               LoadReport report, LoadLog log);
  void enqueue(Command command);
  void run();
  bool current(const Command& command);
  void carry_out(const Command& command);
  absl::Status carry_out_load(const Command& command, std::vector<Key>* fresh);
  absl::Status make_room(const std::vector<Key>& missing);
  absl::Status load_all(const Command& command, const std::vector<Key>& missing,
                        std::vector<Key>* fresh);
  absl::Status load_one(Key key);
  void log(const std::string& line) const;
  std::string holdings() const;
  absl::Status unload(const std::vector<Key>& keys);
  ExpertsLoaded report_of(const Command& command) const;

  const Checkpoint& checkpoint_;
  const ExpertReader reader_;
  const std::unique_ptr<kernels::StagedUpload> upload_;
  expert_parallel::ExpertShard& shard_;
  const int64_t memory_limit_;
  const RunOnOwner run_on_owner_;
  const LoadReport report_;
  const LoadLog log_;  // may be empty
  std::map<Key, uint64_t> held_;  // checksum by expert; the loader's thread

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Command> commands_;  // guarded by mutex_
  uint64_t epoch_ = 0;            // guarded by mutex_; rises with abandon()
  bool stopping_ = false;         // guarded by mutex_
  std::thread thread_;
};

}  // namespace brigade::runtime::worker
