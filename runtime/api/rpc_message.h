// Between bytes on the wire and generated messages, and between absl::Status and gRPC's. The server
// parses requests itself so that a broken message is answered with INVALID_ARGUMENT and a reason.
// Pure functions, any thread.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"

namespace brigade::runtime {

// INVALID_ARGUMENT for bytes that are not the message: broken encoding, nesting deeper than 32, a
// string field that is not UTF-8 (named).
absl::Status parse_message(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite* message);

grpc::ByteBuffer serialize_message(const google::protobuf::MessageLite& message);

// Same code; the text is made valid UTF-8 and bounded.
grpc::Status to_grpc_status(const absl::Status& status);

// Turns what the Protobuf library would print (also for hostile input) into reasons of
// parse_message. Process-wide; called once before serving.
void capture_protobuf_log();

}  // namespace brigade::runtime
