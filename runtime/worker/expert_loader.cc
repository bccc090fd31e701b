#include "runtime/worker/expert_loader.h"

#include <malloc.h>

#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/model/load_pace.h"
#include "runtime/worker/expert_memory_plan.h"

namespace brigade::runtime::worker {
namespace {

using expert_parallel::ExpertShard;
using expert_parallel::PreparedExpert;

// Slots changed within one turn of the owner: few enough to hold up no answer.
constexpr size_t kChangesPerTurn = 64;

std::vector<std::pair<int, int>> keys_of(const ExpertRanges& ranges) {
  std::vector<std::pair<int, int>> keys;
  for (const ExpertRange& range : ranges) {
    for (const int expert : range.experts) keys.push_back({range.moe_layer, expert});
  }
  return keys;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertLoader>> ExpertLoader::create(
    const OpenedModel& model, kernels::Device& device, ExpertShard& shard, int64_t memory_limit,
    RunOnOwner run_on_owner, LoadReport report, LoadLog log) {
  ASSIGN_OR_RETURN(auto upload, kernels::StagedUpload::create(device));
  return std::unique_ptr<ExpertLoader>(new ExpertLoader(
      model, std::move(upload), shard, memory_limit, std::move(run_on_owner), std::move(report),
      std::move(log)));
}

ExpertLoader::ExpertLoader(const OpenedModel& model,
                           std::unique_ptr<kernels::StagedUpload> upload, ExpertShard& shard,
                           int64_t memory_limit, RunOnOwner run_on_owner,
                           LoadReport report, LoadLog log)
    : checkpoint_(*model.checkpoint),
      reader_(model.tensors),
      upload_(std::move(upload)),
      shard_(shard),
      memory_limit_(memory_limit),
      run_on_owner_(std::move(run_on_owner)),
      report_(std::move(report)),
      log_(std::move(log)) {}

ExpertLoader::~ExpertLoader() { stop(); }

void ExpertLoader::start() {
  thread_ = std::thread([this] { run(); });
}

void ExpertLoader::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    ++epoch_;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ExpertLoader::load(uint64_t incarnation, LoadExperts command, bool drop_others) {
  enqueue({.incarnation = incarnation,
           .is_load = true,
           .drop_others = drop_others,
           .number = command.command,
           .experts = std::move(command.experts)});
}

void ExpertLoader::release(uint64_t incarnation, ReleaseExperts command) {
  enqueue({.incarnation = incarnation,
           .is_load = false,
           .number = command.command,
           .experts = std::move(command.experts)});
}

void ExpertLoader::enqueue(Command command) {
  const uint64_t incarnation = command.incarnation;
  const int64_t number = command.number;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (commands_.size() < kMaxCommands) {
      command.epoch = epoch_;
      commands_.push_back(std::move(command));
      changed_.notify_all();
      return;
    }
  }
  report_(incarnation, LoadFailed{number, absl::StrCat(kMaxCommands, " commands wait already")});
}

void ExpertLoader::abandon() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++epoch_;
  commands_.clear();
}

void ExpertLoader::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !commands_.empty(); });
    if (stopping_) return;
    const Command command = std::move(commands_.front());
    commands_.pop_front();
    lock.unlock();
    carry_out(command);
    lock.lock();
  }
}

bool ExpertLoader::current(const Command& command) {
  std::lock_guard<std::mutex> lock(mutex_);
  return command.epoch == epoch_;
}

void ExpertLoader::carry_out(const Command& command) {
  if (!command.is_load) {
    std::vector<Key> keys = keys_of(command.experts);
    std::erase_if(keys, [this](const Key& key) { return held_.count(key) == 0; });
    (void)unload(keys);  // fails only where the owner has stopped
    return;
  }
  std::vector<Key> fresh;
  const absl::Status status = carry_out_load(command, &fresh);
  if (!current(command)) return;
  if (status.ok()) {
    report_(command.incarnation, report_of(command));
    return;
  }
  (void)unload(fresh);
  log(absl::StrCat("experts cannot be loaded: ", std::string(status.message())));
  report_(command.incarnation, LoadFailed{command.number, std::string(status.message())});
}

absl::Status ExpertLoader::carry_out_load(const Command& command, std::vector<Key>* fresh) {
  const std::vector<Key> keys = keys_of(command.experts);
  const std::set<Key> wanted(keys.begin(), keys.end());
  for (const auto& [layer, expert] : wanted) {
    if (reader_.find(layer, expert) == nullptr)
      return absl::InvalidArgumentError(
          absl::StrCat("the model has no expert ", expert, " in MoE layer ", layer));
  }
  if (command.drop_others) {
    std::vector<Key> others;
    for (const auto& [key, checksum] : held_) {
      if (wanted.count(key) == 0) others.push_back(key);
    }
    RETURN_IF_ERROR(unload(others));
  }
  std::vector<Key> missing;
  for (const Key& key : wanted) {
    if (held_.count(key) == 0) missing.push_back(key);
  }
  RETURN_IF_ERROR(make_room(missing));
  const absl::Status status = load_all(command, missing, fresh);
  checkpoint_.drop_pages();
  return status;
}

absl::Status ExpertLoader::load_all(const Command& command, const std::vector<Key>& missing,
                                    std::vector<Key>* fresh) {
  if (missing.empty()) return absl::OkStatus();
  const auto bytes = static_cast<int64_t>(shard_.expert_bytes());
  const auto total = static_cast<int64_t>(missing.size());
  LoadPace pace(absl::Now());
  for (const Key& key : missing) {
    if (!current(command)) return absl::OkStatus();
    RETURN_IF_ERROR(load_one(key));
    fresh->push_back(key);
    const auto done = static_cast<int64_t>(fresh->size());
    if (const absl::Time now = absl::Now(); done < total && pace.line_due(now)) {
      log(absl::StrCat("loading experts: ", done, " of ", total, "; ",
                       pace.words(done * bytes, total * bytes, now)));
    }
  }
  log(absl::StrCat("loaded ", total, " experts, ", pace.summary(total * bytes, absl::Now()), "; ",
                   holdings()));
  return absl::OkStatus();
}

void ExpertLoader::log(const std::string& line) const {
  if (log_) log_(line);
}

// What is held, and what the device gave for it where that is more.
std::string ExpertLoader::holdings() const {
  const auto held = static_cast<int64_t>(shard_.resident_bytes());
  const auto reserved = static_cast<int64_t>(shard_.reserved_bytes());
  std::string text = absl::StrCat("holds ", held_.size(), ", ", bytes_in_words(held));
  if (reserved > held) {
    absl::StrAppend(&text, " of ", bytes_in_words(reserved), " taken on ",
                    upload_->device().name());
  }
  return text;
}

// Device memory too is had before anything is packed. Without room for spare slots there are none.
absl::Status ExpertLoader::make_room(const std::vector<Key>& missing) {
  if (missing.empty()) return absl::OkStatus();
  const size_t wanted = held_.size() + missing.size();
  const auto needed = static_cast<int64_t>(wanted * shard_.expert_bytes());
  if (memory_limit_ != 0 && needed > memory_limit_) {
    return absl::ResourceExhaustedError(absl::StrCat(missing.size(), " more experts make ", needed,
                                                     " bytes of packed weights, --memory ",
                                                     "allows ", memory_limit_));
  }
  if (wanted <= shard_.planned_experts()) return absl::OkStatus();
  const expert_parallel::ExpertGeometry& geometry = shard_.geometry();
  const int64_t planned = planned_experts({.wanted = static_cast<int64_t>(wanted),
                                           .here = static_cast<int64_t>(shard_.planned_experts()),
                                           .all = int64_t{geometry.moe_layers} * geometry.experts,
                                           .expert_bytes = int64_t(shard_.expert_bytes()),
                                           .limit_bytes = memory_limit_,
                                           .free_bytes = int64_t(upload_->device().free_bytes())});
  if (shard_.plan(static_cast<int>(planned)).ok()) return absl::OkStatus();
  return shard_.plan(static_cast<int>(wanted));
}

absl::Status ExpertLoader::load_one(Key key) {
  ASSIGN_OR_RETURN(PreparedExpert prepared,
                   reader_.prepare(shard_, *upload_, key.first, key.second));
  RETURN_IF_ERROR(upload_->finish());
  checkpoint_.drop_pages();
  const uint64_t checksum = prepared.checksum;
  absl::Status inserted;
  RETURN_IF_ERROR(run_on_owner_([&] { inserted = shard_.insert(std::move(prepared)); }));
  RETURN_IF_ERROR(inserted);
  held_[key] = checksum;
  return absl::OkStatus();
}

absl::Status ExpertLoader::unload(const std::vector<Key>& keys) {
  for (size_t first = 0; first < keys.size(); first += kChangesPerTurn) {
    const size_t end = std::min(keys.size(), first + kChangesPerTurn);
    std::vector<PreparedExpert> removed;  // freed here, not on the owner's thread
    RETURN_IF_ERROR(run_on_owner_([&] {
      for (size_t i = first; i < end; ++i) {
        absl::StatusOr<PreparedExpert> expert = shard_.remove(keys[i].first, keys[i].second);
        CHECK(expert.ok());
        removed.push_back(*std::move(expert));
      }
    }));
    for (size_t i = first; i < end; ++i) held_.erase(keys[i]);
  }
  if (!keys.empty()) malloc_trim(0);  // small experts lie in the heap, which keeps what is freed
  return absl::OkStatus();
}

ExpertsLoaded ExpertLoader::report_of(const Command& command) const {
  ExpertsLoaded loaded{.command = command.number,
                       .experts = command.experts,
                       .resident_bytes = static_cast<int64_t>(shard_.resident_bytes())};
  for (const Key& key : keys_of(command.experts)) loaded.checksums.push_back(held_.at(key));
  return loaded;
}

}  // namespace brigade::runtime::worker
