// The numerics probe: one number for every machine that computes the same bits, another one as soon
// as a single bit differs anywhere.
#include "kernels/ops/numerics_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/simd_targets.h"

namespace brigade::kernels {
namespace {

std::vector<ProbeOutput> run(DeviceKind kind, int threads) {
  const auto device = *Device::create(kind, threads);
  auto outputs = run_numerics_probe(*device);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs.ok() ? *std::move(outputs) : std::vector<ProbeOutput>();
}

// The number is part of the contract: it changes only when the kernels' bits or the probe do, and
// then processes of both sorts refuse each other.
constexpr uint64_t kKnownProbe = 0xF96C3B80D57C68C0;

TEST(NumericsProbeTest, SameOnEveryTargetThreadCountAndDevice) {
  for (const std::string& target : simd_targets()) {
    ASSERT_TRUE(force_simd_target(target));
    for (const int threads : {1, 2}) {
      for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCpuAsync}) {
        EXPECT_EQ(hash_probe(run(kind, threads)), kKnownProbe) << target << " threads " << threads;
      }
    }
  }
  force_simd_target("");
}

TEST(NumericsProbeTest, AnyChangedBitChangesIt) {
  std::vector<ProbeOutput> outputs = run(DeviceKind::kCpu, 1);
  const uint64_t probe = hash_probe(outputs);
  std::set<uint64_t> seen = {probe};
  size_t tried = 0;
  for (ProbeOutput& output : outputs) {
    for (const size_t at : {size_t{0}, output.bytes.size() / 2, output.bytes.size() - 1}) {
      output.bytes[at] ^= 1;
      seen.insert(hash_probe(outputs));
      output.bytes[at] ^= 1;
      ++tried;
    }
  }
  EXPECT_EQ(seen.size(), 1 + tried);
  EXPECT_EQ(hash_probe(outputs), probe);
}

// A piece that gives nothing, or NaN, would hide a difference.
TEST(NumericsProbeTest, EveryPieceGivesNumbers) {
  const std::vector<ProbeOutput> outputs = run(DeviceKind::kCpu, 1);
  std::set<std::string> names;
  for (const ProbeOutput& output : outputs) {
    EXPECT_TRUE(names.insert(output.name).second) << output.name;
    std::set<uint8_t> distinct(output.bytes.begin(), output.bytes.end());
    EXPECT_GT(distinct.size(), 5u) << output.name;
    const bool narrow =
        absl::EndsWith(output.name, "to bf16") || absl::StartsWith(output.name, "rope KV") ||
        absl::StartsWith(output.name, "exp") || absl::StartsWith(output.name, "argmax");
    for (size_t i = 0; !narrow && i + sizeof(float) <= output.bytes.size(); i += sizeof(float)) {
      float value;
      std::memcpy(&value, &output.bytes[i], sizeof(value));
      ASSERT_TRUE(std::isfinite(value)) << output.name << " element " << i / sizeof(float);
    }
  }
  for (const char* kernel : {"matmul", "expert_ffn", "rms_norm", "rope q", "rope KV", "attention",
                             "router", "combine", "embedding", "exp", "argmax"}) {
    const auto has = [&](const std::string& name) { return absl::StartsWith(name, kernel); };
    EXPECT_TRUE(std::any_of(names.begin(), names.end(), has)) << kernel;
  }
}

TEST(NumericsProbeTest, IdKnowsTheDtypes) {
  std::set<uint64_t> ids;
  for (const uint64_t probe : {1u, 2u}) {
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      for (const DType kv : {DType::kF32, DType::kBF16, DType::kF16}) {
        ids.insert(numerics_id(probe, wire, kv));
      }
    }
  }
  EXPECT_EQ(ids.size(), 12u);
  EXPECT_EQ(numerics_text(0x1f, DType::kF32, DType::kBF16),
            "probe 000000000000001f, wire f32, KV bf16");
}

TEST(NumericsProbeTest, IsQuick) {
  run(DeviceKind::kCpu, 1);
  absl::Duration best = absl::InfiniteDuration();
  for (int i = 0; i < 5; ++i) {
    const absl::Time begin = absl::Now();
    run(DeviceKind::kCpu, 1);
    best = std::min(best, absl::Now() - begin);
  }
  RecordProperty("milliseconds", absl::FormatDuration(best));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(best, absl::Milliseconds(50));
#endif
}

}  // namespace
}  // namespace brigade::kernels
