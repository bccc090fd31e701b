#include "runtime/app/draft_port.h"

#include "kernels/core/status.h"
#include "runtime/app/port_file.h"
#include "spdlog/spdlog.h"

namespace brigade::runtime {

DraftPort::DraftPort(const Tokenizer* tokenizer)
    : links_({.tokenizer = tokenizer,
              .log = [](const std::string& line) { spdlog::info("{}", line); }}),
      service_(links_) {
  service_.start();
}

DraftPort::~DraftPort() {
  stop();
  log_counters();  // the engine has gone
}

absl::Status DraftPort::listen(const CoordinatorConfig& config) {
  ASSIGN_OR_RETURN(server_, ControlServer::start(control_door(config), *service_.service()));
  spdlog::info("draft workers join at {}", server_->address());
  return write_port_file(config.cluster.control_port_file, server_->port(), "--control-port-file");
}

void DraftPort::stop() {
  if (server_ != nullptr) server_->stop();
  service_.stop();
}

void DraftPort::log_counters() const {
  const RemoteDraftsCounters counters = links_.counters();
  if (counters.opened == 0) return;
  spdlog::info(
      "draft workers: {} sequences, {} opened again; {} drafts verified, {} of them made before "
      "the "
      "verdict before; {} committed as drafted, {} dropped; {} bad, {} refused, {} lost{}{}",
      counters.opened, counters.reopened, counters.offered, counters.ahead, counters.matched,
      counters.dropped, counters.bad, counters.refused, counters.lost,
      counters.last_fault.empty() ? "" : "; last: ", counters.last_fault);
}

}  // namespace brigade::runtime
