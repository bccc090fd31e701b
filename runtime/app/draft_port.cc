#include "runtime/app/draft_port.h"

#include "kernels/core/status.h"
#include "runtime/app/port_file.h"
#include "spdlog/spdlog.h"

namespace brigade::runtime {

DraftPort::DraftPort(const Tokenizer* tokenizer)
    : links_({.tokenizer = tokenizer}), service_(links_) {
  service_.start();
}

DraftPort::~DraftPort() { stop(); }

absl::Status DraftPort::listen(const CoordinatorConfig& config) {
  ASSIGN_OR_RETURN(server_, ControlServer::start(control_door(config), *service_.service()));
  spdlog::info("draft workers join at {}", server_->address());
  return write_port_file(config.cluster.control_port_file, server_->port(), "--control-port-file");
}

void DraftPort::stop() {
  if (server_ != nullptr) server_->stop();
  service_.stop();
}

}  // namespace brigade::runtime
