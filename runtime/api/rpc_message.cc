#include "runtime/api/rpc_message.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstdio>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "runtime/api/safe_text.h"

namespace brigade::runtime {
namespace {

constexpr int kMaxNesting = 32;

// What the Protobuf library last said on this thread; bounded by its own messages.
thread_local std::string last_protobuf_message;
thread_local bool parsing = false;

void log_handler(google::protobuf::LogLevel level, const char* filename, int line,
                 const std::string& message) {
  if (parsing) {
    last_protobuf_message = message;
  } else if (level >= google::protobuf::LOGLEVEL_WARNING) {
    std::fprintf(stderr, "protobuf: %s\n", safe_text(message, 512).c_str());
  }
}

// The field name in "String field 'brigade.v1.Stop.strings' contains invalid UTF-8 data ...".
std::string field_in_message(const std::string& message) {
  const size_t begin = message.find('\'');
  const size_t end = begin == std::string::npos ? begin : message.find('\'', begin + 1);
  if (end == std::string::npos) return "";
  return message.substr(begin + 1, end - begin - 1);
}

}  // namespace

absl::Status parse_message(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite* message) {
  grpc::ByteBuffer copy = bytes;  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  if (!reader.status().ok())
    return absl::InvalidArgumentError("the request cannot be decompressed");
  google::protobuf::io::CodedInputStream input(&reader);
  input.SetRecursionLimit(kMaxNesting);
  last_protobuf_message.clear();
  parsing = true;
  const bool good = message->ParseFromCodedStream(&input) && input.ConsumedEntireMessage();
  parsing = false;
  if (good) return absl::OkStatus();
  const std::string field = field_in_message(last_protobuf_message);
  if (!field.empty()) return absl::InvalidArgumentError(absl::StrCat(field, ": not valid UTF-8"));
  return absl::InvalidArgumentError(
      absl::StrCat("the request is not a valid ", message->GetTypeName(),
                   " (broken encoding, or nested deeper than ", kMaxNesting, ")"));
}

grpc::ByteBuffer serialize_message(const google::protobuf::MessageLite& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

grpc::Status to_grpc_status(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::string_view text = status.message();
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      safe_text(std::string_view(text.data(), text.size())));
}

void capture_protobuf_log() {
  static std::once_flag once;
  std::call_once(once, [] { google::protobuf::SetLogHandler(log_handler); });
}

}  // namespace brigade::runtime
