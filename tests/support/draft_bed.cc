#include "tests/support/draft_bed.h"

#include <gtest/gtest.h>

#include <chrono>

#include "runtime/api/server_credentials.h"

namespace brigade::tests {
namespace {

runtime::DraftLinkOptions link_options(const DraftBedOptions& options) {
  return {.tokenizer = options.tokenizer,
          .ping_interval = options.lost_after / 5,
          .lost_after = options.lost_after};
}

runtime::RemoteDraftsOptions drafts_options(const DraftBedOptions& options) {
  runtime::RemoteDraftsOptions drafts;
  drafts.limits = {.vocab = options.tokenizer->vocab_size(),
                   .max_positions = 1024,
                   .max_run_ahead = 32,
                   .max_law_entries = 16};
  drafts.window = options.window;
  return drafts;
}

}  // namespace

DraftBed::DraftBed(const DraftBedOptions& options)
    : links(link_options(options)), drafts(links, drafts_options(options)), service(links) {
  service.start();
  auto credentials =
      runtime::server_credentials({.kind = runtime::DoorKind::kControl,
                                   .listen = "127.0.0.1:" + std::to_string(options.port),
                                   .worker_token_file = options.worker_token_file,
                                   .draft_token_file = options.draft_token_file});
  EXPECT_TRUE(credentials.ok()) << credentials.status();
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(options.port), credentials->credentials,
                           &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(service.service());
  server = builder.BuildAndStart();
  EXPECT_NE(server, nullptr);
}

DraftBed::~DraftBed() {
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  server->Wait();
  service.stop();
}

bool DraftBed::wait_for_workers(size_t count, absl::Duration limit) {
  return collect_until(
      [&] {
        size_t serving = 0;
        for (const auto& status : links.status()) serving += status.serving;
        return serving == count;
      },
      limit);
}

}  // namespace brigade::tests
