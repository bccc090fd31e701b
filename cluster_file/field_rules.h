// The rules that concern one key alone: what the options of its field in cluster_file.proto say.
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "google/protobuf/descriptor.h"

namespace brigade::cluster_file {

// What is wrong with the text of a string field, as a sentence; nullopt when nothing is.
std::optional<std::string> text_fault(const google::protobuf::FieldDescriptor& field,
                                      const std::string& text);

// The same for a number, a size or a duration in milliseconds (rounded away from zero), which the
// sentence shows as `shown`.
std::optional<std::string> range_fault(const google::protobuf::FieldDescriptor& field,
                                       int64_t value, const std::string& shown);

// The word for an enum's value in the file: the name without the type's prefix, in lower case.
std::string enum_word(const google::protobuf::EnumValueDescriptor& value);

// "cuda:3" and "cuda:{index}".
bool is_cuda_device(const std::string& device);

}  // namespace brigade::cluster_file
