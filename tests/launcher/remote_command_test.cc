// Words and quotes on the way to another host, read back by a real shell.
#include "launcher/supervisor/remote_command.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"

namespace brigade::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::string> kAwkward = {
    "/opt/my programs/it's", "plain", "", "a b", "$HOME `id` \"x\"", "*", "back\\slash", "a\nb", "~"};

TEST(SplitWords, AsAShellDoes) {
  EXPECT_THAT(*split_words("ssh {host}"), ElementsAre("ssh", "{host}"));
  EXPECT_THAT(*split_words("  ssh  -o 'ProxyCommand=nc %h %p'\t\"a \\\"b\\\" \\n\" c\\ d '' "),
              ElementsAre("ssh", "-o", "ProxyCommand=nc %h %p", "a \"b\" \\n", "c d", ""));
  EXPECT_TRUE(split_words("")->empty());
  EXPECT_EQ(split_words("ssh 'x").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RemoteCommand, SshGetsOneQuotedString) {
  const auto words = remote_command("ssh -p 22 {host}", {"b", "10.0.0.2"}, {"/x/w", "--name", "a b"});
  EXPECT_THAT(*words, ElementsAre("ssh", "-p", "22", "b", "exec /x/w --name 'a b'"));
  EXPECT_THAT(*remote_command("/usr/bin/ssh {address}", {"b", "10.0.0.2"}, {"w"}),
              ElementsAre("/usr/bin/ssh", "10.0.0.2", "exec w"));
}

TEST(RemoteCommand, OthersGetWords) {
  EXPECT_THAT(*remote_command("ip netns exec {host}", {"b", "10.0.0.2"}, {"/x/w", "a b"}),
              ElementsAre("ip", "netns", "exec", "b", "/x/w", "a b"));
}

TEST(RemoteCommand, PlaceholderGetsTheQuotedString) {
  EXPECT_THAT(*remote_command("docker exec -i {host} sh -c {command}", {"b", ""}, {"w", "a b"}),
              ElementsAre("docker", "exec", "-i", "b", "sh", "-c", "exec w 'a b'"));
}

TEST(RemoteCommand, Faults) {
  EXPECT_THAT(std::string(remote_command("", {"b", ""}, {"w"}).status().message()),
              HasSubstr("launch.remote_shell"));
  EXPECT_THAT(std::string(remote_command("ssh '", {"b", ""}, {"w"}).status().message()),
              HasSubstr("launch.remote_shell: a quote is not closed"));
}

// The words arrive unchanged through a shell that joins and parses them, as sshd's does.
TEST(RemoteCommand, ARealShellReadsTheWordsBack) {
  std::vector<std::string> argv = {"/usr/bin/printf", "[%s]"};
  argv.insert(argv.end(), kAwkward.begin(), kAwkward.end());
  auto words = *remote_command("ssh {host}", {"b", ""}, argv);
  tests::ChildProcess shell({"/bin/sh", "-c", words.back()});
  std::string expected;
  for (const std::string& word : kAwkward) expected += "[" + word + "]";
  EXPECT_EQ(shell.read_all(), expected);
}

}  // namespace
}  // namespace brigade::launcher
