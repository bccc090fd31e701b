// Loading in the background and the door through which it changes a shard that serves: what is
// held, what is reported, what is undone.
#include "runtime/worker/expert_loader.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#include "runtime/model/load_pace.h"
#include "runtime/model/weights.h"
#include "runtime/worker/data_plane.h"
#include "runtime/worker/expert_memory_plan.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::runtime::worker {
namespace {

using expert_parallel::ExpertShard;
using tests::kTinyExperts;

constexpr uint64_t kIncarnation = 77;

struct Reported {
  uint64_t incarnation;
  WorkerMessage message;
};

class ExpertLoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.write_json("config.json", tests::tiny_mixtral_config());
    folder_.write("model.safetensors", tests::safetensors_bytes(tests::tiny_mixtral_tensors()));
    auto model = open_model(folder_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    device_ = *kernels::Device::create(kernels::DeviceKind::kCpu, 1);
    geometry_ = *expert_geometry(model_.spec, model_.tensors, kernels::DType::kF32);
    shard_ = *ExpertShard::create(*device_, geometry_);
    make_loader(0);
  }
  void TearDown() override { open_gate(); }

  void make_loader(int64_t memory_limit) {
    loader_ = *ExpertLoader::create(
        model_, *device_, *shard_, memory_limit,
        [this](std::function<void()> change) {
          std::unique_lock<std::mutex> lock(mutex_);
          ++changes_;
          changed_.notify_all();
          changed_.wait(lock, [this] { return gate_open_; });
          change();
          return owner_status_;
        },
        [this](uint64_t incarnation, WorkerMessage message) {
          std::lock_guard<std::mutex> lock(mutex_);
          reports_.push_back({incarnation, std::move(message)});
          changed_.notify_all();
        },
        [this](const std::string& line) {
          std::lock_guard<std::mutex> lock(mutex_);
          log_ += line + "\n";
        });
  }
  // With the gate shut the loader stands in its next change of the shard.
  void shut_gate() {
    std::lock_guard<std::mutex> lock(mutex_);
    gate_open_ = false;
    changes_ = 0;
  }
  void open_gate() {
    std::lock_guard<std::mutex> lock(mutex_);
    gate_open_ = true;
    changed_.notify_all();
  }
  bool stands_at_gate() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [this] { return changes_ > 0; });
  }
  Reported next_report() {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(20), [this] { return !reports_.empty(); }));
    if (reports_.empty()) return {0, LoadFailed{.reason = "no report"}};
    Reported report = std::move(reports_.front());
    reports_.pop_front();
    return report;
  }
  ExpertsLoaded loaded() {
    const Reported report = next_report();
    EXPECT_EQ(report.incarnation, kIncarnation);
    const auto* failed = std::get_if<LoadFailed>(&report.message);
    EXPECT_EQ(failed, nullptr) << failed->reason;
    return failed == nullptr ? std::get<ExpertsLoaded>(report.message) : ExpertsLoaded{};
  }
  std::string failed() {
    const Reported report = next_report();
    const auto* failed = std::get_if<LoadFailed>(&report.message);
    return failed == nullptr ? "loaded" : failed->reason;
  }
  size_t held() const { return shard_->resident_bytes() / shard_->expert_bytes(); }

  tests::ModelFolder folder_;
  OpenedModel model_;
  std::unique_ptr<kernels::Device> device_;
  expert_parallel::ExpertGeometry geometry_;
  std::unique_ptr<ExpertShard> shard_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool gate_open_ = true;
  int changes_ = 0;
  absl::Status owner_status_;
  std::deque<Reported> reports_;
  std::string log_;
  std::unique_ptr<ExpertLoader> loader_;  // last: its thread uses the rest
};

TEST_F(ExpertLoaderTest, LoadsReportsChecksumsAndReleases) {
  loader_->start();
  loader_->load(kIncarnation, {1, {{0, {3, 1}}, {1, {11}}}}, false);
  const ExpertsLoaded report = loaded();
  EXPECT_EQ(report.command, 1);
  EXPECT_EQ(report.experts, (ExpertRanges{{0, {3, 1}}, {1, {11}}}));
  ASSERT_EQ(report.checksums.size(), 3u);
  EXPECT_EQ(report.resident_bytes, static_cast<int64_t>(3 * shard_->expert_bytes()));
  // The same bits as a model that is loaded whole.
  auto whole = *ExpertShard::create(*device_, geometry_);
  auto upload = *kernels::StagedUpload::create(*device_);
  WeightUploader uploader(*upload, {}, nullptr);
  ASSERT_TRUE(load_experts(model_.tensors, *whole, uploader).ok());
  EXPECT_EQ(report.checksums[0], *whole->checksum(0, 3));
  EXPECT_EQ(report.checksums[1], *whole->checksum(0, 1));
  EXPECT_EQ(report.checksums[2], *whole->checksum(1, 11));

  loader_->release(kIncarnation, {2, {{0, {1, 5}}}});  // 5 is not there: nothing to release
  loader_->load(kIncarnation, {3, {{0, {3}}}}, false);
  EXPECT_EQ(loaded().resident_bytes, static_cast<int64_t>(2 * shard_->expert_bytes()));
  EXPECT_FALSE(shard_->holds(0, 1));
  EXPECT_TRUE(shard_->holds(0, 3));
  loader_->stop();
  loader_->stop();
  EXPECT_EQ(log_.rfind("loaded 3 experts, ", 0), 0u) << log_;
  EXPECT_NE(log_.find("; holds 3, "), std::string::npos) << log_;
}

TEST_F(ExpertLoaderTest, WhatIsHeldIsAnsweredWithoutWorkAndTheRestDropped) {
  loader_->start();
  loader_->load(kIncarnation, {1, {{0, {0, 1, 2, 3}}}}, false);
  const ExpertsLoaded before = loaded();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    changes_ = 0;
  }
  loader_->load(kIncarnation, {2, {{0, {2, 1}}}}, false);
  EXPECT_EQ(loaded().checksums, (std::vector<uint64_t>{before.checksums[2], before.checksums[1]}));
  EXPECT_EQ(changes_, 0) << "nothing was packed or inserted";
  loader_->load(kIncarnation, {3, {{0, {2, 1}}}}, true);
  loaded();
  EXPECT_EQ(held(), 2u);
  loader_->load(kIncarnation, {4, {}}, true);
  EXPECT_TRUE(loaded().checksums.empty());
  EXPECT_EQ(held(), 0u);
}

TEST_F(ExpertLoaderTest, MoreThanTheMemoryAllowsFailsWithBothNumbers) {
  const auto bytes = static_cast<int64_t>(shard_->expert_bytes());
  make_loader(3 * bytes);
  loader_->start();
  loader_->load(kIncarnation, {1, {{0, {0, 1}}}}, false);
  loaded();
  loader_->load(kIncarnation, {2, {{0, {1, 2, 3}}}}, false);
  EXPECT_EQ(failed(), absl::StrCat("2 more experts make ", 4 * bytes,
                                   " bytes of packed weights, --memory allows ", 3 * bytes));
  EXPECT_EQ(held(), 2u);
  // Dropping makes room first.
  loader_->load(kIncarnation, {3, {{1, {1, 2, 3}}}}, true);
  loaded();
  EXPECT_EQ(held(), 3u);
}

TEST(LoadPace, SaysHowFarHowFastAndHowLong) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  LoadPace pace(start, 1'000'000'000);
  EXPECT_EQ(pace.words(1'000'000'000, 9'000'000'000, start), "1.0 GB of 9.0 GB");
  const absl::Time later = start + absl::Seconds(4);
  EXPECT_FALSE(pace.line_due(later));
  EXPECT_EQ(pace.words(3'000'000'000, 9'000'000'000, later),
            "3.0 GB of 9.0 GB, 500.0 MB/s, 12 s left");
  EXPECT_TRUE(pace.line_due(start + absl::Seconds(10)));
  EXPECT_FALSE(pace.line_due(start + absl::Seconds(19)));
  EXPECT_TRUE(pace.line_due(start + absl::Seconds(20)));
  EXPECT_EQ(pace.summary(9'000'000'000, start + absl::Seconds(20)), "8.0 GB in 20.0 s (400.0 MB/s)");
}

TEST(ExpertMemoryPlan, SpareExpertsCoverALostWorkerWithinLimitAndMemory) {
  const ExpertMemoryNeed share{.wanted = 256, .all = 1024, .expert_bytes = 100};  // of four workers
  EXPECT_EQ(planned_experts(share), 342) << "a third";
  const auto with = [&](auto change) {
    ExpertMemoryNeed need = share;
    change(need);
    return planned_experts(need);
  };
  EXPECT_EQ(with([](auto& need) { need.wanted = 512; }), 1024) << "the other of two is lost";
  EXPECT_EQ(with([](auto& need) { need.wanted = 1024; }), 1024) << "there is nothing more to hold";
  EXPECT_EQ(with([](auto& need) { need.wanted = 1; }), 2) << "one to move";
  EXPECT_EQ(with([](auto& need) { need.limit_bytes = 30'099; }), 300);
  EXPECT_EQ(with([](auto& need) { need.limit_bytes = 25'600; }), 256);
  // Half of what is left beside the 256; with 200 of them there already only 56 are to come.
  EXPECT_EQ(with([](auto& need) { need.free_bytes = 26'600; }), 261);
  EXPECT_EQ(with([](auto& need) { need.free_bytes = 26'600, need.here = 200; }), 342);
  EXPECT_EQ(with([](auto& need) { need.free_bytes = 10; }), 256) << "no room: the device says so";
}

TEST_F(ExpertLoaderTest, AFailedLoadLeavesNothingBehind) {
  loader_->start();
  loader_->load(kIncarnation, {1, {{0, {0}}}}, false);
  loaded();
  loader_->load(kIncarnation, {2, {{0, {1}}, {0, {kTinyExperts}}}}, false);
  EXPECT_EQ(failed(), "the model has no expert 12 in MoE layer 0");
  loader_->load(kIncarnation, {3, {{2, {1}}}}, false);
  EXPECT_EQ(failed(), "the model has no expert 1 in MoE layer 2");
  loader_->load(kIncarnation, {4, {{-1, {1}}}}, false);
  EXPECT_EQ(failed(), "the model has no expert 1 in MoE layer -1");
  EXPECT_EQ(held(), 1u);
  // Experts that went in before the fault come out again. Here the slot is taken behind its back.
  auto upload = *kernels::StagedUpload::create(*device_);
  ASSERT_TRUE(shard_->insert(*ExpertReader(model_.tensors).prepare(*shard_, *upload, 1, 4)).ok());
  loader_->load(kIncarnation, {5, {{1, {2, 3, 4}}}}, false);
  EXPECT_NE(failed().find("is loaded already"), std::string::npos);
  EXPECT_FALSE(shard_->holds(1, 2));
  EXPECT_FALSE(shard_->holds(1, 3));
  EXPECT_EQ(held(), 2u);
}

TEST_F(ExpertLoaderTest, AbandonedLoadsAreNotReportedButStay) {
  loader_->start();
  shut_gate();
  loader_->load(kIncarnation, {1, {{0, {0, 1, 2}}}}, false);
  loader_->load(kIncarnation, {2, {{0, {5}}}}, false);
  ASSERT_TRUE(stands_at_gate());
  loader_->abandon();
  open_gate();
  // The first command after it: what was in hand is there and costs nothing.
  loader_->load(kIncarnation + 1, {1, {{0, {0}}}}, false);
  const Reported report = next_report();
  EXPECT_EQ(report.incarnation, kIncarnation + 1);
  EXPECT_EQ(std::get<ExpertsLoaded>(report.message).checksums.size(), 1u);
  EXPECT_EQ(held(), 1u);
  EXPECT_TRUE(reports_.empty());
}

TEST_F(ExpertLoaderTest, AFullQueueRefusesAtOnce) {
  loader_->start();
  shut_gate();
  loader_->load(kIncarnation, {0, {{0, {0}}}}, false);
  ASSERT_TRUE(stands_at_gate());
  for (size_t i = 0; i < ExpertLoader::kMaxCommands; ++i)
    loader_->load(kIncarnation, {1, {{0, {0}}}}, false);
  EXPECT_TRUE(reports_.empty());
  loader_->load(kIncarnation, {2, {{0, {0}}}}, false);
  EXPECT_EQ(failed(), "1024 commands wait already");
  loader_->release(kIncarnation, {3, {{0, {0}}}});
  EXPECT_EQ(failed(), "1024 commands wait already");
  loader_->abandon();
  open_gate();
}

TEST_F(ExpertLoaderTest, StoppedItChangesNothingMore) {
  loader_->start();
  shut_gate();
  loader_->load(kIncarnation, {1, {{0, {0, 1, 2}}}}, false);
  loader_->load(kIncarnation, {2, {{1, {0, 1, 2}}}}, false);
  ASSERT_TRUE(stands_at_gate());
  std::thread stopping([&] { loader_->stop(); });
  open_gate();
  stopping.join();
  const size_t held_at_stop = held();
  EXPECT_GE(held_at_stop, 1u) << "the expert in hand is finished";
  loader_->load(kIncarnation, {3, {{1, {5}}}}, false);
  loader_->stop();
  EXPECT_EQ(held(), held_at_stop);
  EXPECT_FALSE(shard_->holds(1, 5));
}

// The plane takes changes without a server, with one, and with the next one of other bounds.
TEST_F(ExpertLoaderTest, DataPlaneMakesAServerForTheTerms) {
  using expert_parallel::make_loopback_transport;
  auto hub = expert_parallel::make_loopback_hub();
  std::mutex mutex;
  std::vector<uint64_t> lost;
  std::atomic<int> made{0};
  DataPlane plane(
      *device_, *shard_,
      [&](const std::string&) -> absl::StatusOr<std::unique_ptr<expert_parallel::Transport>> {
        ++made;
        return make_loopback_transport(hub);
      },
      [&](uint64_t incarnation, const absl::Status&) {
        std::lock_guard<std::mutex> lock(mutex);
        lost.push_back(incarnation);
      });
  bool changed = false;
  ASSERT_TRUE(plane.change([&] { changed = true; }).ok());
  EXPECT_TRUE(changed);
  auto upload = *kernels::StagedUpload::create(*device_);
  auto prepared = ExpertReader(model_.tensors).prepare(*shard_, *upload, 0, 0);
  ASSERT_TRUE(prepared.ok());

  auto there = make_loopback_transport(hub);
  struct Ignore final : expert_parallel::TransportListener {
    void on_message(expert_parallel::PeerId, uint64_t, std::span<const std::byte>) override {}
    void on_sent(expert_parallel::PeerId, uint64_t, const absl::Status&) override {}
    void on_peer_lost(expert_parallel::PeerId, const absl::Status&) override {}
  } ignore;
  there->set_listener(&ignore);
  Registered terms{
      .rank = 0, .coordinator_id = 4, .num_ranks = 1, .microbatches = 1, .max_rows = 8};
  const auto open = [&](uint64_t incarnation) {
    const auto link = *there->open_link();
    terms.data_address = *there->address(link);
    const auto mine = plane.open(terms, incarnation);
    ASSERT_TRUE(mine.ok()) << mine.status();
    ASSERT_TRUE(there->connect(link, *mine).ok());
  };
  open(1);
  open(2);
  EXPECT_EQ(made, 1);
  ASSERT_TRUE(plane.change([&] { ASSERT_TRUE(shard_->insert(*std::move(prepared)).ok()); }).ok());
  WorkerHeartbeat beat;
  plane.count(&beat);
  EXPECT_EQ(beat.resident_bytes, static_cast<int64_t>(shard_->expert_bytes()));
  terms.max_rows = 16;
  open(3);
  EXPECT_EQ(made, 2);
  plane.close();
  EXPECT_TRUE(lost.empty());
  open(4);
  there.reset();  // the coordinator's process has gone
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (absl::Now() < deadline) {
    ASSERT_TRUE(plane.change([] {}).ok());
    std::lock_guard<std::mutex> lock(mutex);
    if (!lost.empty()) break;
  }
  EXPECT_EQ(lost, (std::vector<uint64_t>{4}));
  terms.data_address = "nonsense";
  EXPECT_FALSE(plane.open(terms, 5).ok());
}

}  // namespace
}  // namespace brigade::runtime::worker
