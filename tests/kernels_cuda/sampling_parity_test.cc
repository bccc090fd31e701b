// Argmax, the law of a row and accepted drafts on CUDA against the CPU.
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/sampling.h"
#include "tests/kernels_cuda/parity.h"
#include "tests/support/policy_case.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using tests::expect_parity;
using tests::PolicyCase;
using tests::Tensors;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SamplingParity, Argmax) {
  std::mt19937_64 random(tests::test_seed());
  for (const int vocab : {1, 7, 1000, 4096, 20001, 20004}) {
    for (const int rows : {1, 9}) {
      SCOPED_TRACE(::testing::Message() << "[" << rows << ", " << vocab << "]");
      auto logits = tests::random_floats(random, size_t(rows) * vocab);
      const auto row = [&](int r) { return logits.begin() + int64_t{r} * vocab; };
      if (rows > 8) {
        std::fill(row(0), row(1), 1.5f);        // all equal
        std::fill(row(1), row(2), -kInfinity);  // nothing finite
        row(2)[vocab / 2] = kInfinity;
        row(3)[vocab - 1] = std::numeric_limits<float>::quiet_NaN();
        row(4)[vocab - 1] = row(4)[vocab / 2] = 50;  // a tie in different pieces
        for (int i = 0; i < vocab; ++i) row(5)[i] = i % 2 == 0 ? -0.0f : 0.0f;
        std::fill(row(6), row(7), -kInfinity);
        row(6)[vocab - 1] = -std::numeric_limits<float>::max();
      }
      expect_parity(argmax_rows, [&](Tensors& t) {
        const size_t bytes = argmax_scratch_bytes(rows, vocab);
        return ArgmaxRowsArgs{.logits = t.in(logits),
                              .ids = t.out<int32_t>(rows),
                              .rows = rows,
                              .vocab = vocab,
                              .scratch = t.scratch(bytes),
                              .scratch_bytes = bytes};
      });
    }
  }
}

// tokens and probabilities past the count are undefined: only what is defined is compared.
void expect_law_parity(const PolicyCase& c, int most = 0) {
  const auto run = [&](tests::OpRunner& runner) { return c.run(runner, most); };
  tests::OpRunner cpu(DeviceKind::kCpu, 1);
  const auto expected = run(cpu);
  for (const uint64_t order : tests::thread_orders()) {
    tests::use_thread_order(order);
    tests::OpRunner cuda(tests::create_device_under_test());
    const auto actual = run(cuda);
    for (size_t row = 0; row < expected.size(); ++row) {
      ASSERT_EQ(actual[row].tokens, expected[row].tokens)
          << "row " << row << " order " << order << ": " << c.describe(row);
      ASSERT_EQ(actual[row].probabilities, expected[row].probabilities)
          << "row " << row << " order " << order << ": " << c.describe(row);
    }
  }
}

TEST(SamplingParity, LawOfARow) {
  std::mt19937_64 random(tests::test_seed());
  for (const int vocab : {1, 37, 600, 1500}) {
    SCOPED_TRACE(::testing::Message()
                 << "vocab " << vocab << ", "
                 << tests::replay_note("cuda_parity_test", tests::test_seed()));
    const PolicyCase c = PolicyCase::random(random, vocab, tests::scaled(24, 12));
    expect_law_parity(c);
    if (vocab == 600) expect_law_parity(c, 40);  // the first of each law
  }
}

TEST(SamplingParity, AcceptedDrafts) {
  std::mt19937_64 random(tests::test_seed());
  constexpr int kSequences = 130, kMaxDrafts = 5;
  std::vector<int32_t> first_row, num_drafts, drawn, drafts(kSequences * kMaxDrafts);
  for (int32_t& draft : drafts) draft = static_cast<int32_t>(random() % 2);
  for (int s = 0; s < kSequences; ++s) {
    first_row.push_back(static_cast<int32_t>(drawn.size()));
    num_drafts.push_back(s % (kMaxDrafts + 1));
    for (int i = 0; i <= num_drafts[s]; ++i) drawn.push_back(static_cast<int32_t>(random() % 2));
  }
  expect_parity(accept_drafts, [&](Tensors& t) {
    return AcceptDraftsArgs{.drawn = t.in(drawn),
                            .first_row = t.in(first_row),
                            .drafts = t.in(drafts),
                            .num_drafts = t.in(num_drafts),
                            .accepted = t.out<int32_t>(kSequences),
                            .next_token = t.out<int32_t>(kSequences),
                            .sequences = kSequences,
                            .max_drafts = kMaxDrafts,
                            .rows = static_cast<int>(drawn.size())};
  });
}

}  // namespace
}  // namespace brigade::kernels
