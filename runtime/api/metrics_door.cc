#include "runtime/api/metrics_door.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prometheus/exposer.h"

namespace brigade::runtime {
namespace {

// The closing tells no one when a visit has been heard, so it is visited until it has ended, at the
// latest after the server's own two seconds; the pause keeps that from spinning.
constexpr std::chrono::milliseconds kBetweenVisits{2};

// Without the brackets of an IPv6 address; nothing for a wildcard, which stands for loopback then.
std::string host_to_dial(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return host == "0.0.0.0" || host == "::" ? "" : host;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsDoor>> MetricsDoor::open(const std::string& address) {
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address, /*num_threads=*/1);
    return std::unique_ptr<MetricsDoor>(new MetricsDoor(std::move(exposer), host_to_dial(address)));
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("--metrics-listen ", address, ": cannot listen there: ", error.what()));
  }
}

MetricsDoor::MetricsDoor(std::unique_ptr<prometheus::Exposer> exposer, const std::string& host)
    : exposer_(std::move(exposer)), host_(host), port_(exposer_->GetListeningPorts().at(0)) {}

// The HTTP server hears that it is to stop when somebody comes, else every two seconds only.
MetricsDoor::~MetricsDoor() {
  std::atomic<bool> closed{false};
  std::thread closing([&] {
    exposer_.reset();
    closed = true;
  });
  while (!closed) {
    visit();
    std::this_thread::sleep_for(kBetweenVisits);
  }
  closing.join();
}

void MetricsDoor::show(const std::weak_ptr<prometheus::Collectable>& metrics) {
  exposer_->RegisterCollectable(metrics);
}

// Knocks and goes; whether anybody opens does not matter.
void MetricsDoor::visit() const {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(port_);
  if (getaddrinfo(host_.empty() ? nullptr : host_.c_str(), port.c_str(), &hints, &found) != 0)
    return;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    (void)!connect(fd, each->ai_addr, each->ai_addrlen);
    close(fd);
  }
  freeaddrinfo(found);
}

}  // namespace brigade::runtime
