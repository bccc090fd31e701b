#include "tests/support/worker_links_bed.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "expert_parallel/exchange/local_exchange.h"
#include "expert_parallel/transport/ucx_transport.h"
#include "gtest/gtest.h"
#include "kernels/core/check.h"
#include "runtime/model/weights.h"
#include "tests/support/test_env.h"

namespace brigade::tests {

using namespace expert_parallel;

namespace {

absl::Time soon() { return absl::Now() + absl::Seconds(30); }

template <typename T>
T value_of(absl::StatusOr<T> result) {
  EXPECT_TRUE(result.ok()) << result.status();
  CHECK(result.ok());
  return *std::move(result);
}

void put_experts(const std::vector<std::vector<int>>& experts,
                 google::protobuf::RepeatedPtrField<v1::ExpertRange>* to) {
  for (size_t layer = 0; layer < experts.size(); ++layer) {
    v1::ExpertRange& range = *to->Add();
    range.set_moe_layer(static_cast<int64_t>(layer));
    for (const int expert : experts[layer]) range.add_experts(expert);
  }
}

}  // namespace

WorkerLinksBed::WorkerLinksBed(const std::string& model_folder)
    : model_(value_of(runtime::open_model(model_folder))), random_(test_seed()) {
  geometry_ = value_of(runtime::expert_geometry(model_.spec, model_.tensors, kernels::DType::kF32));
  device_ = value_of(kernels::Device::create(kernels::DeviceKind::kCpu, 1));
  stream_ = value_of(device_->create_stream());
  whole_ = value_of(ExpertShard::create(*device_, geometry_));
  auto upload = value_of(kernels::StagedUpload::create(*device_));
  runtime::WeightUploader uploader(*upload, {}, nullptr);
  EXPECT_TRUE(runtime::load_experts(model_.tensors, *whole_, uploader).ok());
  links_ = std::make_unique<WorkerLinks>(
      value_of(make_ucx_transport({.net_devices = "lo"})),
      WorkerLinksConfig{.session = session_,
                        .incarnation = 7,
                        .limits = {.hidden = geometry_.hidden,
                                   .experts = geometry_.experts,
                                   .moe_layers = geometry_.moe_layers,
                                   .max_slots = kMaxRows * geometry_.top_k},
                        .num_ranks = 1},
      [](Rank, uint64_t, const absl::Status&) {});
  exchange_ = value_of(ClusterExchange::create(*device_, *links_, nullptr,
                                               {.geometry = geometry_, .max_rows = kMaxRows}));
  local_ = value_of(make_local_exchange(*device_, *whole_, kMaxRows));
  links_->start();
}

WorkerLinksBed::~WorkerLinksBed() { exchange_.reset(); }

bool WorkerLinksBed::admit(ScriptedCoordinator::Session& session) {
  const uint64_t incarnation = session.registration().incarnation();
  EXPECT_TRUE(links_->close(0, soon()).ok());
  v1::CoordinatorMessage message;
  v1::Registered& registered = *message.mutable_registered();
  registered.set_data_address(value_of(links_->open(0, incarnation, soon())));
  registered.set_coordinator_id(session_.coordinator_id);
  registered.set_session_secret(session_.secret.data(), session_.secret.size());
  registered.set_coordinator_incarnation(links_->self().incarnation);
  registered.set_heartbeat_interval_ms(100);
  registered.set_lost_after_ms(1000);
  registered.set_num_ranks(1);
  registered.set_microbatches(1);
  registered.set_max_rows(kMaxRows);
  session.say(message);
  const auto ready = session.next();
  if (!ready || !ready->has_link_ready() ||
      !links_->connect(0, ready->link_ready().data_address(), soon()).ok())
    return false;
  message.mutable_link_connected();
  session.say(message);
  std::vector<std::vector<std::vector<Rank>>> replicas(
      geometry_.moe_layers, std::vector<std::vector<Rank>>(geometry_.experts, {0}));
  auto view = std::make_shared<ClusterView>();
  view->placement =
      std::make_shared<const Placement>(value_of(Placement::create(1, std::move(replicas), 1)));
  view->incarnation = {incarnation};
  return exchange_->set_view(view).ok();
}

v1::WorkerMessage WorkerLinksBed::load(ScriptedCoordinator::Session& session,
                                       const std::vector<std::vector<int>>& experts) {
  v1::CoordinatorMessage message;
  message.mutable_load()->set_command(next_command_);
  put_experts(experts, message.mutable_load()->mutable_experts());
  session.say(message);
  const v1::WorkerMessage answer = session.next().value_or(v1::WorkerMessage());
  const int64_t command =
      answer.has_loaded() ? answer.loaded().command() : answer.load_failed().command();
  EXPECT_EQ(command, next_command_++) << answer.ShortDebugString();
  if (!answer.has_loaded()) return answer;
  int at = 0;
  for (size_t layer = 0; layer < experts.size(); ++layer) {
    for (const int expert : experts[layer]) {
      EXPECT_EQ(answer.loaded().checksums(at++),
                *whole_->checksum(static_cast<int>(layer), expert));
    }
  }
  EXPECT_EQ(answer.loaded().checksums_size(), at);
  return answer;
}

void WorkerLinksBed::release(ScriptedCoordinator::Session& session,
                             const std::vector<std::vector<int>>& experts) {
  v1::CoordinatorMessage message;
  message.mutable_release()->set_command(next_command_++);
  put_experts(experts, message.mutable_release()->mutable_experts());
  session.say(message);
}

std::string WorkerLinksBed::compare(int moe_layer, const std::vector<int>& experts) {
  const int rows = 1 + static_cast<int>(random_() % kMaxRows);
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t(rows) * geometry_.hidden);
  for (float& value : x) value = normal(random_);
  std::vector<int32_t> chosen;
  std::vector<int> order = experts;
  for (int row = 0; row < rows; ++row) {
    std::shuffle(order.begin(), order.end(), random_);
    chosen.insert(chosen.end(), order.begin(), order.begin() + geometry_.top_k);
  }
  const LayerRows layer{moe_layer, x.data(), chosen.data(), rows};
  kernels::Waker waker;
  if (const auto status = exchange_->begin(*stream_, layer, &waker); !status.ok())
    return std::string(status.message());
  const absl::Time deadline = soon();
  while (true) {
    const absl::StatusOr<bool> done = exchange_->poll();
    if (!done.ok()) return std::string(done.status().message());
    if (*done) break;
    if (!waker.wait_until(deadline)) return "no answer";
  }
  if (!exchange_->parked_rows().empty()) return "rows were parked";
  if (!local_->begin(*stream_, layer, nullptr).ok() || !*local_->poll()) return "no local answer";
  const size_t bytes = chosen.size() * geometry_.hidden * sizeof(float);
  return std::memcmp(exchange_->answers(), local_->answers(), bytes) == 0 ? "" : "bits differ";
}

}  // namespace brigade::tests
