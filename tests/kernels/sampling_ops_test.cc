// Argmax and accepted drafts by hand values, on every device; bad arguments by name. The law itself
// is held against the host's routine in tests/runtime/sampling.
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/sampling.h"
#include "tests/kernels/op_runner.h"

namespace brigade::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::OpRunner;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(ArgmaxRows, TakesTheLowestIdAndRefusesBrokenRows) {
  const std::vector<float> logits = {1,          3,          2,          3,   //
                                     -5,         -2,         -kInfinity, -9,  //
                                     0,          kNan,       9,          1,   //
                                     0,          1,          kInfinity,  1,   //
                                     -kInfinity, -kInfinity, -kInfinity, -kInfinity};
  for (const DeviceKind kind : tests::device_kinds()) {
    OpRunner runner(kind, 2);
    const size_t bytes = argmax_scratch_bytes(5, 4);
    const Buffer logits_at = runner.upload(logits), ids = runner.allocate(5 * sizeof(int32_t)),
                 scratch = runner.allocate(bytes);
    OpRunner::expect_ok(argmax_rows(runner.stream(), {.logits = logits_at.as<float>(),
                                                      .ids = ids.as<int32_t>(),
                                                      .rows = 5,
                                                      .vocab = 4,
                                                      .scratch = scratch.data(),
                                                      .scratch_bytes = bytes}));
    EXPECT_THAT(runner.download<int32_t>(ids), ElementsAre(1, 1, kNoToken, kNoToken, kNoToken));
  }
}

TEST(AcceptDrafts, CountsUpToTheFirstDifference) {
  const std::vector<int32_t> drawn = {7, 8, 9, /**/ 5, 6, /**/ 1, 2, 3, 4}, first_row = {0, 3, 5},
                             drafts = {7, 9, 0, /**/ 5, 0, 0, /**/ 1, 2, 3}, num_drafts = {2, 1, 3};
  for (const DeviceKind kind : tests::device_kinds()) {
    OpRunner runner(kind, 1);
    const Buffer drawn_at = runner.upload(drawn), first_at = runner.upload(first_row),
                 drafts_at = runner.upload(drafts), num_at = runner.upload(num_drafts),
                 accepted = runner.allocate(12), next = runner.allocate(12);
    OpRunner::expect_ok(accept_drafts(runner.stream(), {.drawn = drawn_at.as<int32_t>(),
                                                        .first_row = first_at.as<int32_t>(),
                                                        .drafts = drafts_at.as<int32_t>(),
                                                        .num_drafts = num_at.as<int32_t>(),
                                                        .accepted = accepted.as<int32_t>(),
                                                        .next_token = next.as<int32_t>(),
                                                        .sequences = 3,
                                                        .max_drafts = 3,
                                                        .rows = 9}));
    EXPECT_THAT(runner.download<int32_t>(accepted), ElementsAre(1, 1, 3));
    EXPECT_THAT(runner.download<int32_t>(next), ElementsAre(8, 6, 4));
  }
}

TEST(SamplingOps, NameTheFieldThatDoesNotFit) {
  OpRunner runner(DeviceKind::kCpu, 1);
  float logits[4] = {};
  int32_t ids[4];
  EXPECT_THAT(std::string(argmax_rows(runner.stream(), {.rows = 1}).message()), HasSubstr("vocab"));
  const ArgmaxRowsArgs small{.logits = logits, .ids = ids, .rows = 1, .vocab = 4, .scratch = ids};
  EXPECT_THAT(std::string(argmax_rows(runner.stream(), small).message()),
              HasSubstr("scratch_bytes"));
  EXPECT_THAT(std::string(policy(runner.stream(), {.rows = 1, .vocab = 1 << 25}).message()),
              HasSubstr("vocab is above"));
  EXPECT_THAT(std::string(policy(runner.stream(),
                                 {.logits = logits, .rows = 1, .vocab = 4, .max_candidates = 4})
                              .message()),
              HasSubstr("settings"));
  EXPECT_THAT(
      std::string(policy(runner.stream(), {.rows = 1, .vocab = 4, .max_candidates = 5}).message()),
      HasSubstr("max_candidates is above vocab"));
  EXPECT_THAT(std::string(accept_drafts(runner.stream(), {.sequences = 2, .rows = 1}).message()),
              HasSubstr("rows"));
}

}  // namespace
}  // namespace brigade::kernels
