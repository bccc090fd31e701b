// Two namespaces with addresses of their own, joined by the emulator: TCP and UDP work through it,
// its faults are really applied and counted, and a partition heals. Needs root.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <iostream>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/support/link_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

sockaddr_in address_of(const char* host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, host, &address.sin_addr), 1);
  return address;
}

bool readable(int fd, absl::Duration limit) {
  pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) > 0;
}

std::string read_exactly(int fd, size_t bytes) {
  std::string text;
  char part[16384];
  while (text.size() < bytes && readable(fd, absl::Seconds(30))) {
    const ssize_t size = read(fd, part, std::min(sizeof(part), bytes - text.size()));
    if (size <= 0) break;
    text.append(part, static_cast<size_t>(size));
  }
  return text;
}

void write_all(int fd, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t size = send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    ASSERT_GT(size, 0);
    sent += static_cast<size_t>(size);
  }
}

class LinkEmulator : public ::testing::Test {
 protected:
  void SetUp() override {
    auto bed = LinkBed::create(seed_, {{"a", "b"}});
    if (!bed.ok()) GTEST_SKIP() << "skipped: needs " << bed.status().message();
    bed_ = *std::move(bed);
  }
  void TearDown() override {
    for (const int fd : {at_a_, at_b_}) {
      if (fd >= 0) close(fd);
    }
  }
  int socket_at(const std::string& host, int type, const char* own_address) {
    int fd = -1;
    bed_->inside(host, [&] {
      fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
      const sockaddr_in own = address_of(own_address, 0);
      EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
    });
    return fd;
  }
  static sockaddr_in name_of(int fd) {
    sockaddr_in name{};
    socklen_t size = sizeof(name);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size), 0);
    return name;
  }
  void connect_tcp() {
    const int listener = socket_at("a", SOCK_STREAM, "10.77.1.1");
    ASSERT_EQ(listen(listener, 1), 0);
    at_b_ = socket_at("b", SOCK_STREAM, "10.77.1.2");
    const sockaddr_in to = name_of(listener);
    ASSERT_EQ(connect(at_b_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    at_a_ = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(at_a_, 0);
    close(listener);
  }
  // b to a and back.
  absl::Duration round_trip() {
    const absl::Time start = absl::Now();
    write_all(at_b_, "?");
    EXPECT_EQ(read_exactly(at_a_, 1), "?");
    write_all(at_a_, "!");
    EXPECT_EQ(read_exactly(at_b_, 1), "!");
    return absl::Now() - start;
  }

  const uint64_t seed_ = test_seed();
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, replay_note("link_emulator_test", seed_)};
  std::unique_ptr<LinkBed> bed_;
  int at_a_ = -1, at_b_ = -1;
};

TEST_F(LinkEmulator, TcpArrivesWholeThroughDelayLossAndReordering) {
  connect_tcp();
  const absl::Duration quick = round_trip();
  bed_->set(0, "delay 5");
  const absl::Duration delayed = std::min(round_trip(), round_trip());
  EXPECT_GE(delayed, absl::Milliseconds(10));
  std::cout << "round trip " << quick << ", with 5 ms each way " << delayed << "\n";
  bed_->set(0, "delay 1");
  bed_->set(0, "loss 0.05");
  bed_->set(0, "reorder 0.2");
  std::string text;
  for (int i = 0; i < 200000; ++i) text.push_back(static_cast<char>(i * 7919 >> 3));
  std::thread writer([&] { write_all(at_b_, text); });
  EXPECT_TRUE(read_exactly(at_a_, text.size()) == text);
  writer.join();
  EXPECT_GT(bed_->count(0, "back", "lost"), 0u);
  EXPECT_GT(bed_->count(0, "back", "overtaken"), 0u);
}

TEST_F(LinkEmulator, LosesJustWhatItCounts) {
  at_a_ = socket_at("a", SOCK_DGRAM, "10.77.1.1");
  at_b_ = socket_at("b", SOCK_DGRAM, "10.77.1.2");
  const sockaddr_in to = name_of(at_a_);
  bed_->set(0, "loss 0.25");
  const int packets = 200;
  int received = 0;
  char bytes[100];
  for (int i = 0; i < packets; ++i) {
    ASSERT_EQ(
        sendto(at_b_, bytes, sizeof(bytes), 0, reinterpret_cast<const sockaddr*>(&to), sizeof(to)),
        static_cast<ssize_t>(sizeof(bytes)));
    while (readable(at_a_, absl::ZeroDuration())) received += read(at_a_, bytes, 100) == 100;
  }
  while (bed_->count(0, "back", "seen") < packets) absl::SleepFor(absl::Milliseconds(1));
  while (readable(at_a_, absl::Milliseconds(50))) received += read(at_a_, bytes, 100) == 100;
  const uint64_t lost = bed_->count(0, "back", "lost");
  EXPECT_GT(lost, 10u);
  EXPECT_LT(lost, 90u);
  EXPECT_EQ(received + static_cast<int>(lost), static_cast<int>(bed_->count(0, "back", "seen")));
}

TEST_F(LinkEmulator, APartitionHeals) {
  connect_tcp();
  round_trip();
  bed_->set(0, "cut");
  write_all(at_b_, "into the cut");
  EXPECT_FALSE(readable(at_a_, absl::Milliseconds(300)));
  EXPECT_GT(bed_->count(0, "back", "cut"), 0u);
  bed_->set(0, "heal");
  EXPECT_EQ(read_exactly(at_a_, 12), "into the cut");
}

TEST_F(LinkEmulator, NamespacesGoWithTheBed) {
  const std::string path = "/var/run/netns/" + bed_->namespace_of("a");
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  bed_.reset();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace brigade::tests
