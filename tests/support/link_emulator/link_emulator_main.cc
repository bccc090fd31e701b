// Joins network namespaces by links with faults: link_emulator SEED NAME-A NAME-B [NAME-A NAME-C
// ...] Makes the namespaces and, for the i-th pair, TUN devices tun<i> in both, with the addresses
// 10.77.<i+1>.1 and 10.77.<i+1>.2; packets travel through this program. It prints "ready" and then
// takes commands, one a line, each answered by one line:
//   LINK delay MS | jitter MS | loss CHANCE | reorder CHANCE | cut | heal | counts
// At the end of its input it removes the namespaces and ends; so nothing is left behind when the
// test that started it dies. Exit code 3: this machine does not let us make such things.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/support/link_emulator/link_direction.h"
#include "tests/support/link_emulator/tun_device.h"

namespace brigade::tests {
namespace {

struct Link {
  Link(int a, int b, uint64_t seed) : fds{a, b}, there(seed), back(seed + 1) {}
  int fds[2];
  LinkDirection there, back;
};

std::string counts_of(const char* name, const LinkCounts& c) {
  return absl::StrCat(name, " seen=", c.seen, " passed=", c.passed, " lost=", c.lost,
                      " cut=", c.cut, " overflowed=", c.overflowed, " held_back=", c.held_back,
                      " overtaken=", c.overtaken);
}

std::string obey(std::vector<std::unique_ptr<Link>>& links, const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  size_t index = 0;
  double value = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[0], &index) || index >= links.size() ||
      (words.size() == 3 && (!absl::SimpleAtod(words[2], &value) || value < 0)))
    return "not understood: " + line;
  Link& link = *links[index];
  const std::string& verb = words[1];
  if (verb == "counts") {
    return absl::StrCat(counts_of("there", link.there.counts()), " ",
                        counts_of("back", link.back.counts()));
  }
  for (LinkFaults* faults : {&link.there.faults(), &link.back.faults()}) {
    if (verb == "delay") {
      faults->delay = absl::Milliseconds(value);
    } else if (verb == "jitter") {
      faults->jitter = absl::Milliseconds(value);
    } else if (verb == "loss") {
      faults->loss = value;
    } else if (verb == "reorder") {
      faults->reorder = value;
    } else if (verb == "cut" || verb == "heal") {
      faults->cut = verb == "cut";
    } else {
      return "not understood: " + line;
    }
  }
  return "done";
}

// At most a queue's worth at a time, so that no device starves the others.
void read_packets(int fd, LinkDirection& direction) {
  char bytes[65536];
  for (int i = 0; i < 64; ++i) {
    const ssize_t size = read(fd, bytes, sizeof(bytes));
    if (size <= 0) return;
    if ((bytes[0] & 0xf0) != 0x40)
      continue;  // IPv4 only: the kernel says things of its own in IPv6
    direction.put(std::string(bytes, static_cast<size_t>(size)), absl::Now());
  }
}

void write_due(int fd, LinkDirection& direction) {
  std::string packet;
  while (direction.take(absl::Now(), &packet)) {
    // A device that does not take a packet drops it, as a full interface does.
    [[maybe_unused]] const ssize_t written = write(fd, packet.data(), packet.size());
  }
}

// Until the input ends.
void forward(std::vector<std::unique_ptr<Link>>& links) {
  std::vector<pollfd> descriptors = {{STDIN_FILENO, POLLIN, 0}};
  for (const auto& link : links) {
    for (const int fd : link->fds) descriptors.push_back({fd, POLLIN, 0});
  }
  std::string commands;
  while (true) {
    absl::Time next = absl::Now() + absl::Seconds(1);
    for (const auto& link : links)
      next = std::min({next, link->there.next_due(), link->back.next_due()});
    const timespec timeout = absl::ToTimespec(std::max(absl::ZeroDuration(), next - absl::Now()));
    if (ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr) < 0 && errno != EINTR)
      return;
    if (descriptors[0].revents != 0) {
      char bytes[4096];
      const ssize_t size = read(STDIN_FILENO, bytes, sizeof(bytes));
      if (size <= 0) return;
      commands.append(bytes, static_cast<size_t>(size));
      for (size_t end; (end = commands.find('\n')) != std::string::npos;) {
        std::cout << obey(links, commands.substr(0, end)) << std::endl;
        commands.erase(0, end + 1);
      }
    }
    for (const auto& link : links) {
      read_packets(link->fds[0], link->there);
      read_packets(link->fds[1], link->back);
      write_due(link->fds[1], link->there);
      write_due(link->fds[0], link->back);
    }
  }
}

absl::Status emulate(uint64_t seed, const std::vector<std::string>& names) {
  std::map<std::string, std::unique_ptr<NetworkNamespace>> namespaces;
  for (const std::string& name : names) {
    if (namespaces.count(name) > 0) continue;
    absl::StatusOr<NetworkNamespace> made = NetworkNamespace::create(name);
    if (!made.ok()) return made.status();
    namespaces[name] = std::make_unique<NetworkNamespace>(*std::move(made));
  }
  std::vector<std::unique_ptr<Link>> links;
  for (size_t i = 0; i + 1 < names.size(); i += 2) {
    const std::string device = absl::StrCat("tun", i / 2), net = absl::StrCat("10.77.", i / 2 + 1);
    const absl::StatusOr<int> a = namespaces[names[i]]->open_tun(device, net + ".1", net + ".2",
                                                                 /*routes_all=*/false),
                              b = namespaces[names[i + 1]]->open_tun(device, net + ".2", net + ".1",
                                                                     /*routes_all=*/true);
    if (!a.ok()) return a.status();
    if (!b.ok()) return b.status();
    links.push_back(std::make_unique<Link>(*a, *b, seed + 2 * i));
  }
  std::cout << "ready" << std::endl;
  forward(links);
  return absl::OkStatus();
}

int main_of(const std::vector<std::string>& arguments) {
  uint64_t seed = 0;
  if (arguments.size() < 3 || arguments.size() % 2 == 0 || !absl::SimpleAtoi(arguments[0], &seed)) {
    std::cerr << "link_emulator SEED NAME-A NAME-B [NAME-A NAME-C ...]\n";
    return 2;
  }
  // Ends by its input only, so that it always cleans up.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_IGN);
  sweep_namespaces("brigade-");
  const absl::Status status =
      emulate(seed, std::vector<std::string>(arguments.begin() + 1, arguments.end()));
  if (status.ok()) return 0;
  std::cerr << status.message() << "\n";
  return 3;
}

}  // namespace
}  // namespace brigade::tests

int main(int argc, char** argv) {
  return brigade::tests::main_of(std::vector<std::string>(argv + 1, argv + argc));
}
