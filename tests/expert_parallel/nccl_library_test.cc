// NCCL's functions as brigade_cuda.so has them: passed on to the machine's library, or errors that
// say what is missing. No GPU: only calls that need none.
#include <gtest/gtest.h>
#include <nccl.h>

#include <string>

namespace {

TEST(NcclLibrary, AnswersOrSaysWhatIsMissing) {
  int version = -1;
  const ncclResult_t got = ncclGetVersion(&version);
  const std::string text = ncclGetErrorString(got);
  if (got == ncclSuccess) {
    EXPECT_EQ(version / 10000, NCCL_MAJOR);
    EXPECT_EQ(text, "no error");
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "no group was started";
    return;
  }
  std::printf("[  missing ] %s\n", text.c_str());
  EXPECT_EQ(version, -1);
  EXPECT_NE(text.find("libnccl.so.2"), std::string::npos) << text;
  EXPECT_EQ(ncclGroupStart(), ncclSystemError);
  EXPECT_STREQ(ncclGetLastError(nullptr), "");
}

}  // namespace
