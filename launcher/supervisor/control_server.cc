#include "launcher/supervisor/control_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <cstdio>
#include <istream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/supervisor/control_messages.h"
#include "launcher/supervisor/control_socket.h"
#include "launcher/supervisor/state_folder.h"
#include "launcher/supervisor/supervisor.h"

namespace brigade::launcher {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Protocol = asio::local::stream_protocol;

constexpr int kMaxConnections = 16;
constexpr size_t kMaxRequest = 4096;
constexpr auto kPatience = std::chrono::seconds(5);

}  // namespace

// Accepts while fewer than kMaxConnections are open. Handlers share it; it refers to the supervisor
// only while `supervisor` is set.
struct ControlServer::Listener : std::enable_shared_from_this<ControlServer::Listener> {
  Listener(asio::io_context& io, Supervisor* supervisor)
      : acceptor(io), supervisor(supervisor), io(io) {}

  struct Connection {
    explicit Connection(Protocol::socket accepted)
        : socket(std::move(accepted)), patience(socket.get_executor()), input(kMaxRequest) {}
    Protocol::socket socket;
    asio::steady_timer patience;
    asio::streambuf input;
    std::string output;
  };

  void accept() {
    acceptor.async_accept(
        [self = shared_from_this()](const error_code& error, Protocol::socket socket) {
          if (self->supervisor == nullptr || error == asio::error::operation_aborted) return;
          if (!error) {
            ++self->open;
            self->converse(std::make_shared<Connection>(std::move(socket)));
          }
          if (self->open < kMaxConnections) self->accept();
        });
  }

  void converse(const std::shared_ptr<Connection>& connection) {
    connection->patience.expires_after(kPatience);
    connection->patience.async_wait([connection](const error_code& error) {
      error_code ignored;
      if (!error) connection->socket.close(ignored);
    });
    asio::async_read_until(
        connection->socket, connection->input, '\n',
        [self = shared_from_this(), connection](const error_code& error, size_t) {
          if (error || self->supervisor == nullptr) return self->end(*connection);
          std::string line;
          std::istream text(&connection->input);
          std::getline(text, line);
          self->handle(line, connection);
        });
  }

  void handle(const std::string& line, const std::shared_ptr<Connection>& connection) {
    const auto request = parse_request(line);
    if (!request.ok()) return answer(request.status(), connection);
    if (request->verb == "ps") {
      return supervisor->refresh(
          [self = shared_from_this(), connection] { self->answer(absl::OkStatus(), connection); });
    }
    absl::Status status;
    if (request->verb == "down") {
      supervisor->stop();
    } else if (request->verb == "kill") {
      supervisor->kill();
    } else if (request->verb == "restart") {
      status = supervisor->restart(request->process);
    } else {
      status = absl::InvalidArgumentError(absl::StrCat("unknown verb \"", request->verb, "\""));
    }
    answer(status, connection);
  }

  void answer(const absl::Status& status, const std::shared_ptr<Connection>& connection) {
    ControlAnswer answer = {.status = status};
    if (supervisor != nullptr) {
      if (supervisor->plan().api.port != 0) answer.api = supervisor->plan().api.text();
      answer.stop_limit_seconds = absl::ToDoubleSeconds(supervisor->stop_limit());
      answer.processes = supervisor->report();
    }
    connection->output = to_line(answer);
    asio::async_write(connection->socket, asio::buffer(connection->output),
                      [self = shared_from_this(), connection](const error_code&, size_t) {
                        self->end(*connection);
                      });
  }

  void end(Connection& connection) {
    connection.patience.cancel();
    error_code ignored;
    connection.socket.close(ignored);
    if (open-- == kMaxConnections && supervisor != nullptr) accept();
  }

  Protocol::acceptor acceptor;
  Supervisor* supervisor;
  asio::io_context& io;
  int open = 0;
};

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::create(asio::io_context& io,
                                                                     const std::string& folder,
                                                                     Supervisor& supervisor) {
  std::remove(control_socket_path(folder).c_str());
  const ControlSocketPath path(folder);
  auto listener = std::make_shared<Listener>(io, &supervisor);
  error_code error;
  listener->acceptor.open(Protocol(), error);
  if (!error) listener->acceptor.bind(Protocol::endpoint(path.path()), error);
  if (!error) listener->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return absl::InternalError(absl::StrCat("control socket in ", folder, ": ", error.message()));
  }
  listener->accept();
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(listener)));
}

ControlServer::ControlServer(std::shared_ptr<Listener> listener) : listener_(std::move(listener)) {}

ControlServer::~ControlServer() {
  listener_->supervisor = nullptr;
  error_code ignored;
  listener_->acceptor.close(ignored);
}

}  // namespace brigade::launcher
